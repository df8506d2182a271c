"""A table of files: what its folder may hold, and what a manifest says."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from twophase.errors import CheckpointMismatch, OptionError, TableCorrupt
from twophase.file_table import MANIFEST, DataFile, FileTable, Manifest, TableForm, open_table
from twophase.identity import Epoch, Owner
from twophase.local_storage import LocalStorage
from twophase.sink import Marker

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("tags", pa.list_(pa.string()))])


def manifest(position: int, *, base: int = 0, owner: str = "orders") -> Manifest:
    marker = Marker(Owner(owner, "füles/1"), Epoch(position - base, "hash"), f"ledger.{2 * position + 2}", base)
    return Manifest(
        marker,
        TableForm("parquet", ("country",), SCHEMA),
        (DataFile("country=DE/part-0.parquet", 100, 3), DataFile("part-ä.parquet", 50, 0)),
        Owner("before", "s"),
        written_ms=1_700_000_000_000,
    )


def put(table: FileTable, *positions: int) -> None:
    for position in positions:
        folder = Path(table.folder(position).removeprefix("file://"))
        folder.mkdir(parents=True)
        (folder / MANIFEST).write_bytes(manifest(position).encode())


@pytest.fixture
def table(tmp_path: Path) -> FileTable:
    return open_table(str(tmp_path / "my table"))


# ---- manifests ----


def test_a_manifest_is_read_back_as_it_was_written() -> None:
    written = manifest(7, base=3)

    read = Manifest.decode(written.encode(), "somewhere")

    assert read == written
    assert (read.position, read.rows, read.bytes) == (7, 3, 150)
    assert read.form.schema == SCHEMA


def test_a_form_without_a_schema_is_one_too() -> None:
    form = TableForm("json")
    assert TableForm.from_json(form.to_json()) == form


def test_a_manifest_can_be_read_by_people() -> None:
    text = manifest(7).encode().decode()

    assert text.startswith("twophase-manifest 1 sha256=")
    assert '"columns":["id: int64","at: timestamp[us, tz=UTC]","tags: list<item: string>"]' in text


@pytest.mark.parametrize("length", [0, 1, 5, 30, 100, 300, -1])
def test_a_torn_manifest_is_never_guessed_around(length: int) -> None:
    with pytest.raises(TableCorrupt, match="/t/epoch=7"):
        Manifest.decode(manifest(7).encode()[:length], "/t/epoch=7")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"rows":3', b'"rows":4', "checksum"),
        (b"manifest 1 ", b"manifest 2 ", "format 2"),
        (b"twophase-manifest", b"PAR1", "not a manifest"),
    ],
)
def test_an_altered_manifest_says_how_it_differs(old: bytes, new: bytes, message: str) -> None:
    data = manifest(7).encode()
    assert old in data
    with pytest.raises(TableCorrupt, match=message):
        Manifest.decode(data.replace(old, new), "/t")


# ---- the folder ----


def test_a_table_that_is_not_there_has_no_epochs(table: FileTable) -> None:
    assert table.positions() == []
    assert table.newest() is None
    with pytest.raises(FileNotFoundError):
        table.manifest(0)


def test_positions_are_in_order_of_number_not_of_name(table: FileTable) -> None:
    put(table, *range(12))

    assert table.positions() == list(range(12))
    newest = table.newest()
    assert newest is not None
    assert newest.position == 11


def test_a_line_may_begin_anywhere(table: FileTable) -> None:
    put(table, 41, 42)
    assert table.positions() == [41, 42]


def test_staging_is_beside_the_table(table: FileTable, tmp_path: Path) -> None:
    assert table.staging == f"file://{tmp_path}/.my table.twophase"


def test_hidden_files_do_not_disturb(table: FileTable, tmp_path: Path) -> None:
    put(table, 0)
    (tmp_path / "my table" / "_SUCCESS").touch()
    (tmp_path / "my table" / ".DS_Store").touch()
    assert table.positions() == [0]


@pytest.mark.parametrize(
    "name", ["part-0.parquet", "_spark_metadata/0", "_delta_log/0", "epoch=x/a", "epoch=01/a", "epoch=1"]
)
def test_what_is_not_ours_is_refused_by_name(table: FileTable, tmp_path: Path, name: str) -> None:
    put(table, 0)
    foreign = tmp_path / "my table" / name
    foreign.parent.mkdir(exist_ok=True)
    foreign.touch()

    with pytest.raises(CheckpointMismatch, match=name.partition("/")[0]):
        table.positions()


def test_a_table_of_sparks_own_sink_says_where_to_read_on(table: FileTable, tmp_path: Path) -> None:
    (tmp_path / "my table" / "_spark_metadata").mkdir(parents=True)
    with pytest.raises(CheckpointMismatch, match=r"Spark's own file sink.*docs/migrating\.md"):
        table.newest()


def test_an_epoch_folder_without_a_manifest_is_refused(table: FileTable, tmp_path: Path) -> None:
    put(table, 0)
    (tmp_path / "my table" / "epoch=1").mkdir()
    with pytest.raises(CheckpointMismatch, match="without a manifest"):
        table.newest()


def test_a_gap_is_refused(table: FileTable) -> None:
    put(table, 0, 1, 3)
    with pytest.raises(CheckpointMismatch, match="epoch=1 and epoch=3"):
        table.positions()


def test_a_copied_epoch_folder_is_noticed(table: FileTable, tmp_path: Path) -> None:
    put(table, 0)
    (tmp_path / "my table" / "epoch=0").rename(tmp_path / "my table" / "epoch=1")
    with pytest.raises(TableCorrupt, match="renamed or copied"):
        table.newest()


def test_a_file_in_place_of_the_table_is_refused(table: FileTable, tmp_path: Path) -> None:
    (tmp_path / "my table").touch()
    with pytest.raises(CheckpointMismatch, match="file and not a folder"):
        table.newest()


# ---- the newest, quickly ----


def test_the_newest_is_always_what_is_there_whatever_was_seen_before(table: FileTable, tmp_path: Path) -> None:
    folder = tmp_path / "my table"

    def newest() -> int | None:
        found = open_table(table.path).newest()
        return None if found is None else found.position

    put(table, 0)
    assert newest() == 0
    put(table, 1)
    assert newest() == 1
    put(table, *range(2, 40))
    assert newest() == 39
    for position in (39, 38):
        (folder / f"epoch={position}").rename(tmp_path / f"away {position}")
    assert newest() == 37
    folder.rename(tmp_path / "away")
    assert newest() is None
    put(table, 7)
    assert newest() == 7


def test_the_newest_of_a_long_table_needs_no_listing(tmp_path: Path) -> None:
    class Counting(LocalStorage):
        listings = 0

        def list(self, folder: str) -> list:  # type: ignore[type-arg]
            Counting.listings += 1
            return super().list(folder)

    table = FileTable(Counting(), str(tmp_path / "long"))
    put(table, 0, 1, 2)
    for _ in range(10):
        assert table.newest() is not None
    assert Counting.listings == 1


# ---- paths ----


@pytest.mark.parametrize("path", ["hdfs://namenode/t", "s3a://bucket/t", "file://elsewhere/t", "/", "file:///", "a\0b"])
def test_a_path_that_can_not_be_a_table_is_an_option_error(path: str) -> None:
    with pytest.raises(OptionError):
        open_table(path)


def test_a_relative_path_is_made_absolute_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = open_table("orders/")
    monkeypatch.chdir("/")
    assert table.path == f"file://{tmp_path}/orders"


def test_links_are_resolved_so_that_staging_is_on_the_same_disk(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert open_table(str(tmp_path / "link" / "t")).staging == f"file://{tmp_path}/real/.t.twophase"

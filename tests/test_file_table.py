"""A table of files: what its folder may hold, and what a manifest says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
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
        put_manifest(table, position, manifest(position))


def put_manifest(table: FileTable, position: int, written: Manifest) -> str:
    path = f"{table.folder(position)}/{written.form.manifest_name}"
    table.storage.make_folder(path.rpartition("/")[0])
    written.publish(table.storage, path, columns=None, through=table.path)
    return path


def put_file(table: FileTable, position: int, name: str, data: bytes) -> None:
    file = Path(table.folder(position).removeprefix("file://")) / name
    file.parent.mkdir(parents=True)
    file.write_bytes(data)


def encoded(written: Manifest) -> bytes:
    data = written.encode()
    assert data is not None
    return data


def of_format(file_format: str) -> Manifest:
    written = manifest(7)
    return replace(written, form=replace(written.form, file_format=file_format))


@pytest.fixture
def table(tmp_path: Path) -> FileTable:
    return open_table(str(tmp_path / "my table"))


# ---- manifests ----


FORMATS = ["parquet", "json", "csv", "a later one"]


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_manifest_is_read_back_as_it_was_written(table: FileTable, file_format: str) -> None:
    written = replace(manifest(7, base=3), form=TableForm(file_format, ("country",), SCHEMA))

    read = Manifest.read(table.storage, put_manifest(table, 7, written))

    assert read == written
    assert Manifest.decode(written.text(), "somewhere") == written
    assert (read.position, read.rows, read.bytes) == (7, 3, 150)
    assert read.form.schema == SCHEMA


def test_a_form_without_a_schema_is_one_too() -> None:
    form = TableForm("json")
    assert TableForm.from_json(form.to_json()) == form


def test_a_manifest_can_be_read_by_people() -> None:
    text = manifest(7).text().decode()

    assert text.startswith("twophase-manifest 1 sha256=")
    assert '"columns":["id: int64","at: timestamp[us, tz=UTC]","tags: list<item: string>"]' in text


def test_the_manifest_of_a_parquet_table_is_a_parquet_file_without_rows() -> None:
    data = encoded(manifest(7))
    assert pq.read_table(pa.BufferReader(data)).equals(SCHEMA.empty_table())
    assert manifest(7).text() in data, "people can find it in the file"


def test_the_manifest_of_a_json_table_is_nothing_to_json() -> None:
    assert encoded(of_format("json")).isspace()


WITHOUT_A_FILE = {
    "csv": TableForm("csv", ("country",), SCHEMA),
    "no columns": TableForm("parquet", ("country",), None),
    "none in files": TableForm("parquet", ("country",), pa.schema([("country", pa.string())])),
}


@pytest.mark.parametrize("form", WITHOUT_A_FILE.values(), ids=WITHOUT_A_FILE)
def test_where_no_file_is_without_rows_the_manifest_is_none(table: FileTable, form: TableForm) -> None:
    written = replace(manifest(7), form=form)
    folder = Path(put_manifest(table, 7, written).removeprefix("file://"))
    assert [path for path in folder.rglob("*") if not path.is_dir()] == []
    assert all(len(path.name) < 255 and path.name == path.name.lower() for path in folder.iterdir())
    assert table.manifest(7) == written


def test_a_manifest_of_thousands_of_files_is_spelled_too(table: FileTable) -> None:
    files = tuple(DataFile(f"part-{number:05}-{number * 7919:032x}.csv", number, number) for number in range(5_000))
    written = replace(of_format("csv"), files=files)
    put_manifest(table, 7, written)
    assert table.manifest(7) == written


def test_a_manifest_of_which_a_folder_is_missing_or_altered_is_never_guessed_around(table: FileTable) -> None:
    folder = Path(put_manifest(table, 7, of_format("csv")).removeprefix("file://"))
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) > 2
    for name in names:
        (folder / name).rename(folder / f"{name[:-1]}{'a' if name[-1] != 'a' else 'b'}")
        with pytest.raises(TableCorrupt, match=r"spell|checksum"):
            table.manifest(7)
        next(path for path in folder.iterdir() if path.name not in names).rename(folder.parent / "away")
        with pytest.raises(TableCorrupt):
            table.manifest(7)
        (folder.parent / "away").rename(folder / name)
    assert table.manifest(7) == of_format("csv")


STORED = {"parquet": encoded(manifest(7)), "json": encoded(of_format("json")), "bare": manifest(7).text()}


@pytest.mark.parametrize("kind", STORED)
@pytest.mark.parametrize("length", [0, 1, 4, 5, 30, 100, 300, 400, -400, -9, -4, -1])
def test_a_torn_manifest_is_never_guessed_around(length: int, kind: str) -> None:
    with pytest.raises(TableCorrupt, match="/t/epoch=7"):
        Manifest.decode(STORED[kind][:length], "/t/epoch=7")


def test_a_parquet_file_that_is_no_manifest_is_said_to_be_one() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(SCHEMA.empty_table(), sink)
    with pytest.raises(TableCorrupt, match="not a manifest, but a parquet file"):
        Manifest.decode(sink.getvalue().to_pybytes(), "/t")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        # as many bytes as before, so that the parquet file around it is whole
        (b'"rows":3', b'"rows":4', "checksum"),
        (b"manifest 1 ", b"manifest 3 ", "format 3, and this release reads 1 to 2"),
        (b"twophase-manifest", b"twophase-manifold", "not a manifest"),
    ],
)
def test_an_altered_manifest_says_how_it_differs(old: bytes, new: bytes, message: str) -> None:
    for data in (encoded(manifest(7)), manifest(7).text()):
        assert old in data
        with pytest.raises(TableCorrupt, match=message):
            Manifest.decode(data.replace(old, new), "/t")


# As the first layout had it, at epoch=0/.manifest.
OLD = (
    b"twophase-manifest 1 sha256=703df7b2930440a2f8f12c29ef2562c0774bfb1a94c0730879f116d10e5d0964\n"
    b'{"base":0,"by":"64b287b72f2842898d4a383984289dfd.2","bytes":504,"epoch":"0@a296df6dee2e6438a27475e521a59f35",'
    b'"files":[{"bytes":504,"name":"country=DE/part-00000-64b287b72f2842898d4a383984289dfd.1.0-c000.snappy.parquet",'
    b'"rows":1}],"form":{"columns":["country: string","value: int64"],"fileFormat":"parquet","partitionBy":["country"],'
    b'"schema":"/////7AAAAAQAAAAAAAKAAwABgAFAAgACgAAAAABBAAMAAAACAAIAAAABAAIAAAABAAAAAIAAABQAAAABAAAAMj///8AAAECEAAAACAA'
    b"AAAEAAAAAAAAAAUAAAB2YWx1ZQAAAAgADAAIAAcACAAAAAAAAAFAAAAAEAAUAAgABgAHAAwAAAAQABAAAAAAAAEFEAAAABwAAAAEAAAAAAAAAAcA"
    b'AABjb3VudHJ5AAQABAAEAAAAAAAAAA=="},"owner":"560cac70-6cde-443a-9af6-64238c7b02ef/s","replaced":null,"rows":1,'
    b'"written_ms":1794878560495}\n'
)


def test_a_manifest_of_the_first_layout_is_read_and_goes_on_in_the_new_one(table: FileTable) -> None:
    put_file(table, 0, MANIFEST, OLD)
    newest = table.newest()
    assert newest is not None
    columns: list[tuple[str, pa.DataType]] = [("country", pa.string()), ("value", pa.int64())]
    assert newest.form == TableForm("parquet", ("country",), pa.schema(columns))
    assert (newest.position, newest.rows, newest.written_ms) == (0, 1, 1794878560495)

    # By other processes, say: this one has seen epoch 0 alone.
    put_file(table, 1, MANIFEST, manifest(1).text())
    assert table.newest() == manifest(1)
    put(table, 2)
    assert table.newest() == manifest(2)
    assert table.manifest(0).rows == 1
    assert table.newest() == manifest(2)


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
    with pytest.raises(TableCorrupt, match=r"epoch=1 has no manifest.*or the folder was made by hand"):
        table.newest()


def test_a_manifest_is_found_by_who_knows_nothing_of_the_table(table: FileTable) -> None:
    put(table, 0)
    FileTable._names.clear()
    assert table.manifest(0) == manifest(0)


def test_a_table_that_was_begun_again_with_other_partitions_is_read_as_it_is(table: FileTable, tmp_path: Path) -> None:
    put(table, 0, 1)
    assert table.newest() == manifest(1)
    (tmp_path / "my table").rename(tmp_path / "away")
    other = replace(manifest(0), form=TableForm("parquet", ("day", "id"), SCHEMA))
    put_manifest(table, 0, other)
    assert table.newest() == other


def test_a_gap_is_refused(table: FileTable) -> None:
    put(table, 0, 1, 3)
    with pytest.raises(CheckpointMismatch, match="lacks epoch 2"):
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


def test_the_newest_of_a_long_table_is_two_reads_and_no_listing(tmp_path: Path) -> None:
    class Counting(LocalStorage):
        listings = 0
        reads = 0

        def read(self, path: str) -> bytes:
            Counting.reads += 1
            return super().read(path)

        def list(self, folder: str) -> list:  # type: ignore[type-arg]
            Counting.listings += 1
            return super().list(folder)

    table = FileTable(Counting(), str(tmp_path / "long"))
    put(table, 0, 1, 2)
    assert table.newest() is not None
    Counting.listings = Counting.reads = 0
    for _ in range(10):
        assert table.newest() is not None
    assert (Counting.reads, Counting.listings) == (20, 0)


# ---- paths ----


@pytest.mark.parametrize("path", ["hdfs:///t", "s3a://bucket/t", "file://elsewhere/t", "/", "file:///", "a\0b"])
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

"""One RocksDB database in a folder of this machine, by rocksdict: raw bytes in order, ranges, snapshots by hard links.

What is written goes to no log: a database lives in one attempt's folder, and what is not flushed when the attempt votes is gone
with the attempt. Compaction runs only between `flush` and `snapshot`, and is waited for: a database that is closed soon after it
was opened would otherwise never come to compact, and have one more small file for each epoch.

rocksdict raises bare exceptions with RocksDB's own sentence; here they become errors of twophase.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rocksdict import AccessType, BlockBasedOptions, Checkpoint, Options, Rdict, ReadOptions, WriteBatch, WriteOptions

from twophase.errors import DataLost, TableCorrupt, TargetUnavailable, TwophaseError
from twophase.state.key_encoding import group_prefix
from twophase.state.key_groups import GroupRange

_WRITE_BUFFER_BYTES = 64 << 20
_LEVEL_BYTES = 64 << 20
_FILE_BYTES = 16 << 20
_BLOOM_BITS = 10
_COMPACTS_WITHIN_S = 600.0
_POLL_S = 0.002

Item = tuple[bytes, bytes]


class Database:
    """Open, until it is closed."""

    def __init__(self, folder: str, *, read_only: bool = False):
        self.folder = folder
        access = AccessType.read_only(False) if read_only else AccessType.read_write()
        with explained(folder):
            self._rocks = Rdict(folder, _options(), access_type=access)
        self._is_closed = False
        unlogged: Any = WriteOptions()
        unlogged.disable_wal = True  # a property; the stubs take it for a method
        self._unlogged: WriteOptions = unlogged

    def write(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Put, or take away where the value is None; what comes later in the batch counts."""
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key, value in zip(keys, values, strict=True):
            if value is None:
                delete(key)
            else:
                put(key, value)
        with explained(self.folder):
            self._rocks.write(batch, self._unlogged)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with explained(self.folder):
            found: Any = self._rocks.get(list(keys))
        return list(found)

    def items(self, first: bytes, end: bytes) -> Iterator[Item]:
        """From `first` on, and before `end`, in the order of the keys."""
        until = ReadOptions()
        # Only the upper bound: rocksdict 0.3.29 takes a lower one for an upper one.
        until.set_iterate_upper_bound(end)
        last: bytes | None = None
        with explained(self.folder):
            found: Iterator[Any] = self._rocks.items(from_key=first, read_opt=until)
            for item in found:
                last = item[0]
                yield item
            self._require_end(first, last, until)

    def _require_end(self, first: bytes, last: bytes | None, until: ReadOptions) -> None:
        """rocksdict ends an iteration at a damaged block as if there were nothing more: look once again whether that is so."""
        look = self._rocks.iter(until)
        look.seek(first if last is None else last)
        if last is not None and look.valid():
            look.next()
        look.status()
        if look.valid():
            raise TableCorrupt(
                f"the files of a state in {self.folder} are damaged: an iteration has ended before its end"
            )

    def items_of(self, groups: GroupRange) -> Iterator[Item]:
        return self.items(group_prefix(groups.first), group_prefix(groups.end))

    def drop(self, groups: GroupRange) -> None:
        """Take all keys of these groups away, without a look at them."""
        with explained(self.folder):
            self._rocks.delete_range(group_prefix(groups.first), group_prefix(groups.end), self._unlogged)

    def flush(self) -> None:
        """What was written is in tables from here on."""
        with explained(self.folder):
            self._rocks.flush()

    def tables(self) -> list[str]:
        """The names of the tables that there are now; a compaction may take some of them away."""
        with explained(self.folder):
            return [str(file["name"]).lstrip("/") for file in self._rocks.live_files()]

    def snapshot(self, folder: str) -> None:
        """Flush, compact what is due, and link the files into a new folder."""
        with explained(self.folder):
            self._rocks.flush()
            self._wait_for_compaction()
            Checkpoint(self._rocks).create_checkpoint(folder)

    def _wait_for_compaction(self) -> None:
        until = time.monotonic() + _COMPACTS_WITHIN_S
        while any(self._rocks.property_int_value(name) for name in _COMPACTS):
            if time.monotonic() > until:
                raise TargetUnavailable(f"RocksDB in {self.folder} has not compacted within {_COMPACTS_WITHIN_S:.0f} s")
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Twice is fine."""
        if not self._is_closed:
            self._is_closed = True
            self._rocks.close()


_COMPACTS = ("rocksdb.compaction-pending", "rocksdb.num-running-compactions")


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    # Levels and files that are small beside the state: a compaction then replaces, and uploads, little of it.
    options.set_max_bytes_for_level_base(_LEVEL_BYTES)
    options.set_target_file_size_base(_FILE_BYTES)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    table = BlockBasedOptions()
    table.set_bloom_filter(_BLOOM_BITS, False)
    options.set_block_based_table_factory(table)
    return options


def is_kept(name: str) -> bool:
    """Whether a file of a snapshot is needed to open it again: tables, and what says which there are."""
    return name.endswith(".sst") or name == "CURRENT" or name.startswith("MANIFEST-")


@contextmanager
def explained(folder: str) -> Iterator[None]:
    """What RocksDB says, as an error of ours."""
    try:
        yield
    except TwophaseError:
        raise
    except Exception as error:
        if type(error) is not Exception:  # rocksdict's own are bare ones
            raise
        raise _explained(str(error), folder) from error


def _explained(said: str, folder: str) -> TwophaseError:
    if said.startswith("Corruption"):
        return TableCorrupt(f"the files of a state in {folder} are damaged, RocksDB says: {said}")
    if "No space left" in said or "quota" in said:
        return TargetUnavailable(f"there is no space left for {folder}: free some, and start the query again ({said})")
    if "No such file" in said:
        return DataLost(f"a file of {folder} is gone: {said}")
    return TargetUnavailable(f"RocksDB in {folder}: {said}")


def size_of(folder: str) -> int:
    with os.scandir(folder) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.is_file())

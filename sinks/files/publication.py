"""How a staged folder becomes the table's next epoch: one rename shows all tasks' files at once.

::

    <N>.<g>/ ──seal──► <N>.<g>.sealed/ ──► compare with the handles, delete the rest ──► manifest ──► epoch=<position>/
             rename    no file can be      what a losing or late task left               published     rename that never
                       opened in it                                                      exclusively   replaces

Each step can have been made before, by this process or by another: every answer is told apart, and what is there decides.

=====================  ==========================================================================================
"not found"            says nothing by itself: the destination is read *after* it; only if that is absent too, the
                       share is dead
"exists"               the destination's manifest says whether it is this decision's, or another was first
time-out               look, then try again; OutcomeUnknown if storage keeps silent
=====================  ==========================================================================================

What goes into the epoch is a function of the order alone, so that two committers do the same. The manifest's temporary file is
written beside the folder, never in it. The folder is looked through a second time right before the rename, and a third time after
it: a task that was inside its `open` while the folder was sealed could have made a file a moment later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from twophase import failpoints
from twophase.errors import Fenced, NotCommitted, OutcomeUnknown, TableCorrupt
from twophase.file_table import FileTable, Manifest
from twophase.log import Log
from twophase.sink import Marker, Outcome

_TRIES = 3

log = Log("twophase.sinks.files")


@dataclass(frozen=True)
class Publication:
    """One folder on its way into the table.

    Parameters
    ----------
    manifest:
        What the epoch will be: its marker and its files.
    staged:
        Where tasks wrote; None if no task did.
    sealed:
        Where it waits for the last rename.
    through:
        The folder in which the manifest's temporary file may lie.
    slots:
        Whose share each file is, so that a missing one says which slot is dead.
    is_first:
        Whether it is the table's first epoch, so that the table's own folder may have to be made.
    """

    table: FileTable
    manifest: Manifest
    staged: str | None
    sealed: str
    through: str
    slots: Mapping[str, int]
    is_first: bool = False

    def publish(self) -> Outcome:
        """Carry it out, from wherever it stands."""
        owner, number = str(self.marker.owner), self.marker.epoch.number
        if self.is_visible():
            return Outcome.ALREADY_COMMITTED
        if self.staged is not None:
            self._seal(self.staged)
        failpoints.hit("files.sealed", owner=owner, epoch=number)
        if not self._tidy() or not self._publish_manifest():
            return Outcome.ALREADY_COMMITTED
        failpoints.hit("files.manifest_published", owner=owner, epoch=number)
        if not self._tidy():
            return Outcome.ALREADY_COMMITTED
        outcome = self._show()
        failpoints.hit("files.renamed", owner=owner, epoch=number)
        self._remove_strangers()
        return outcome

    @property
    def marker(self) -> Marker:
        return self.manifest.marker

    @property
    def _manifest_name(self) -> str:
        return self.manifest.form.manifest_name

    def _is_of_manifest(self, folder: str) -> bool:
        """Whether the folder is the manifest, or one of those that spell it."""
        return f"{folder}/".startswith(f"{self._manifest_name}/")

    def is_visible(self) -> bool:
        """Whether the destination is this epoch, for good; Fenced if it is another's."""
        try:
            found = self.table.manifest(self.manifest.position)
        except FileNotFoundError:
            return False
        if found.marker != self.marker:
            raise Fenced(
                f"{self.table.folder(found.position)} was committed by decision {found.marker.by} of {found.marker.owner}, and "
                f"this is {self.marker.by} of {self.marker.owner}"
            )
        try:
            self.table.make_durable(found.marker)
        except OSError as error:
            raise OutcomeUnknown(f"the epoch is in {self.table.path}, but not known to be durable: {error}") from error
        return True

    def _seal(self, staged: str) -> None:
        silence: TimeoutError | None = None
        for _ in range(_TRIES):
            try:
                return self.table.storage.rename(staged, self.sealed)
            except (FileNotFoundError, FileExistsError):
                return None  # sealed before, or gone: what is in the sealed folder will tell
            except TimeoutError as error:
                silence = error
        raise self._unknown("seal the staged folder", silence)

    def _tidy(self) -> bool:
        """Leave exactly the epoch's files in the sealed folder; False if another committer has made it visible."""
        storage = self.table.storage
        wanted = {file.name: file.bytes for file in self.manifest.files}
        found, folders = _walk(self.table, self.sealed)
        lost = [name for name, length in wanted.items() if found.get(name) != length]
        if lost:
            if self.is_visible():
                return False
            raise NotCommitted(
                f"staged files are gone, or not as long as their task said: {', '.join(lost[:3])}"
                + (f" and {len(lost) - 3} more" if len(lost) > 3 else ""),
                dead_slots=sorted({self.slots[name] for name in lost}),
            )
        needed = {parent for name in (*wanted, self._manifest_name) for parent in _parents(name)}
        rest = [name for name in found if name not in wanted and name != self._manifest_name]
        rest += [name for name in folders if name not in needed and not self._is_of_manifest(name)]
        for name in rest:
            storage.delete(f"{self.sealed}/{name}")
        try:
            for parent in {name.rpartition("/")[0] for name in rest} & {"", *needed}:
                # A deletion that is not synced can be undone by a power cut, and the file would be in the epoch.
                storage.sync(f"{self.sealed}/{parent}".rstrip("/"))
        except FileNotFoundError:
            return self._still_there()
        return True

    def _publish_manifest(self) -> bool:
        """False if another committer has made the epoch visible."""
        silence: TimeoutError | None = None
        for _ in range(_TRIES):
            try:
                self._put_manifest()
                return True
            except FileNotFoundError:
                return self._still_there()
            except TimeoutError as error:
                silence = error
        raise self._unknown("publish the manifest", silence)

    def _put_manifest(self) -> None:
        storage, path = self.table.storage, f"{self.sealed}/{self._manifest_name}"
        self._make_manifest_folder()
        try:
            self.manifest.publish(storage, path, columns=self._stored_columns(), through=self.through)
        except FileExistsError:
            there = Manifest.read(storage, path)
            if there.marker != self.marker:
                raise TableCorrupt(f"{path} names decision {there.marker.by}, not {self.marker.by}") from None
            storage.sync(path.rpartition("/")[0])

    def _make_manifest_folder(self) -> None:
        # Folders of the epoch's own files are durable since their vote; another one may be a losing task's, which is not.
        storage, voted = self.table.storage, {parent for file in self.manifest.files for parent in _parents(file.name)}
        for folder in _parents(self._manifest_name):
            if folder not in voted:
                path = f"{self.sealed}/{folder}"
                storage.make_child(path)
                storage.sync(path.rpartition("/")[0])

    def _stored_columns(self) -> pa.Schema | None:
        """As the first file has them: the table's form also has columns that this epoch dropped."""
        if self.manifest.form.file_format != "parquet" or not self.manifest.files:
            return None
        if self.table.storage.spells_small_files:
            return None  # the manifest is no file, and shows nobody columns
        name = self.manifest.files[0].name
        with self.table.storage.open(f"{self.sealed}/{name}") as file:
            try:
                return pq.read_schema(file).remove_metadata()
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, OSError) and (error.errno is not None or type(error) is not OSError):
                    raise  # storage's; Arrow's own has no number
                raise NotCommitted(
                    f"{self.sealed}/{name} was whole when it was voted for, and is not a parquet file any more: {error}",
                    dead_slots=[self.slots[name]],
                ) from error

    def _still_there(self) -> bool:
        """The sealed folder was not found: False if that is because the epoch is visible; otherwise it is gone for ever."""
        if self.is_visible():
            return False
        raise self._gone()

    def _show(self) -> Outcome:
        storage, destination = self.table.storage, self.table.folder(self.manifest.position)
        silence: TimeoutError | None = None
        for _ in range(_TRIES):
            try:
                storage.rename(self.sealed, destination)
                return Outcome.COMMITTED
            except FileExistsError:
                if self.is_visible():
                    return Outcome.ALREADY_COMMITTED
                continue  # it was there, and was moved away since
            except FileNotFoundError:
                if self.is_visible():
                    return Outcome.ALREADY_COMMITTED
                if not storage.list(self.sealed):
                    raise self._gone() from None
                if not self.is_first:
                    raise Fenced(f"the table {self.table.path} is gone: it was deleted or moved away") from None
                storage.make_folder(self.table.path)  # it is the table's own folder that is not there
            except TimeoutError as error:
                silence = error
                if self.is_visible():
                    return Outcome.COMMITTED
        raise self._unknown("rename the epoch into the table", silence)

    def _remove_strangers(self) -> None:
        """What a task made in the folder after it was looked through is in the epoch now, and must not stay."""
        destination = self.table.folder(self.manifest.position)
        named = {self._manifest_name, *(file.name for file in self.manifest.files)}
        found, _ = _walk(self.table, destination)
        for name in found.keys() - named:
            log.warning("removed a late file from an epoch", owner=self.marker.owner, file=f"{destination}/{name}")
            self.table.storage.delete(f"{destination}/{name}")

    def _gone(self) -> NotCommitted:
        every = sorted(set(self.slots.values()))
        return NotCommitted(f"{self.sealed} is gone, and the epoch is not visible", dead_slots=every)

    def _unknown(self, what: str, error: TimeoutError | None) -> OutcomeUnknown:
        return OutcomeUnknown(f"could not {what} in {_TRIES} tries, and storage gave no answer: {error}")


def _walk(table: FileTable, folder: str) -> tuple[dict[str, int], list[str]]:
    """Every file below, with its length, and every folder; by names relative to `folder`."""
    files: dict[str, int] = {}
    folders: list[str] = []
    todo = [""]
    while todo:
        prefix = todo.pop()
        for entry in table.storage.list(f"{folder}/{prefix}".rstrip("/")):
            if entry.is_folder:
                folders.append(prefix + entry.name)
                todo.append(f"{prefix}{entry.name}/")
            else:
                files[prefix + entry.name] = entry.length
    return files, folders


def _parents(name: str) -> list[str]:
    """Of a/b/c: a and a/b."""
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]

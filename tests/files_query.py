"""A query whose sink is a table of files on this disk, the steps of `Pipeline` one at a time; and storage that loses replies."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.dataset as ds

from tests.pipeline import Epochs, Pipeline, batch_of
from twophase.checkpoint import Checkpoint
from twophase.local_storage import LocalStorage, Posix
from twophase.plan import EpochPlan
from twophase.sinks import FilesSink
from twophase.task import run_task
from twophase.vote import Vote


@dataclass
class FilesQuery(Pipeline):
    """As `Pipeline`, with batches of any columns; `schema` is what prepare is told."""

    schema: pa.Schema | None = None

    def prepare(self, *, overwrite: bool = False) -> EpochPlan:
        number = Checkpoint(self.storage, str(self.root)).newest()
        assert number is not None, "nothing is logged"
        self.number, self.votes = number, []
        told = None if self.schema is None else dict.fromkeys(self.sinks, self.schema)
        self._plan = pickle.dumps(self.coordinator().prepare(number, schemas=told, overwrite=overwrite))
        return self.plan

    def run(self, *rows: Any) -> list[Vote | None]:
        return super().run(*rows)

    def finish(self, *rows: Any) -> None:
        super().finish(*rows)

    def epoch(self, number: int, *rows: Any) -> None:
        super().epoch(number, *rows)

    def task(self, sink: str, slot: int, values: Any, *, number: int | None = None, task_id: int | None = None) -> Vote:
        """`values` are numbers for the column `value`, a batch, or several."""
        given = [values] if isinstance(values, pa.RecordBatch) else values
        batches = given if given and isinstance(given[0], pa.RecordBatch) else [batch_of(values)]
        vote = run_task(
            self.sinks[sink],
            sink,
            self.plan,
            batches,
            number=self.number if number is None else number,
            slot=slot,
            task_id=next(self._task_ids) if task_id is None else task_id,
            now_ms=lambda: self.clock_ms,
        )
        return Vote.from_text(vote.to_text())


class WithoutSync(Posix):
    """No test here cuts the power but those that say so, and an epoch has some twenty fsyncs."""

    def fsync(self, descriptor: int) -> None: ...


def quick() -> LocalStorage:
    return LocalStorage(WithoutSync())


def query(tmp_path: Path, sink: FilesSink | None = None, **settings: Any) -> FilesQuery:
    sink = sink or FilesSink(str(tmp_path / "table"), storage=quick())
    return FilesQuery(tmp_path / "checkpoint", {"s": sink}, storage=quick(), **settings)


def visible(table: Path, file_format: str = "parquet") -> Epochs:
    """What a reader that knows nothing of twophase sees: position and values of every epoch that has rows."""
    if not table.exists() or not any(table.iterdir()):
        return []
    rows = dataset(table, file_format).to_table().to_pylist()
    positions = sorted({row["epoch"] for row in rows})
    return [(position, sorted(row["value"] for row in rows if row["epoch"] == position)) for position in positions]


def dataset(table: Path, file_format: str = "parquet", partitioning: Any = "hive") -> Any:
    """The table as pyarrow sees it, whose stubs do not know json."""
    open_dataset: Any = ds.dataset
    return open_dataset(table, format=file_format, partitioning=partitioning)


def staged(table: Path) -> list[str]:
    """Every file and every generation's folder that is still staged; without the temporary files of dead publications, which are
    swept when they are old."""
    folder = table.parent / f".{table.name}.twophase"
    return sorted(p.relative_to(folder).as_posix() for p in folder.glob("*/*/**/*") if not p.name.startswith(".tmp-"))


@dataclass(frozen=True)
class LossyStorage(LocalStorage):
    """Loses requests or replies: `lose("rename", "reply")` is for the next rename, and `times` more of them."""

    lost: list[tuple[str, Literal["request", "reply"]]] = field(default_factory=list)
    hooks: dict[str, list[Callable[..., object]]] = field(default_factory=dict)

    def lose(self, method: str, what: Literal["request", "reply"], times: int = 1) -> None:
        self.lost.extend([(method, what)] * times)

    def before(self, method: str, hook: Callable[..., object]) -> None:
        """Run `hook` once, with the arguments, right before the next such call."""
        self.hooks.setdefault(method, []).append(hook)

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name not in ("rename", "publish_through", "publish_folders", "create", "delete", "list", "read"):
            return value
        return functools.partial(self._call, name, value)

    def _call(self, name: str, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if self.hooks.get(name):
            self.hooks[name].pop(0)(*arguments)
        what = next((what for lost, what in self.lost if lost == name), None)
        if what is not None:
            self.lost.remove((name, what))
        if what == "request":
            raise TimeoutError("the request was lost")
        result = method(*arguments, **named)
        if what == "reply":
            raise TimeoutError("the reply was lost")
        return result

"""SinkTarget: what the suite needs to know of a target, besides its sink. Whoever adopts the suite writes one."""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from twophase.identity import Owner
from twophase.query import AnySink
from twophase.sink import Description, Share
from twophase.testing.arrow_columns import ARROW_COLUMNS

VALUE = "value"
TYPED = "typed"


def input_output_error(said: str) -> OSError:
    """As an operating system raises it: with a number."""
    return OSError(errno.EIO, said)


class SinkTarget(ABC):
    """One target, empty when a test begins.

    Every test writes rows with a number each, in the column `value`, so that a row can be traced wherever it turns up.
    """

    @abstractmethod
    def sink(self) -> AnySink:
        """A sink that writes to the target: a new object at each call, as another process would make it."""

    @abstractmethod
    def read(self) -> Sequence[Mapping[str, Any]]:
        """The rows that a reader sees now, in the reader's order. A reader that knows nothing of twophase, if there is one.

        It is one look: where the sink is atomic, it may be called while another process commits, and from another thread.
        """

    @abstractmethod
    def residue(self) -> Sequence[str]:
        """Everything that is in the target besides rows and markers, each by a name: what is staged, locked or half done.

        Ask the target itself and not the sink: this is what `Sink.leftovers` is held against.
        """

    # ---- what the target claims beyond the sink's capabilities ----

    outlives_process: bool = True
    """Whether another process writes to the same target; False for what lies in the memory of one."""
    fences: bool = False
    """Whether `Sink.fence` keeps older generations of its ledger out of staging from then on. The contract leaves it open."""
    arrow_types: Collection[str] = frozenset(ARROW_COLUMNS)
    """The types, as named in `ARROW_COLUMNS`, whose values come back as they were. Others must be refused, or come back too."""
    leaves_out_columns: bool = False
    """Whether the sink takes columns by their names and leaves out all others, and says so to its users."""
    failpoints: Sequence[str] = ()
    """The sink's own failpoints on the driver, where queries are killed besides those of the protocol."""
    client_errors: Sequence[Callable[[str], Exception]] = (input_output_error,)
    """What the target's client raises when it can't ask the target: each is raised where the sink makes a call."""
    many_slots: int = 2000
    many_rows: int = 100_000
    many_batches: int = 1000
    many_failures: int = 40
    """Of the places where a verb makes a call: at so many of them it fails, from the first to the last."""

    # ---- what rarely needs another answer ----

    def batch(self, values: Sequence[int]) -> pa.RecordBatch:
        """Rows with these numbers. For a target that wants other columns; `values` must then give the numbers back."""
        return pa.record_batch([pa.array(values, pa.int64())], names=[VALUE])

    def values(self) -> list[int]:
        """The numbers of the rows that a reader sees now, in the reader's order."""
        return [int(row[VALUE]) for row in self.read()]

    def typed_batch(self, column: pa.Array[Any]) -> pa.RecordBatch | None:
        """Rows with numbers from 0, and this column, called `typed`; None if the target has no room for other columns."""
        return pa.record_batch([pa.array(range(len(column)), pa.int64()), column], names=[VALUE, TYPED])

    def typed_values(self) -> list[Any]:
        """The column `typed`, in the order of the rows' numbers."""
        return [row[TYPED] for row in sorted(self.read(), key=lambda row: int(row[VALUE]))]

    def rebuilt(self, description: Description) -> AnySink:
        """The sink that `Sink.describe` describes, from nothing but its description. Not asked for where it gives None."""
        raise NotImplementedError(
            "Sink.describe gives a description: say in SinkTarget.rebuilt how a sink is made of it"
        )

    def short_lived(self) -> SinkTarget | None:
        """The same target, with sinks whose shares live for ten seconds or less; None if shares live for ever, or longer."""
        return None

    def lose_a_row(self, owner: Owner, share: Share[Any]) -> bool:
        """Destroy one of the rows that are staged for this share, and leave the others; False if the target can't lose a part."""
        return False

    def lose(self, owner: Owner, share: Share[Any]) -> None:
        """Destroy what is staged for this share, as an expired transaction or a lost disk would.

        By default whatever has the share's mark is aborted: other shares with the same mark are lost with it. It may be called
        while another process commits, and find that there is nothing to lose any more.
        """
        sink = self.sink()
        sink.abort(owner, [left for left in sink.leftovers(owner) if left.mark == sink.mark(share)])

"""Invariant 5. Unknown is an answer. A lost reply means neither success nor failure. The outcome is looked up in the
target or the ledger. Staged data is deleted only when it is certain that it will never be committed.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.model import slot_sink
from tests.pipeline import Lost, Pipeline, Table, Target, Topic, Transition
from twophase.errors import OutcomeUnknown
from twophase.local_storage import LocalStorage
from twophase.sinks import heap


def _label(value: str | Transition) -> str:
    return value if isinstance(value, str) else f"{value.__module__.rpartition('.')[2]}.{value.__name__}"


LOSSES: list[tuple[str, Transition]] = [
    ("prepare", heap.fence),
    ("prepare", heap.abort),
    ("prepare", heap.look),
    ("run", heap.stage),
    ("commit", heap.look),
    ("commit", heap.commit),
    ("prepare", slot_sink.end),
    ("prepare", slot_sink.look),
    ("run", slot_sink.begin),
    ("run", slot_sink.vote),
    ("commit", slot_sink.look),
    ("commit", slot_sink.end),
]


def run_losing(victim: Pipeline, target: Target, lost: Lost, step: str, transition: Transition) -> None:
    """Run epoch 1, and lose that request, or its reply, in that step."""
    for name in ("prepare", "run", "commit"):
        if name == step:
            target.lose(lost, transition)
        if name == "run":
            victim.run([3], [4])
        else:
            getattr(victim, name)()


@pytest.mark.parametrize("lost", ["request", "reply"])
@pytest.mark.parametrize(("step", "transition"), LOSSES, ids=_label)
def test_invariant_05_whatever_request_or_reply_of_a_target_is_lost_the_epoch_is_there_once(
    both: Pipeline, table: Table, topic: Topic, step: str, transition: Transition, lost: Lost
) -> None:
    both.epoch(0, [1], [2])
    both.log(1)
    both.prepare()
    both.run([3], [4])
    target: Target = table if transition.__module__ == heap.__name__ else topic
    victim = both.restart()
    with pytest.raises(TimeoutError):
        run_losing(victim, target, lost, step, transition)
    assert target.lost == {}
    victim.abort()
    assert {number for number, _ in (*table.visible(), *topic.visible())} <= {0, 1}
    both.restart().finish([3], [4])
    assert table.visible() == topic.visible() == [(0, [1, 2]), (1, [3, 4])]
    assert (table.staged(), topic.staged()) == ([], [])


class LossyStorage(LocalStorage):
    """Loses the replies to the next publications; with `late`, the requests too, until `land`."""

    def __init__(self, *, lost: int, late: bool = False):
        super().__init__()
        self.lost = lost
        self.late = late
        self.on_their_way: list[tuple[str, bytes]] = []

    def publish(self, path: str, data: bytes) -> None:
        if self.lost == 0:
            super().publish(path, data)
            return
        self.lost -= 1
        if self.late:
            self.on_their_way.append((path, data))
        else:
            super().publish(path, data)
        raise TimeoutError("the reply was lost")

    def land(self) -> None:
        for path, data in self.on_their_way:
            with suppress(FileExistsError):
                super().publish(path, data)


def test_invariant_05_a_ledger_record_whose_reply_was_lost_is_found_to_be_mine(
    pipeline: Pipeline, target: Target
) -> None:
    driver = pipeline.restart(storage=LossyStorage(lost=1))
    driver.log(0)
    driver.prepare()
    driver.run([1])
    decider = pipeline.restart(storage=LossyStorage(lost=1))
    decider.coordinator().commit(0, driver.votes)
    assert target.visible() == [(0, [1])]
    assert decider.tail().number == 2


def test_invariant_05_a_decision_that_lands_after_its_time_out_is_carried_out(
    pipeline: Pipeline, target: Target
) -> None:
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1])
    storage = LossyStorage(lost=5, late=True)
    with pytest.raises(OutcomeUnknown):
        pipeline.restart(storage=storage).coordinator().commit(0, pipeline.votes)
    assert target.visible() == []
    assert target.staged() == [(0, 0)], "what may be decided was deleted"
    storage.land()
    assert target.visible() == []
    pipeline.restart().prepare()
    assert target.visible() == [(0, [1])]


def test_invariant_05_a_decision_that_lands_after_the_abort_counts_for_nothing(
    pipeline: Pipeline, target: Target
) -> None:
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1])
    storage = LossyStorage(lost=5, late=True)
    with pytest.raises(OutcomeUnknown):
        pipeline.restart(storage=storage).coordinator().commit(0, pipeline.votes)
    pipeline.abort()
    storage.land()
    assert pipeline.tail().decision is None
    pipeline.restart().finish([2])
    assert target.visible() == [(0, [2])]
    assert target.staged() == []

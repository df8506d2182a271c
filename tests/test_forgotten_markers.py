"""A target that keeps markers for a time only, as Kafka does: a query that pauses for longer goes on, and nothing else does."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.model.slot_sink import SlotHandle, SlotSink
from tests.pipeline import Pipeline, Topic, decided, refused
from twophase.errors import CheckpointMismatch
from twophase.sink import CommitOrder, Marker


class ForgetfulSink(SlotSink):
    """Its target says of every order that it is old enough."""

    def forgets(self, order: CommitOrder[SlotHandle]) -> bool:
        return True


Forgets = Callable[[int, Marker], bool]


def forget(topic: Topic, which: Forgets) -> None:
    markers = topic.state.markers
    topic.state = replace(topic.state, markers=frozenset(m for m in markers if not which(*m)))


def started(tmp_path: Path, sink: type[SlotSink] = ForgetfulSink) -> tuple[Topic, Pipeline]:
    topic = Topic()
    pipeline = Pipeline(tmp_path / "checkpoint", {"s": sink(topic)})
    pipeline.epoch(0, [1], [2], [3])
    pipeline.epoch(1, [4], [5])
    return topic, pipeline


EVERY: dict[str, Forgets] = {
    "all": lambda _slot, _marker: True,
    "of one slot": lambda slot, _marker: slot == 1,
    "the newest, and not those of the epoch before": lambda _slot, marker: marker.epoch.number == 1,
}


@pytest.mark.parametrize("which", EVERY.values(), ids=EVERY)
def test_a_query_whose_last_epoch_spark_has_logged_goes_on(tmp_path: Path, which: Forgets) -> None:
    topic, pipeline = started(tmp_path)
    forget(topic, which)
    again = pipeline.restart()
    again.epoch(2, [6], [7])
    again.epoch(3, [8])
    assert topic.visible() == [(0, [1, 2, 3]), (1, [4, 5]), (2, [6, 7]), (3, [8])]


@pytest.mark.parametrize("which", EVERY.values(), ids=EVERY)
def test_a_target_that_should_remember_is_taken_for_emptied(tmp_path: Path, which: Forgets) -> None:
    topic, pipeline = started(tmp_path, SlotSink)
    forget(topic, which)
    again = pipeline.restart()
    again.log(2)
    with pytest.raises(CheckpointMismatch):
        again.prepare()
    assert topic.visible() == [(0, [1, 2, 3]), (1, [4, 5])]


def test_an_epoch_that_spark_has_not_logged_is_never_taken_for_visible(tmp_path: Path) -> None:
    """Decided, and not known to be committed: the sink is asked, however old it is."""
    topic, pipeline = started(tmp_path)
    pipeline.log(2)
    decided(pipeline, tmp_path, [6], [7])
    forget(topic, EVERY["all"])
    pipeline.restart().finish([6], [7])
    assert topic.visible() == [(0, [1, 2, 3]), (1, [4, 5]), (2, [6, 7])]


def test_an_older_copy_of_the_checkpoint_is_not_let_in(tmp_path: Path) -> None:
    topic, pipeline = started(tmp_path)
    shutil.copytree(pipeline.root, tmp_path / "backup")
    pipeline.epoch(2, [6])
    shutil.rmtree(pipeline.root)
    shutil.copytree(tmp_path / "backup", pipeline.root)
    again = pipeline.restart()
    again.log(2, "other offsets")
    refused(again, topic, "epoch 2")
    forget(topic, lambda _slot, marker: marker.epoch.number < 2)
    refused(again, topic, "epoch 2")


def test_what_is_staged_of_later_epochs_is_swept_as_ever(tmp_path: Path) -> None:
    topic, pipeline = started(tmp_path)
    forget(topic, EVERY["all"])
    pipeline.log(2)
    pipeline.prepare()
    pipeline.run([98], [99])
    again = pipeline.restart()
    again.finish([6], [7])
    assert topic.visible() == [(0, [1, 2, 3]), (1, [4, 5]), (2, [6, 7])]
    assert topic.staged() == []


def test_a_target_that_was_restored_is_not_taken_for_one_that_forgot(tmp_path: Path) -> None:
    """The markers of an older epoch are in their slots again, and the rows of the newest are gone: forgetting can't do that."""
    topic, pipeline = started(tmp_path)
    restored = topic.state
    pipeline.epoch(2, [6], [7])
    topic.state = restored
    again = pipeline.restart()
    again.log(3)
    refused(again, topic)


def test_a_decision_that_spark_logged_before_its_commit_is_carried_out(tmp_path: Path) -> None:
    """An error was swallowed around exactly_once. The shares are alive, and the markers of the epoch before are where they were."""
    topic, pipeline = started(tmp_path)
    pipeline.log(2)
    decided(pipeline, tmp_path, [6], [7])
    pipeline.log_commit()
    pipeline.restart().epoch(3, [8])
    assert topic.visible() == [(0, [1, 2, 3]), (1, [4, 5]), (2, [6, 7]), (3, [8])]


def test_handles_of_what_is_visible_are_not_read(tmp_path: Path) -> None:
    """A release that has changed them must be able to go on from an older one's epochs."""

    class NewerHandle(SlotHandle):
        version = 2

    class NewerSink(ForgetfulSink):
        handle_type = NewerHandle

    topic, pipeline = started(tmp_path)
    pipeline.restart(sinks={"s": NewerSink(topic)}).log(2)
    pipeline.restart(sinks={"s": NewerSink(topic)}).prepare()
    assert topic.visible() == [(0, [1, 2, 3]), (1, [4, 5])]

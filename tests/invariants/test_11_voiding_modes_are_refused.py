"""Invariant 11. Modes that would void this are refused. A missing vote (`None`) in commit is a protocol violation; in
abort it is ordinary. Prepare refuses an epoch N unless `offsets/N` is there and `commits/N` is not. Together these
refuse Spark's continuous trigger.
"""

from __future__ import annotations

import pytest

from tests.pipeline import Pipeline, Target
from twophase.errors import ProtocolViolation


def test_invariant_11_prepare_refuses_an_epoch_that_is_not_logged(pipeline: Pipeline, target: Target) -> None:
    pipeline.epoch(0, [1])
    with pytest.raises(ProtocolViolation, match=r"not logged.*continuous trigger"):
        pipeline.coordinator().prepare(1)
    assert target.visible() == [(0, [1])]


def test_invariant_11_prepare_refuses_an_epoch_that_is_logged_as_committed(pipeline: Pipeline, target: Target) -> None:
    pipeline.epoch(0, [1])
    with pytest.raises(ProtocolViolation, match=r"logged as committed.*continuous trigger"):
        pipeline.restart().prepare()
    assert target.visible() == [(0, [1])]


@pytest.mark.parametrize("votes", [[None], [None, None]], ids=["one", "two"])
def test_invariant_11_a_missing_message_in_commit_is_a_protocol_violation(
    pipeline: Pipeline, target: Target, votes: list[None]
) -> None:
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1])
    for messages in (votes, [*pipeline.votes, None], [None, *pipeline.votes]):
        with pytest.raises(ProtocolViolation, match="continuous trigger"):
            pipeline.commit(messages)
        assert target.visible() == []
        assert target.staged() == [(0, 0)]
    assert pipeline.tail().decision is None
    pipeline.commit()
    assert target.visible() == [(0, [1])]


def test_invariant_11_missing_messages_in_abort_are_ordinary(pipeline: Pipeline, target: Target) -> None:
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1], [2])
    pipeline.abort([])
    pipeline.abort([None, None])
    assert target.staged() == [(0, 0), (0, 1)], "whose generation asks could not be known"
    pipeline.abort([None, pipeline.votes[1]])
    assert target.staged() == []
    assert target.visible() == []

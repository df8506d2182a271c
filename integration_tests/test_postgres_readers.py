"""A reader that asks as fast as it can while epochs are staged, lost, committed and swept, in each mode."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from integration_tests.postgres_tables import PreparedUnderTest, TableUnderTest, VersionsUnderTest
from twophase.testing.servers.server import Server
from twophase.testing.sink_steps import SinkSteps

pytestmark = pytest.mark.servers

EPOCHS, SLOTS, ROWS = 12, 3, 500
BY_SLOT = 1000
"""A row's number is its epoch and slot, times this, and its place in the share."""

Seen = dict[int, int]
"""How many rows of which epoch and slot."""


class Reader:
    """Any program that reads the table, at some isolation level."""

    def __init__(self, target: TableUnderTest, level: psycopg.IsolationLevel):
        self._target, self._level = target, level
        self._stop = threading.Event()
        self.reads: list[Seen] = []

    @contextmanager
    def reading(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(30)

    def _run(self) -> None:
        asked = f"SELECT value / {BY_SLOT}, count(*) FROM {self._target.table} GROUP BY 1".encode()
        with psycopg.connect(self._target.dsn) as connection:
            connection.isolation_level = self._level
            while not self._stop.is_set():
                seen: Seen = dict(connection.execute(asked).fetchall())
                connection.rollback()
                if not self.reads or seen != self.reads[-1]:
                    self.reads.append(seen)


def numbers(epoch: int, slot: int) -> range:
    first = (epoch * SLOTS + slot) * BY_SLOT
    return range(first, first + ROWS)


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.READ_COMMITTED, psycopg.IsolationLevel.SERIALIZABLE])
@pytest.mark.parametrize("kind", [TableUnderTest, VersionsUnderTest, PreparedUnderTest])
def test_a_reader_that_polls_never_sees_part_of_an_epoch_and_nothing_of_a_loser(
    postgres_server: Server[str], kind: type[TableUnderTest], level: psycopg.IsolationLevel
) -> None:
    target = kind(postgres_server.endpoint)
    steps, reader = SinkSteps(target), Reader(target, level)
    steps.epoch(0, *(numbers(0, slot) for slot in range(SLOTS)))
    with reader.reading():
        for epoch in range(1, EPOCHS):
            steps.share(steps.prepare(epoch), 0, numbers(99, 0))  # by a driver that dies
            steps.sweep()
            plan = steps.prepare(epoch)
            steps.share(plan, 1, numbers(98, 1))  # by a twin that loses
            shares = [steps.share(plan, slot, numbers(epoch, slot)) for slot in range(SLOTS)]
            steps.commit(steps.order(plan, *shares))
            steps.sweep()
    assert steps.visible() == [
        number for epoch in range(EPOCHS) for slot in range(SLOTS) for number in numbers(epoch, slot)
    ]
    for before, seen in zip([{}, *reader.reads], reader.reads, strict=False):
        assert set(seen.values()) == {ROWS}, "a share is there in part"
        assert before.keys() <= seen.keys(), "what was visible is gone"
        if steps.sink().capabilities.atomic:
            assert set(seen) == set(range(len(seen))), "a later epoch is there and not an earlier one"
            assert len(seen) % SLOTS == 0, "an epoch is there in part"
    assert len(reader.reads) > EPOCHS // 2, "the reader was asleep"

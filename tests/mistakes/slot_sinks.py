"""Sinks that commit slot by slot, with a mistake each."""

from __future__ import annotations

from dataclasses import replace

from tests.model.slot_sink import SlotHandle, SlotSink
from twophase.errors import NotCommitted
from twophase.sink import CommitOrder, Outcome


class NamesNoDeadSlots(SlotSink):
    def commit(self, order: CommitOrder[SlotHandle]) -> Outcome:
        try:
            return super().commit(order)
        except NotCommitted as error:
            raise NotCommitted("something expired") from error


class StopsAtTheFirstDeadSlot(SlotSink):
    def commit(self, order: CommitOrder[SlotHandle]) -> Outcome:
        for share in order.shares:
            super().commit(replace(order, shares=(share,)))
        return Outcome.COMMITTED

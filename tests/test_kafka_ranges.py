"""What a consumer takes of the messages that the library hands over: each offset of the range once, in their order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from twophase.clients.kafka.partition import Partition
from twophase.errors import DataLost
from twophase.sources.kafka.columns import Messages
from twophase.sources.kafka.consumer import _judged
from twophase.sources.kafka.split import KafkaSplit

SPLIT = KafkaSplit(Partition("orders", 0), 100, 200)
RECORD, END, GONE = 0, -191, 1
ERROR_WORD, OFFSET_WORD, WORDS = 0, 7, 16


def taken(position: int, *handed: tuple[int, int]) -> tuple[int, Sequence[int]]:
    """Where the range stands after messages of these codes and offsets, and the offsets that are taken."""
    structures = np.zeros((len(handed), WORDS), np.uint64)
    for structure, (code, offset) in zip(structures, handed, strict=True):
        structure[ERROR_WORD] = np.uint64(np.uint32(code & 0xFFFF_FFFF))
        structure[OFFSET_WORD] = offset
    pointers = np.array([structure.ctypes.data for structure in structures], np.uint64)
    position, records = _judged(SPLIT, position, Messages(pointers))
    return position, records.offsets().tolist()


def records(*offsets: int) -> list[tuple[int, int]]:
    return [(RECORD, offset) for offset in offsets]


def test_records_of_the_range_are_taken_in_their_order() -> None:
    assert taken(100, *records(100, 101, 105)) == (106, [100, 101, 105])


def test_a_record_that_is_given_again_is_not_taken_again() -> None:
    """As after a broker's restart: back to the beginning, some records, and on from where it was."""
    assert taken(104, *records(100, 101)) == (104, [])
    assert taken(104, *records(103, 104, 102, 103, 105)) == (106, [104, 105])


def test_a_record_outside_the_range_is_not_taken() -> None:
    assert taken(100, *records(98, 99, 100, 199, 200, 201)) == (202, [100, 199])


def test_records_before_the_end_of_the_partition_are_taken() -> None:
    assert taken(100, *records(100, 101), (END, 150)) == (150, [100, 101])


def test_the_end_of_a_partition_before_what_was_read_moves_nothing() -> None:
    assert taken(120, (END, 110)) == (120, [])


def test_no_message_that_is_a_record_moves_nothing() -> None:
    assert taken(100, (END, 100)) == (100, [])


def test_an_offset_that_is_gone_is_an_error() -> None:
    with pytest.raises(DataLost, match="100 to 199"):
        taken(100, (GONE, 100))

"""The loops of the checksum in C: there where they can be built, equal to those in numpy, and safe from wrong offsets."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from tests.test_checksum import PROPERTY, Rows, batch_of, tables, value_of
from twophase import checksum

NATIVE: Any = checksum.native
built = pytest.mark.skipif(NATIVE is None, reason="twophase was installed where there was no compiler")
WORDS = np.zeros(2 * 8, np.uint64)


def test_they_are_there_wherever_they_can_be_built() -> None:
    assert (NATIVE is not None) == (shutil.which("cc") is not None)


def in_numpy(*batches: Any) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksum, "native", None)
        return value_of(*batches)


@built
@PROPERTY
@given(tables(min_rows=1))
def test_numpy_gives_the_same(table: Rows) -> None:
    assert value_of(table.batch) == in_numpy(table.batch)


@built
def test_numpy_gives_the_same_for_values_of_every_length_around_a_block() -> None:
    batch = batch_of(pa.array([bytes(range(length)) for length in range(200)], pa.binary()))
    for start in (0, 1, 63, 64, 65):
        assert value_of(batch.slice(start)) == in_numpy(batch.slice(start))


@built
@pytest.mark.parametrize("offsets", [[0, 4], [-1, 2], [2, 1], [0, 1 << 62]], ids=str)
def test_a_value_beyond_its_data_is_refused_and_not_read(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="value 0 does not lie within"):
        NATIVE.hash_bytes(
            b"abc", np.array(offsets, np.int64), WORDS, WORDS, WORDS[:2], WORDS[:2], np.zeros(2, np.uint64)
        )


@built
def test_an_array_of_another_size_is_refused() -> None:
    offsets, out = np.array([0, 1], np.int64), np.zeros(2, np.uint64)
    with pytest.raises(ValueError, match="out: 8 bytes, and not 2 words"):
        NATIVE.hash_bytes(b"abc", offsets, WORDS, WORDS, WORDS[:2], WORDS[:2], out[:1])
    with pytest.raises(ValueError, match="lows: 16 bytes, and not 16 words"):
        NATIVE.hash_bytes(b"abc", offsets, WORDS[:2], WORDS, WORDS[:2], WORDS[:2], out)
    with pytest.raises(ValueError, match="hashes: 8 bytes, and not 2 words"):
        NATIVE.mix_into(out, out[:1].copy())

"""Decimals as PostgreSQL's numeric: digits to the base of 10,000, aligned at the decimal point.

All values of a column get as many digits as its precision may need: the server drops zeros at both ends. So a column is a matrix,
and its arithmetic is numpy's. A number of 128 bits, times up to 1,000 for the alignment, is kept as five limbs of 32 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from twophase.sinks.postgres.binary_copy import Column, Matrix, beside, big_endian

_BASE, _DIGITS = 10_000, 4
_LIMBS = 5
_LIMB_BITS = np.uint64(32)
_LIMB_MASK = np.uint64(0xFFFFFFFF)

Limbs = list[np.ndarray[Any, np.dtype[np.uint64]]]


def numeric(column: Column) -> Matrix:
    """Of an array of decimal128; what is null gets any value."""
    kind = column.type
    after = -(-max(kind.scale, 0) // _DIGITS)
    before = max(-(-(kind.precision - kind.scale) // _DIGITS), 1)
    negative, limbs = _magnitudes(column)
    _multiply(limbs, 10 ** (after * _DIGITS - kind.scale))
    digits = [_divide(limbs) for _ in range(before + after)]
    head = (before + after).to_bytes(2, "big") + (before - 1).to_bytes(2, "big")
    sign = big_endian(np.where(negative, 0x4000, 0), "i2")
    scale = max(kind.scale, 0).to_bytes(2, "big")
    return beside([head, sign, scale, *(big_endian(each, "i2") for each in reversed(digits))], len(column))


def _magnitudes(column: Column) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], Limbs]:
    """Which are below zero, and all without their sign, the lowest limb first."""
    _, data = column.buffers()
    words = np.frombuffer(data, np.uint32).reshape(-1, 4)[column.offset : column.offset + len(column)].astype(np.uint64)
    negative = words[:, 3] >> np.uint64(31) == 1
    limbs: Limbs = []
    carry = negative.astype(np.uint64)
    for at in range(4):
        # Two's complement: all bits turned, plus one.
        limb = np.where(negative, words[:, at] ^ _LIMB_MASK, words[:, at]) + carry
        limbs.append(limb & _LIMB_MASK)
        carry = limb >> _LIMB_BITS
    return negative, [*limbs, np.zeros(len(column), np.uint64)]


def _multiply(limbs: Limbs, factor: int) -> None:
    carry = np.zeros_like(limbs[0])
    for at in range(_LIMBS):
        product = limbs[at] * np.uint64(factor) + carry
        limbs[at] = product & _LIMB_MASK
        carry = product >> _LIMB_BITS


def _divide(limbs: Limbs) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Divide in place by the base; the remainder is the next digit from the right."""
    rest = np.zeros_like(limbs[0])
    for at in reversed(range(_LIMBS)):
        whole = (rest << _LIMB_BITS) | limbs[at]
        limbs[at], rest = whole // np.uint64(_BASE), whole % np.uint64(_BASE)
    return rest

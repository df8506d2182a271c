"""What is beside the key, as bytes: one column after the other, each with a byte that says whether there is a value.

::

    fixed width     flag │ as Arrow has it (zeros for a null)
    texts, bytes    flag │ length (4 bytes) │ bytes
    lists, maps     flag │ count (4 bytes) │ element, element, …        (a map is a list of pairs)
    structs         flag │ field, field, …

Whole columns are written and read at once; only lists whose elements are of no fixed width are read element by element, each step
for all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from twophase.state.byte_rows import (
    Column,
    Cursor,
    bitmap,
    buffer_of,
    bytes_of,
    fixed_bytes,
    is_valid,
    joined,
    of_matrix,
    of_pieces,
)
from twophase.state.key_encoding import as_bytes_type
from twophase.state.xx_hash import is_bytes


def is_storable(kind: Any) -> bool:
    """Whether a column of this type can be a value."""
    if _is_list(kind) or pa.types.is_fixed_size_list(kind):
        return is_storable(kind.value_type)
    if pa.types.is_map(kind):
        return is_storable(kind.key_type) and is_storable(kind.item_type)
    if pa.types.is_struct(kind):
        return all(is_storable(field.type) for field in kind)
    return pa.types.is_boolean(kind) or pa.types.is_null(kind) or is_bytes(kind) or _is_fixed(kind)


def encode_rows(columns: Sequence[Column], rows: int) -> Column:
    return joined([_encode(column) for column in columns], rows)


def decode_rows(rows: Column, kinds: Sequence[pa.DataType]) -> list[Column]:
    cursor = Cursor.at_start(rows)
    return [_decode(kind, cursor) for kind in kinds]


def _is_fixed(kind: Any) -> bool:
    return (
        pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind)
    ) and not pa.types.is_boolean(kind)


def _is_list(kind: Any) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _width(kind: Any) -> int | None:
    """Of the encoding, if it is the same for every value."""
    if pa.types.is_null(kind):
        return 1
    if pa.types.is_boolean(kind):
        return 2
    if pa.types.is_struct(kind):
        widths = [_width(field.type) for field in kind]
        return None if None in widths else 1 + sum(width or 0 for width in widths)
    return 1 + kind.bit_width // 8 if _is_fixed(kind) else None


# ---- writing ----


def _encode(column: Column) -> Column:
    kind, rows = column.type, len(column)
    flags = is_valid(column).astype(np.uint8).reshape(-1, 1)
    if pa.types.is_null(kind):
        return of_matrix(flags)
    if pa.types.is_boolean(kind):
        return of_matrix(np.hstack([flags, np.asarray(pc.fill_null(column, False)).astype(np.uint8).reshape(-1, 1)]))
    if _is_fixed(kind):
        return of_matrix(np.hstack([flags, fixed_bytes(column)]))
    if is_bytes(kind):
        data, starts, lengths = bytes_of(column)
        return joined([_counted(flags, lengths), of_pieces(data, starts, lengths)], rows)
    if pa.types.is_struct(kind):
        return joined([of_matrix(flags), *map(_encode, column.flatten())], rows)
    return _encode_list(column, flags)


def _encode_list(column: Column, flags: npt.NDArray[np.uint8]) -> Column:
    counts = np.where(flags.ravel() != 0, np.asarray(pc.fill_null(_lengths(column), 0)), 0).astype(np.int64)
    elements = _encode(_elements(column))
    data, starts, lengths = bytes_of(elements)
    bounds = np.zeros(len(elements) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    ends = np.cumsum(counts)
    begins = ends - counts
    origin = starts[0] if len(starts) else 0
    pieces = of_pieces(data, bounds[begins] + origin, bounds[ends] - bounds[begins])
    return joined([_counted(flags, counts), pieces], len(column))


def _lengths(column: Column) -> Any:
    if not pa.types.is_map(column.type):
        return pc.list_value_length(column)
    offsets = column.offsets.to_numpy()
    return pa.array(np.diff(offsets), mask=~is_valid(column))


def _elements(column: Column) -> Column:
    """Those of all rows that are not null, in their order."""
    if not pa.types.is_map(column.type):
        return column.flatten()
    as_list = pa.list_(pa.struct([pa.field("key", column.type.key_type), pa.field("value", column.type.item_type)]))
    validity, offsets = column.buffers()[:2]
    pairs = pa.StructArray.from_arrays([column.keys, column.items], fields=list(as_list.value_type))
    # `keys` and `items` are those of the whole array, whatever slice of it this is.
    whole: Column = pa.Array.from_buffers(
        as_list, len(column), [validity, offsets], offset=column.offset, null_count=column.null_count, children=[pairs]
    )
    return whole.flatten()


def _counted(flags: npt.NDArray[np.uint8], counts: npt.NDArray[np.int64]) -> Column:
    return of_matrix(np.hstack([flags, counts.astype("<u4").view(np.uint8).reshape(-1, 4)]))


# ---- reading ----


def _decode(kind: Any, cursor: Cursor) -> Column:
    if len(cursor) == 0:
        return pa.array([], kind)
    valid = cursor.take_flags()
    rows = len(valid)
    if pa.types.is_null(kind):
        return pa.nulls(rows)
    if pa.types.is_boolean(kind):
        return pa.array(cursor.take(1).ravel() != 0, mask=~valid)
    if _is_fixed(kind):
        data = buffer_of(cursor.take(kind.bit_width // 8))
        return pa.Array.from_buffers(kind, rows, [bitmap(valid), data])
    if is_bytes(kind):
        return as_bytes_type(cursor.take_pieces(cursor.take_lengths()), kind, valid)
    if pa.types.is_struct(kind):
        children = [_decode(field.type, cursor) for field in kind]
        return pa.Array.from_buffers(kind, rows, [bitmap(valid)], children=children)
    return _decode_list(kind, cursor, valid)


def _decode_list(kind: Any, cursor: Cursor, valid: npt.NDArray[np.bool_]) -> Column:
    counts = cursor.take_lengths()
    if pa.types.is_map(kind):
        element: pa.DataType = pa.struct([pa.field("key", kind.key_type, nullable=False), kind.item_field])
    else:
        element = kind.value_type
    elements = _decode_elements(element, cursor, counts)
    if pa.types.is_fixed_size_list(kind):
        return _fixed_size_list(kind, elements, valid)
    wide = pa.types.is_large_list(kind)
    offsets = np.zeros(len(valid) + 1, "<i8" if wide else "<i4")
    np.cumsum(counts, out=offsets[1:])
    return pa.Array.from_buffers(kind, len(valid), [bitmap(valid), buffer_of(offsets)], children=[elements])


def _fixed_size_list(kind: Any, elements: Column, valid: npt.NDArray[np.bool_]) -> Column:
    """A null has no elements in its encoding, and room for them in the array."""
    size = kind.list_size
    index = np.full((len(valid), size), -1, np.int64)
    index[valid] = np.arange(valid.sum() * size).reshape(-1, size)
    flat = index.ravel()
    spread = elements.take(pa.array(flat, mask=flat < 0))
    return pa.Array.from_buffers(kind, len(valid), [bitmap(valid)], children=[spread])


def _decode_elements(kind: Any, cursor: Cursor, counts: npt.NDArray[np.int64]) -> Column:
    total, width = int(counts.sum()), _width(kind)
    begins = np.cumsum(counts) - counts
    if width is not None:
        within = np.arange(total) - np.repeat(begins, counts)
        each = Cursor(cursor.data, np.repeat(cursor.positions, counts) + within * width)
        cursor.positions = cursor.positions + counts * width
        return _decode(kind, each)
    found: list[Column] = [pa.array([], kind)]
    places = [np.zeros(0, np.int64)]
    for number in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > number)
        each = Cursor(cursor.data, cursor.positions[rows])
        found.append(_decode(kind, each))
        cursor.positions[rows] = each.positions
        places.append(begins[rows] + number)
    order = np.argsort(np.concatenate(places), kind="stable")
    together: Column = pa.concat_arrays(found)
    return together.take(pa.array(order))

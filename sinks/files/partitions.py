"""partitionBy: which folder each row goes to, spelled as Spark spells it.

A batch is cut into one batch a folder without a loop over its rows: each partition column becomes dictionary codes, the codes
of all columns become one number a row, and rows are taken by it, in their order. Only distinct values are turned into text.

How a folder is spelled is in twophase/partition_folder.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from pyarrow import types

from twophase.json_lines import require_writable_years
from twophase.partition_folder import component

pc: Any = pyarrow.compute  # the stubs reject what the functions take


def split(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows for each folder, without the partition columns; every part has memory of its own."""
    if batch.num_rows == 0:
        return
    rest = batch.drop_columns(list(columns))
    number, folders = _numbered(batch, columns)
    order = np.argsort(number, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(number[order])) + 1, len(order))
    start = 0
    for end in ends.tolist():
        # `take` copies. A slice would keep its whole batch in memory for as long as one of its parts is buffered.
        yield folders[number[order[start]]], rest.take(order[start:end])
        start = end


def _numbered(batch: pa.RecordBatch, columns: Sequence[str]) -> tuple[np.ndarray[Any, Any], list[str]]:
    """A number for each row, and the folder of each number."""
    number = np.zeros(batch.num_rows, dtype=np.int64)
    folders = [""]
    for column in columns:
        texts = _texts(batch.column(column)).dictionary_encode(null_encoding="encode")
        assert isinstance(texts, pa.DictionaryArray)
        values = texts.dictionary.to_pylist()
        both = number * len(values) + texts.indices.to_numpy()
        # Numbered anew after each column, so that the product of many columns can't overflow.
        distinct, number = np.unique(both, return_inverse=True)
        before, now = np.divmod(distinct, len(values))
        pairs = zip(before.tolist(), now.tolist(), strict=True)
        folders = [f"{folders[b]}{component(column, values[n])}/" for b, n in pairs]
    return number, [folder.rstrip("/") for folder in folders]


def _texts(array: pa.Array[Any]) -> Any:
    """Each value as Spark's cast to string has it."""
    if types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    require_writable_years(array)
    if not types.is_timestamp(array.type):
        return array.cast(pa.string())
    # Spark reads the text back in the session's time zone, which is the one that it hands timestamps over in.
    local = pc.local_timestamp(array) if array.type.tz is not None else array
    texts = local.cast(pa.string())
    if array.type.unit == "s":
        return texts
    return pc.utf8_rtrim(pc.utf8_rtrim(texts, characters="0"), characters=".")

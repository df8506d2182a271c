"""`writeStream.partitionBy` for our formats: Spark 4.3 does not hand it to Python sinks, and says nothing.

A pipeline that changes nothing but its format would silently lose its partitioning. So `register` makes `partitionBy` leave
an option beside what it did before; other formats do not look at it.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Mapping
from typing import Any

from twophase.errors import OptionError

_KEY = "twophase.partitionBy"
_OPTION = "partitionBy"


def carry_partition_by(*, connect: bool) -> None:
    """From now on `partitionBy` tells our formats which columns it was given; a session of Spark Connect has its own writer."""
    module = "pyspark.sql.connect.streaming.readwriter" if connect else "pyspark.sql.streaming.readwriter"
    writer: Any = importlib.import_module(module).DataStreamWriter
    original = writer.partitionBy
    if getattr(original, "carries_columns", False):
        return

    @functools.wraps(original)
    def partition_by(self: Any, *columns: Any) -> Any:
        names = columns[0] if len(columns) == 1 and isinstance(columns[0], list | tuple) else columns
        return original(self, *columns).option(_KEY, json.dumps(list(names)))

    partition_by.carries_columns = True  # type: ignore[attr-defined]
    writer.partitionBy = partition_by


def with_partition_by(options: Mapping[str, str]) -> dict[str, str]:
    """The options, with what `partitionBy` was given as the option of that name."""
    rest = {key: value for key, value in options.items() if key.lower() != _KEY.lower()}
    carried = next((value for key, value in options.items() if key.lower() == _KEY.lower()), None)
    if carried is None:
        return rest
    columns = json.loads(carried)
    problem = None
    if any("," in column for column in columns):
        problem = f"partitionBy has a column with a comma in its name ({columns}), which can't be: rename it"
    elif any(key.lower() == _OPTION.lower() for key in rest):
        problem = "partitionBy is given both as an option and by the method of that name: keep one"
    if problem is not None:
        raise OptionError(problem, problems=[problem])
    return rest | {_OPTION: ",".join(columns)}

"""`writeStream.partitionBy` and `clusterBy` for our formats: Spark 4.3 does not hand them to Python sinks, and says nothing.

A pipeline that changes nothing but its format would silently lose its partitioning. So `register` makes both methods leave
an option beside what they did before; other formats do not look at it. `clusterBy` is then refused: no target can do it.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Mapping
from typing import Any

from twophase.errors import OptionError

_METHODS = ("partitionBy", "clusterBy")
_OPTION, _REFUSED = _METHODS


def carry_partition_by(*, connect: bool) -> None:
    """From now on both methods tell our formats which columns they were given; a session of Spark Connect has its own writer."""
    module = "pyspark.sql.connect.streaming.readwriter" if connect else "pyspark.sql.streaming.readwriter"
    writer: Any = importlib.import_module(module).DataStreamWriter
    for method in _METHODS:
        original = getattr(writer, method)
        if not getattr(original, "carries_columns", False):
            setattr(writer, method, _carrying(original, method))


def _carrying(original: Any, method: str) -> Any:
    @functools.wraps(original)
    def carrying(self: Any, *columns: Any) -> Any:
        names = columns[0] if len(columns) == 1 and isinstance(columns[0], list | tuple) else columns
        return original(self, *columns).option(_key(method), json.dumps(list(names)))

    carrying.carries_columns = True  # type: ignore[attr-defined]
    return carrying


def _key(method: str) -> str:
    return f"twophase.{method}"


def with_partition_by(options: Mapping[str, str]) -> dict[str, str]:
    """The options, with what `partitionBy` was given as the option of that name."""
    keys = {_key(method).lower(): method for method in _METHODS}
    carried = {keys[key.lower()]: json.loads(value) for key, value in options.items() if key.lower() in keys}
    rest = {key: value for key, value in options.items() if key.lower() not in keys}
    columns = carried.get(_OPTION, [])
    problem = None
    if _REFUSED in carried:
        problem = f"clusterBy ({', '.join(carried[_REFUSED])}) is not supported: leave it out, or use partitionBy"
    elif any("," in column for column in columns):
        problem = f"partitionBy has a column with a comma in its name ({columns}), which can't be: rename it"
    elif _OPTION in carried and any(key.lower() == _OPTION.lower() for key in rest):
        problem = "partitionBy is given both as an option and by the method of that name: keep one"
    if problem is not None:
        raise OptionError(problem, problems=[problem])
    return rest | {_OPTION: ",".join(columns)} if _OPTION in carried else rest

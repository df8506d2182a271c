"""Whether rows fit a table: its form, its columns, and what a file format can hold.

Pure: the table's form and the rows' schema in, the form after the epoch out; or one SchemaMismatch with a sentence for each
column that does not fit. Columns may be added (`add`, the default), may not change at all (`refuse`), or may do as they like
(`any`: then readers must cope with a column of two types).

Two types are the same if a reader can't tell them apart: nullability, metadata, 32- or 64-bit offsets and the name of a time zone
do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute
from pyarrow import types

from twophase.errors import SchemaMismatch
from twophase.file_table import TableForm
from twophase.tagged_struct import spark_type_of

pc: Any = pyarrow.compute  # the stubs reject what the functions take

SchemaChange = Literal["add", "refuse", "any"]
EPOCH_COLUMN = "epoch"
DEEPEST = 32
"""Arrow reads no schema, and no parquet file, that is nested a hundred levels deep; a list or a map counts for several."""

_Holds = Callable[[pa.DataType], bool]


def after(table: TableForm | None, rows: TableForm, change: SchemaChange) -> TableForm:
    """The form of the table after rows of this form are in it; SchemaMismatch if they don't fit.

    Parameters
    ----------
    table:
        The form so far; None for a new table.
    rows:
        What the sink is set to, with the schema of the rows; without one there is nothing to check yet.
    """
    problems = [] if table is None else list(_differs(table, rows))
    if rows.schema is not None:
        problems += _unfit(rows, rows.schema)
    known = None if table is None else table.schema
    if known is not None and rows.schema is not None:
        problems += _respelled(known, rows.schema)
    if known is not None and rows.schema is not None and change != "any":
        problems += _changed(known, rows.schema, change, ordered=rows.file_format == "csv")
    if problems:
        raise SchemaMismatch("the rows do not fit the table: " + "; ".join(problems))
    return TableForm(rows.file_format, rows.partition_by, merged(known, rows.schema))


def merged(known: pa.Schema | None, new: pa.Schema | None) -> pa.Schema | None:
    """Every column of both: the known ones first, each with its newest type."""
    if new is None:
        return known
    fields = {field.name: field for field in known or ()}
    for field in new.remove_metadata():
        before = fields.get(field.name)
        nullable = field.nullable or (known is not None and (before is None or before.nullable))
        fields[field.name] = field.remove_metadata().with_nullable(nullable)
    return pa.schema(list(fields.values()))


def spelled(partition_by: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Partition columns as the columns spell them: found in any case, as Spark finds them by default, if that tells one from
    the others. What is not found stays as it is."""
    found = []
    for name in partition_by:
        alike = [other for other in names if other.lower() == name.lower()]
        found.append(alike[0] if len(alike) == 1 and name not in names else name)
    return tuple(found)


def file_schema(form: TableForm, rows: pa.Schema) -> pa.Schema:
    """What a file holds: partition columns are in its path, as in Spark's files."""
    return pa.schema([field.remove_metadata() for field in rows if field.name not in form.partition_by])


def same_type(one: pa.DataType, other: pa.DataType) -> bool:
    return bool(plain(one).equals(plain(other)))


def plain(kind: Any) -> Any:
    """The type without what readers of files can't see."""
    if types.is_dictionary(kind):
        return plain(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return pa.timestamp(kind.unit, None if kind.tz is None else "UTC")
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if _is_list(kind):
        return pa.list_(pa.field("element", plain(kind.value_type)))
    return kind


def _differs(table: TableForm, rows: TableForm) -> Iterator[str]:
    if table.file_format != rows.file_format:
        yield f"fileFormat is {rows.file_format}, and the table's files are {table.file_format}"
    if table.partition_by != rows.partition_by:
        alike = [name.lower() for name in table.partition_by] == [name.lower() for name in rows.partition_by]
        # How the next epoch's manifest is found is told by the last one: the spelling stays, also of a table without rows.
        hint = ": name the column as the table does, with withColumnRenamed or in a select" if alike else ""
        yield f"partitionBy is {_listed(rows.partition_by)}, and the table is partitioned by {_listed(table.partition_by)}{hint}"


def _unfit(form: TableForm, schema: pa.Schema) -> Iterator[str]:
    """What no table of this form can hold, whatever it has so far."""
    folded = Counter(name.lower() for name in schema.names)
    for name in sorted(name for name, count in folded.items() if count > 1):
        yield f"there are several columns named {name!r} (readers do not tell upper from lower case)"
    for name in schema.names:
        if name.lower() == EPOCH_COLUMN:
            yield f"a column can't be named {name!r}: readers get that one from the folders epoch=0, epoch=1, …"
    for name in form.partition_by:
        if name not in schema.names:
            yield f"the partition column {name!r} is not among the columns {', '.join(schema.names)}"
        elif name.startswith(("_", ".")):
            yield f"the column {name!r} can't be a partition column: many readers ignore folders whose names begin like that"
        elif not _can_be_folder(schema.field(name).type):
            yield f"the column {name!r} can't be a partition column, because it is {schema.field(name).type}"
        elif (zone := _unknown_zone(schema.field(name).type)) is not None:
            yield (
                f"the column {name!r} can't be a partition column while the session's time zone is {zone!r}, which only Java "
                "knows: set spark.sql.session.timeZone to a region such as Asia/Shanghai, or to UTC"
            )
    data = [field for field in schema if field.name not in form.partition_by]
    if not data:
        yield "there is no column besides the partition columns" if form.partition_by else "there is no column"
    for field in data:
        if _depth(field.type) > DEEPEST:
            yield f"the column {field.name!r} is nested more than {DEEPEST} levels deep, which readers of files can't take"
            continue
        for path, kind in _leaves(field.name, field.type):
            if spark_type := spark_type_of(kind):
                yield f"the column {path!r} is a {spark_type}, which a Python sink gets as bytes, and no reader would know it again"
            if alike := _alike_fields(kind):
                yield f"the column {path!r} has several fields named {alike} (readers do not tell upper from lower case)"
            if not _HOLDS[form.file_format](kind):
                yield f"the column {path!r} is {kind}, which {form.file_format} files can't hold"


def _respelled(known: pa.Schema, new: pa.Schema) -> Iterator[str]:
    """Whatever may change: a table with `id` and `ID` can't be read."""
    spelled_before = {name.lower(): name for name in known.names}
    for name in new.names:
        before = spelled_before.get(name.lower(), name)
        if name not in known.names and before != name:
            yield f"the column {name!r} is {before!r} in the table, and readers do not tell upper from lower case: rename it"


def _changed(known: pa.Schema, new: pa.Schema, change: SchemaChange, *, ordered: bool) -> Iterator[str]:
    folded = {name.lower() for name in new.names}
    for field in known:
        if field.name not in new.names and field.name.lower() in folded:
            continue  # told by _respelled
        if field.name not in new.names:
            yield f"the column {field.name!r} was dropped"
        elif not same_type(field.type, new.field(field.name).type):
            yield f"the column {field.name!r} was {field.type} and is now {new.field(field.name).type}"
    added = [name for name in new.names if name not in known.names]
    if added and change == "refuse":
        yield f"columns were added ({', '.join(added)}), and schemaChange is refuse"
    elif ordered and known.names != new.names[: len(known.names)] and set(known.names) <= set(new.names):
        yield "csv files have their columns by position, so the table's columns must come first and in their order"


def _leaves(path: str, kind: Any) -> Iterator[tuple[str, pa.DataType]]:
    """A type and all types within it, each with the path of its field."""
    yield path, kind
    if types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{path}.{field.name}", field.type)
    elif types.is_map(kind):
        yield from _leaves(f"{path}.key", kind.key_type)
        yield from _leaves(f"{path}.value", kind.item_type)
    elif _is_list(kind):
        yield from _leaves(f"{path}.element", kind.value_type)
    elif types.is_dictionary(kind):
        yield from _leaves(path, kind.value_type)


def _alike_fields(kind: Any) -> str:
    counts = Counter(field.name.lower() for field in kind) if types.is_struct(kind) else Counter[str]()
    return ", ".join(repr(name) for name, count in sorted(counts.items()) if count > 1)


def _unknown_zone(kind: Any) -> str | None:
    """The time zone of this type, if nobody here can tell what time it is there. Spark takes more names than Python and Arrow."""
    if not types.is_timestamp(kind) or kind.tz is None:
        return None
    try:
        pc.local_timestamp(pa.array([0], kind))
    except pa.ArrowInvalid:
        return str(kind.tz)
    return None


def _depth(kind: Any) -> int:
    """How many types are within each other, at the most. Without recursion: it is asked before anything is known of the type."""
    depth, level = 0, [kind]
    while level:
        depth += 1
        level = [each.field(number).type for each in level for number in range(each.num_fields)]
    return depth


def _is_list(kind: pa.DataType) -> bool:
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _parquet_holds(kind: pa.DataType) -> bool:
    """pyarrow would write a duration as a plain number, and Spark reads no column without a type or without fields."""
    empty = types.is_struct(kind) and kind.num_fields == 0
    return not (
        types.is_duration(kind) or types.is_interval(kind) or types.is_null(kind) or types.is_union(kind) or empty
    )


def _json_holds(kind: pa.DataType) -> bool:
    return not (types.is_duration(kind) or types.is_interval(kind) or types.is_union(kind))


def _csv_holds(kind: pa.DataType) -> bool:
    binary = types.is_binary(plain(kind)) or types.is_fixed_size_binary(kind)
    return _json_holds(kind) and not (types.is_nested(kind) or binary)


_HOLDS: Mapping[str, _Holds] = {"parquet": _parquet_holds, "json": _json_holds, "csv": _csv_holds}


def _can_be_folder(kind: pa.DataType) -> bool:
    """Types of which one value has one text. A floating-point number has many, and a folder for each is rarely meant."""
    plain_kind = plain(kind)
    return (
        types.is_string(plain_kind)
        or types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
        or types.is_decimal(kind)
    )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) if names else "nothing"

"""Names, options and secrets of PostgreSQL: what can be told without a server."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twophase.clients.postgres.dsn import Dsn
from twophase.clients.postgres.table_name import LONGEST_BYTES, BadName, TableName, quoted
from twophase.errors import OptionError
from twophase.identity import Attempt, Generation, Owner
from twophase.secret import Secret
from twophase.sinks.postgres.control_schema import Place, staging_name
from twophase.sinks.postgres.sink import PostgresSink

PASSWORD = "s3cr%etW0rd"
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=15)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", TableName("public", "orders")),
        ("Sales.Orders", TableName("sales", "orders")),
        ('"Sales"."orders of 2026"', TableName("Sales", "orders of 2026")),
        ('"a ""b"" c"', TableName("public", 'a "b" c')),
        ('sales."a.b"', TableName("sales", "a.b")),
        ("größe", TableName("public", "größe")),
        ('"x"";DROP TABLE t;--"', TableName("public", 'x";DROP TABLE t;--')),
    ],
)
def test_a_name_is_read_as_sql_reads_it(text: str, expected: TableName) -> None:
    assert TableName.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "a.", ".a", "a b", "a;b", 'a"b', '"a', '"a"b', '""', "1a", "a-b", "db.schema.table", '"a\0b"'),
        *("x" * (LONGEST_BYTES + 1), f'"{"漢" * 22}"', "orders; DROP TABLE t"),
    ],
)
def test_what_is_no_name_or_would_be_cut_is_refused(text: str) -> None:
    with pytest.raises(BadName):
        TableName.parse(text)
    with pytest.raises(OptionError, match="table "):
        PostgresSink("postgresql://h/d", text)


@given(schema=NAMES, name=NAMES)
def test_any_name_comes_back_from_its_text_and_is_one_identifier(schema: str, name: str) -> None:
    named = TableName(schema, name)
    if max(len(schema.encode()), len(name.encode())) <= LONGEST_BYTES:
        assert TableName.parse(str(named)) == named
    assert quoted(name)[1:-1].replace('""', "").count('"') == 0


def test_staging_tables_of_different_tables_owners_and_attempts_have_different_names() -> None:
    attempt = Attempt(Generation("l" * 32, 10**18), 2**62, "0123456789ab")
    places = [
        *(Place(TableName("public", "a"), Owner(*owner)) for owner in (("a", "b"), ("a/b", ""), ("A", "b"))),
        Place(TableName("public", "b"), Owner("a", "b")),
    ]
    names = {staging_name(place, each) for place in places for each in (attempt, Attempt(attempt.generation, 1, "x"))}

    assert len(names) == 8
    assert max(map(len, names)) <= LONGEST_BYTES


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://me:{PASSWORD.replace('%', '%25')}@h:99999999/d?nonsense=1",
        f"postgresql://me:{PASSWORD}@h/d",
        f"host=h password={PASSWORD} nonsense",
        f"host=h password '{PASSWORD}'",
        PASSWORD,
    ],
)
def test_a_connection_string_that_can_not_be_read_is_refused_without_a_piece_of_it(dsn: str) -> None:
    with pytest.raises(OptionError) as caught:
        PostgresSink.from_options({"dsn": dsn, "table": "t", "tabel": "t"})

    error: BaseException | None = caught.value
    assert len(caught.value.problems) >= 1
    while error is not None:
        assert "cr%et" not in repr(error)
        assert "W0rd" not in repr(error)
        error = error.__cause__ or error.__context__


def test_a_password_is_nowhere_to_be_seen_and_is_not_written_down() -> None:
    sink = PostgresSink(f"postgresql://me:{PASSWORD.replace('%', '%25')}@db.example:5433/shop", "orders")

    assert sink.describe() is None, "whoever has the ledger would have the password"
    assert sink.target == "postgres db.example:5433/shop public.orders"
    assert PASSWORD not in repr(sink._options) + repr(sink._database) + str(sink.target)
    assert pickle.loads(pickle.dumps(sink))._database.dsn.settings()["password"] == PASSWORD
    assert sink._database.dsn.redacted(f"for {PASSWORD}!") == "for ***!"


def test_a_reference_or_a_string_without_a_password_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_DSN", raising=False)
    by_name = PostgresSink(Secret("env:NO_SUCH_DSN"), '"Sales".orders')
    plain = PostgresSink("postgresql://me@h/d", "orders")

    assert by_name.describe() is not None  # without looking it up: the ledger may be read elsewhere
    for sink, dsn, table in (
        (by_name, "env:NO_SUCH_DSN", '"Sales".orders'),
        (plain, "postgresql://me@h/d", "public.orders"),
    ):
        description = sink.describe()
        assert description is not None
        assert (description.format, description.options["dsn"]) == ("twophase-postgres", dsn)
        again = PostgresSink.from_options(description.options)
        assert (again.target, again.describe()) == (sink.target, description)
        assert table in again.target
    with pytest.raises(OptionError, match="env:NO_SUCH_DSN"):
        Dsn(Secret("env:NO_SUCH_DSN")).settings()


def test_every_wrong_option_is_named_at_once() -> None:
    with pytest.raises(OptionError) as caught:
        PostgresSink.from_options({"table": "t", "mode": "none", "lockTimeoutMs": "1", "nonsense": "x"})

    assert len(caught.value.problems) == 4

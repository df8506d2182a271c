"""The example sink keeps the contract: all that a third party writes to prove a sink."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from examples.sqlite_sink import SqliteSink
from tests.markdown import blocks, section
from twophase.identity import Owner
from twophase.sink import Share
from twophase.testing.sink_suite import SinkSuite, SinkTarget

pytestmark = pytest.mark.kit


class OrdersTable(SinkTarget):
    """A table of a database, made as its owner would make it."""

    arrow_types = ("int8", "int16", "int32", "int64", "string", "large_string", "binary")
    client_errors = (OSError, sqlite3.OperationalError)
    many_slots = many_batches = 100  # each is a transaction, which SQLite syncs to the disk

    def __init__(self, folder: Path):
        self.path = str(folder / "orders.db")
        self.ask("CREATE TABLE orders (value INTEGER, typed)")

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as database:
            return database.execute(sql).fetchall()

    def sink(self) -> SqliteSink:
        return SqliteSink(self.path, "orders")

    def read(self) -> Sequence[dict[str, Any]]:
        return [{"value": value, "typed": typed} for value, typed in self.ask("SELECT * FROM orders ORDER BY rowid")]

    def lose_a_row(self, owner: Owner, share: Share[Any]) -> bool:
        row = f"SELECT max(rowid) FROM orders_staged WHERE attempt_ = '{share.attempt}'"
        self.ask(f"DELETE FROM orders_staged WHERE rowid = ({row})")
        return True

    def residue(self) -> list[str]:
        if not self.ask("SELECT name FROM sqlite_master WHERE name = 'orders_staged'"):
            return []
        staged = self.ask("SELECT DISTINCT owner_, attempt_ FROM orders_staged")
        return [f"{owner} {attempt}" for owner, attempt in staged]


class TestSqliteSink(SinkSuite):
    @pytest.fixture
    def target(self, tmp_path: Path) -> OrdersTable:
        return OrdersTable(tmp_path)


def test_the_page_about_testing_shows_the_example_as_it_is() -> None:
    root = Path(__file__).resolve().parent.parent
    page = (root / "docs" / "testing.md").read_text("utf-8")
    titles = ("One file", "The example sink", "A source")
    shown = [block for title in titles for block in blocks(section(page, title), "python")]
    files = [Path(__file__), root / "examples" / "sqlite_sink.py", root / "tests" / "test_conformance_files_source.py"]
    code = "\n".join(file.read_text("utf-8") for file in files)

    assert len(shown) == 5
    assert [block for block in shown if block not in code and indent(block, "    ") not in code] == []

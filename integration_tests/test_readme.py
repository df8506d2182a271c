"""The examples of README and docs that need Spark are run, and the commands that they name exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.markdown import blocks, commands, section
from twophase.connectors.command_line import main

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def run_code(code: str, root: Path, names: dict[str, Any]) -> None:
    """Run a piece of a page below this folder, and what it starts until it has read all there is."""
    names.pop("query", None)
    exec(compile(code.replace("/data/", f"{root}/"), "README.md", "exec"), names)
    query = names["query"]
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def test_the_examples_of_the_readme_write_every_row_once(spark: SparkSession, tmp_path: Path) -> None:
    text = section((ROOT / "README.md").read_text("utf-8"), "Use it")
    by_format, by_function = blocks(text, "python")
    incoming = spark.range(1000).selectExpr(
        "id", "'c' || id % 7 as customer", "cast(id % 100 - 20 as double) as amount"
    )
    incoming.coalesce(2).write.parquet(str(tmp_path / "incoming"))
    names: dict[str, Any] = {"spark": spark}

    run_code(by_format, tmp_path, names)
    run_code(by_function, tmp_path, names)

    assert spark.read.parquet(str(tmp_path / "orders")).select("id").distinct().count() == 1000
    assert spark.read.parquet(str(tmp_path / "orders")).count() == 1000
    assert {"id", "customer", "amount", "epoch"} == set(spark.read.parquet(str(tmp_path / "orders")).columns)
    assert spark.read.parquet(str(tmp_path / "sales")).where("amount >= 0").count() == 800
    assert spark.read.parquet(str(tmp_path / "refunds")).where("amount < 0").count() == 200


def test_the_first_example_is_ten_lines_or_less() -> None:
    first = blocks((ROOT / "README.md").read_text("utf-8"), "python")[0]

    assert len([line for line in first.splitlines() if line]) <= 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_that_a_page_names_exists(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands(page.read_text("utf-8"), "twophase"):
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0, command
        assert command in capsys.readouterr().out

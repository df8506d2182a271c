"""The query of docs/postgres.md that appends by JDBC, in a session that has PostgreSQL's driver beside Spark's jars."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from integration_tests.streams import Place, orders
from tests.markdown import blocks, section
from twophase.testing.quick_start import quick_start

PAGE = Path(__file__).parents[1] / "docs" / "postgres.md"
FROM_JDBC = "From a JDBC `foreachBatch`"


def main(root: str, url: str, driver: str) -> None:
    spark = quick_start(SparkSession.builder.master("local[2]")).config("spark.jars", driver).getOrCreate()
    names: dict[str, Any] = {"spark": spark, "orders": orders(spark, Place(Path(root))), "url": url}
    code = blocks(section(PAGE.read_text("utf-8"), FROM_JDBC), "python")[0].replace("/data/", f"{root}/")
    exec(compile(code, str(PAGE), "exec"), names)
    names["query"].processAllAvailable()
    names["query"].stop()
    Path(root, "appended").touch()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

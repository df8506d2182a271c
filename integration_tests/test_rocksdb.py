"""Keyed states through a real Spark: by `exactly_once`, by the format, and read again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

import twophase
from integration_tests.states import residue_of, rows_of
from integration_tests.streams import Place, failure_of, orders, run, write_by
from twophase.connectors.command_line import main
from twophase.sinks import RocksDBSink
from twophase.state.xx_hash import xx_hash
from twophase.testing.crash.orders import compare

pytestmark = pytest.mark.servers

KEYS = {
    "flag": "id % 3 = 0",
    "tiny": "cast(id % 100 AS byte)",
    "small": "cast(id AS short)",
    "int": "cast(-id AS int)",
    "long": "id * 1000000007 - 5",
    "text": "repeat(concat('ä', id), cast(id % 23 AS int))",
    "bytes": "cast(concat('x', id) AS binary)",
    "day": "date_add(DATE'1969-01-01', cast(id AS int))",
    "instant": "timestamp_micros(id * 1234567891 - 7)",
    "local": "cast(timestamp_micros(id * 1234567) AS timestamp_ntz)",
    "price": "cast(id * -1.25 AS decimal(12, 3))",
    "null": "cast(if(id % 2 = 0, null, id) AS long)",
}


def test_spark_and_twophase_compute_the_same_key_group(spark: SparkSession) -> None:
    """Over every type that a key may have, alone and all together."""
    rows = spark.range(200).selectExpr(*(f"{text} AS {name}" for name, text in KEYS.items()))
    hashes = [sf.xxhash64(name).alias(f"hash_{name}") for name in KEYS]
    found = rows.select("*", *hashes, sf.xxhash64(*KEYS).alias("hash_all")).toArrow()

    def ours(names: list[str]) -> list[int]:
        columns = [found.column(name).combine_chunks() for name in names]
        return [int(each) for each in xx_hash([_one(column) for column in columns], found.num_rows)]

    wrong = [name for name in KEYS if ours([name]) != found.column(f"hash_{name}").to_pylist()]
    assert wrong == []
    assert ours(list(KEYS)) == found.column("hash_all").to_pylist()


def _one(column: Any) -> Any:
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


def sink_of(place: Place, key: str = "word", *, tasks: int | None = None) -> RocksDBSink:
    return RocksDBSink(str(place.table), key, tasks=tasks, working_dir=str(place.root / "working"))


def test_an_aggregation_in_update_mode_is_right_at_every_epoch_whatever_the_number_of_tasks(
    spark: SparkSession, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """Counts by word over restarts, a replay, and 2, 3 and 1 tasks: at epoch e what a fold of the source up to e gives."""
    for tasks in (2, 3, 1):
        place.add_orders(4)
        words = orders(spark, place).groupBy((sf.col("id") % 7).alias("word")).agg(sf.count("*").alias("orders"))
        run(write_by(twophase.exactly_once(sink_of(place, tasks=tasks)), words, place, mode="update"))
        place.forget_commit(max(int(path.name) for path in (place.checkpoint / "commits").glob("[0-9]*")))

    for epoch in range(6):
        read = spark.read.format("twophase-rocksdb").option("asOfEpoch", epoch).load(str(place.table))
        expected = Counter(number % 7 for number in place.ids[: 100 * (epoch + 1)])
        assert {row.word: row.orders for row in read.collect()} == expected
    assert residue_of(place.table) == []
    assert main(["inspect", str(place.checkpoint)]) == 0
    assert "twophase-rocksdb" in capsys.readouterr().out


def write(rows: DataFrame, place: Place, **options: str) -> StreamingQuery:
    told = {"keyColumns": "id", "workingDir": str(place.root / "working"), "checkpointLocation": str(place.checkpoint)}
    writer = rows.writeStream.format("twophase-rocksdb").options(**{**told, **options}).trigger(availableNow=True)
    return writer.start(str(place.table))


def test_the_format_writes_rows_that_were_sent_by_their_key_group_and_refuses_others(
    spark: SparkSession, place: Place
) -> None:
    place.add_orders(4)
    assert "tasks is missing" in failure_of(write(orders(spark, place), place))
    assert "twophase.by_key_group(df, ['id'], tasks=N" in failure_of(write(orders(spark, place), place, tasks="2"))
    assert rows_of(place.table) == []

    run(write(twophase.by_key_group(orders(spark, place), "id", tasks=2), place, tasks="2"))

    assert not compare(place.ids, rows_of(place.table))
    assert residue_of(place.table) == []


def test_a_state_is_read_by_spark_in_as_many_partitions_as_it_has_parts(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.add_orders(2)
    sink = sink_of(place, "id", tasks=2)
    run(write_by(twophase.exactly_once(sink), orders(spark, place), place))

    read = spark.read.format("twophase-rocksdb").load(str(place.table))

    assert read.rdd.getNumPartitions() == 2
    assert sorted(row.id for row in read.collect()) == place.ids
    assert np.isclose(read.agg(sf.sum("amount")).collect()[0][0], sum(place.ids) / 4)


def test_an_epoch_that_is_not_kept_is_refused(spark: SparkSession, place: Place) -> None:
    place.add_orders(2)
    run(write_by(twophase.exactly_once(sink_of(place, "id")), orders(spark, place), place))

    for epoch, said in (("7", "keeps 0 to 0"), ("-1", "asOfEpoch")):
        reading = spark.read.format("twophase-rocksdb").option("asOfEpoch", epoch)
        with pytest.raises(PySparkException, match=said):
            reading.load(str(place.table)).count()

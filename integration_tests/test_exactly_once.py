"""`foreachBatch(twophase.exactly_once(…))` through a real Spark: several sinks in one decision."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

import twophase
from integration_tests.streams import SCHEMA, Place, failure_of, orders, run, write, write_by
from integration_tests.tables import compare, residue_of
from twophase.connectors.for_each_batch import EpochWriter
from twophase.errors import OptionError, ProtocolViolation
from twophase.sinks import FilesSink


def split(batch: DataFrame, epoch: EpochWriter) -> None:
    epoch.write("even", batch.where("id % 2 = 0"))
    epoch.write("odd", batch.where("id % 2 = 1"))


def sinks_of(place: Place) -> dict[str, FilesSink]:
    return {"even": FilesSink(str(place.root / "even")), "odd": FilesSink(str(place.root / "odd"))}


def differences(place: Place) -> list[object]:
    even = [i for i in place.ids if i % 2 == 0]
    odd = [i for i in place.ids if i % 2 == 1]
    found = [compare(even, place.root / "even"), compare(odd, place.root / "odd")]
    return [difference for difference in found if difference]


def epochs_of(table: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("epoch=")) for path in table.glob("epoch=*"))


def test_a_sink_is_given_every_batch_as_it_is(spark: SparkSession, place: Place) -> None:
    place.add_orders(4)

    run(write_by(twophase.exactly_once(FilesSink(str(place.table))), orders(spark, place), place))

    assert not place.difference()
    assert residue_of(place.table) == []


def test_a_query_may_change_from_the_format_to_foreach_batch_and_back(spark: SparkSession, place: Place) -> None:
    place.add_orders(2)
    run(write(orders(spark, place), place))
    place.add_orders(2)
    run(write_by(twophase.exactly_once(FilesSink(str(place.table))), orders(spark, place), place))
    place.add_orders(2)
    run(write(orders(spark, place), place))

    assert not place.difference()
    assert place.epochs() == [0, 1, 2]


def test_several_sinks_have_the_same_epochs(spark: SparkSession, place: Place) -> None:
    place.add_orders(4)

    run(write_by(twophase.exactly_once(split, **sinks_of(place)), orders(spark, place), place))

    assert differences(place) == []
    assert epochs_of(place.root / "even") == epochs_of(place.root / "odd") == [0, 1]


def test_a_replayed_epoch_is_not_written_again_to_any_sink(spark: SparkSession, place: Place) -> None:
    function = twophase.exactly_once(split, **sinks_of(place))
    place.add_orders(4)
    run(write_by(function, orders(spark, place), place))
    place.forget_commit(1)
    place.add_orders(2)

    run(write_by(function, orders(spark, place), place))

    assert differences(place) == []


def test_random_values_are_the_same_in_every_sink(spark: SparkSession, place: Place) -> None:
    """The batch is persisted when several sinks read it."""
    place.add_orders(2)
    rows = orders(spark, place).selectExpr("id", "uuid() as name", "amount")

    def both(batch: DataFrame, epoch: EpochWriter) -> None:
        epoch.write("even", batch)
        epoch.write("odd", batch)

    run(write_by(twophase.exactly_once(both, **sinks_of(place)), rows, place))

    even, odd = (
        ds.dataset(place.root / name, format="parquet", partitioning="hive").to_table(columns=["id", "name"])
        for name in ("even", "odd")
    )
    assert even.num_rows == len(place.ids)
    assert even.sort_by("id").equals(odd.sort_by("id"))


def test_a_sink_that_is_not_written_gets_an_empty_epoch(spark: SparkSession, place: Place) -> None:
    place.add_orders(4)

    def sometimes(batch: DataFrame, epoch: EpochWriter) -> None:
        epoch.write("even", batch.where("id % 2 = 0"))
        if epoch.number == 1:
            epoch.write("odd", batch.where("id % 2 = 1"))

    run(write_by(twophase.exactly_once(sometimes, **sinks_of(place)), orders(spark, place), place))

    assert not compare([i for i in place.ids if i % 2 == 0], place.root / "even")
    assert not compare([i for i in place.ids if i % 2 == 1 and i >= 100], place.root / "odd")
    assert epochs_of(place.root / "odd") == [0, 1]


def test_a_sink_that_is_written_twice_is_an_error_and_nothing_is_visible(spark: SparkSession, place: Place) -> None:
    place.add_orders(2)

    def twice(batch: DataFrame, epoch: EpochWriter) -> None:
        epoch.write("even", batch)
        epoch.write("even", batch)

    said = failure_of(write_by(twophase.exactly_once(twice, **sinks_of(place)), orders(spark, place), place))

    assert "written twice in one epoch" in said
    assert epochs_of(place.root / "even") == []
    assert residue_of(place.root / "even") == []


def test_an_unknown_sink_is_an_error_that_names_the_known_ones(spark: SparkSession, place: Place) -> None:
    place.add_orders(2)

    def stray(batch: DataFrame, epoch: EpochWriter) -> None:
        epoch.write("evn", batch)

    said = failure_of(write_by(twophase.exactly_once(stray, **sinks_of(place)), orders(spark, place), place))

    assert "its sinks are even, odd" in said


def test_a_function_that_fails_makes_nothing_visible_and_the_next_run_writes_it(
    spark: SparkSession, place: Place
) -> None:
    place.add_orders(2)

    def fail(batch: DataFrame, epoch: EpochWriter) -> None:
        split(batch, epoch)
        raise RuntimeError("after both were written")

    said = failure_of(write_by(twophase.exactly_once(fail, **sinks_of(place)), orders(spark, place), place))
    assert "after both were written" in said
    assert epochs_of(place.root / "even") == epochs_of(place.root / "odd") == []
    assert residue_of(place.root / "even") == residue_of(place.root / "odd") == []

    run(write_by(twophase.exactly_once(split, **sinks_of(place)), orders(spark, place), place))
    assert differences(place) == []


def test_a_function_that_swallows_a_failed_write_commits_nothing(spark: SparkSession, place: Place) -> None:
    """Otherwise the sink would get an empty share for rows that it lost."""
    place.add_orders(2)

    def swallow(batch: DataFrame, epoch: EpochWriter) -> None:
        epoch.write("even", batch.where("id % 2 = 0"))
        with contextlib.suppress(Exception):
            epoch.write("odd", batch.where("id % 2 = 1 and assert_true(id < 50) is null"))

    said = failure_of(write_by(twophase.exactly_once(swallow, **sinks_of(place)), orders(spark, place), place))

    assert "the write to odd failed" in said
    assert epochs_of(place.root / "even") == epochs_of(place.root / "odd") == []
    run(write_by(twophase.exactly_once(split, **sinks_of(place)), orders(spark, place), place))
    assert differences(place) == []


WHY = {
    "a wrong name": "od: [PROTOCOL_VIOLATION] there is no sink 'od' in this query",
    "no DataFrame": "wants a DataFrame, and got list",
    "no DataFrame, and then one": "wants a DataFrame, and got NoneType",
    "a plain thread": "pyspark.InheritableThread",
    "a thread that goes on": "has not ended",
}


@pytest.mark.parametrize("mistake", WHY)
def test_a_write_that_did_not_come_to_its_end_is_never_an_empty_epoch(
    spark: SparkSession, place: Place, mistake: str
) -> None:
    place.add_orders(2)

    def linger(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        time.sleep(2)
        yield from batches

    def careless(batch: DataFrame, epoch: EpochWriter) -> None:
        epoch.write("even", batch.where("id % 2 = 0"))
        slow = batch.where("id % 2 = 1").mapInArrow(linger, SCHEMA)
        with contextlib.suppress(Exception):
            match mistake:
                case "a wrong name":
                    epoch.write("od", batch)
                case "no DataFrame":
                    epoch.write("odd", [1, 2])  # type: ignore[arg-type]
                case "no DataFrame, and then one":
                    with contextlib.suppress(Exception):
                        epoch.write("odd", None)  # type: ignore[arg-type]
                    with pytest.raises(ProtocolViolation, match="has failed in this epoch, and is not tried again"):
                        epoch.write("odd", batch)
                case "a plain thread":
                    thread = threading.Thread(target=_quietly, args=(epoch, slow))
                    thread.start()
                    thread.join()
                case _:
                    InheritableThread(target=_quietly, args=(epoch, slow)).start()
                    _wait_for_job(spark)

    said = failure_of(write_by(twophase.exactly_once(careless, **sinks_of(place)), orders(spark, place), place))

    assert "failed or has not ended" in said
    assert WHY[mistake] in said
    assert epochs_of(place.root / "even") == epochs_of(place.root / "odd") == []


def test_a_function_that_has_not_run_when_it_returns_is_refused(spark: SparkSession, place: Place) -> None:
    place.add_orders(2)

    async def later(batch: DataFrame, epoch: EpochWriter) -> None:
        epoch.write("even", batch)

    def lazily(batch: DataFrame, epoch: EpochWriter) -> Iterator[None]:
        epoch.write("even", batch)
        yield

    def mapped(batch: DataFrame, epoch: EpochWriter) -> Any:
        return map(partial(epoch.write, df=batch), ["even", "odd"])

    def within(batch: DataFrame, epoch: EpochWriter) -> Any:
        return {"written": [mapped(batch, epoch)]}

    def uncalled(batch: DataFrame, epoch: EpochWriter) -> Any:
        return lambda: epoch.write("even", batch)

    with ThreadPoolExecutor(1) as pool:
        let_go = threading.Event()

        def submitted(batch: DataFrame, epoch: EpochWriter) -> Any:
            return [pool.submit(_after, let_go, partial(epoch.write, "even", batch))]

        ways = ((later, "coroutine"), (lazily, "generator"), (mapped, "map"), (submitted, "Future"))
        for function, what in (*ways, (within, "map"), (uncalled, "function")):
            unrun: Any = function
            said = failure_of(write_by(twophase.exactly_once(unrun, **sinks_of(place)), orders(spark, place), place))
            assert f"returned a {what}, which has not run" in said
        let_go.set()
    assert epochs_of(place.root / "even") == epochs_of(place.root / "odd") == []


def test_a_take_over_of_a_sink_that_is_not_there_is_a_wrong_option(place: Place) -> None:
    with pytest.raises(OptionError) as caught:
        twophase.exactly_once(split, **sinks_of(place)).options(takeOver={"evn": "somebody/sink", "odd": 5})

    assert "takeOver names 'evn', which is no sink of this query" in str(caught.value)
    assert "takeOver of 'odd' is 5" in str(caught.value)
    with pytest.raises(OptionError, match="takeOver is 5: give the owner"):
        twophase.exactly_once(split, **sinks_of(place)).options(takeOver=5)


def _after(event: threading.Event, write: Callable[[], None]) -> None:
    event.wait(60)
    write()


def _wait_for_job(spark: SparkSession) -> None:
    deadline = time.monotonic() + 60
    while not spark.sparkContext.statusTracker().getActiveJobsIds():
        assert time.monotonic() < deadline, "the write was not begun"
        time.sleep(0.01)


def _quietly(epoch: EpochWriter, rows: DataFrame) -> None:
    with contextlib.suppress(Exception):  # as a thread does with its errors
        epoch.write("odd", rows)


def test_sinks_may_be_written_from_threads_that_inherit_sparks_properties(spark: SparkSession, place: Place) -> None:
    place.add_orders(4)

    def both(batch: DataFrame, epoch: EpochWriter) -> None:
        threads = [
            InheritableThread(target=epoch.write, args=(name, batch.where(f"id % 2 = {parity}")))
            for name, parity in (("even", 0), ("odd", 1))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run(write_by(twophase.exactly_once(both, **sinks_of(place)), orders(spark, place), place))

    assert differences(place) == []


def test_calling_it_twice_for_one_batch_is_refused(spark: SparkSession, place: Place) -> None:
    """The second call would find the epoch committed, and drop its rows."""
    place.add_orders(2)
    whole = twophase.exactly_once(FilesSink(str(place.table)))

    def halves(batch: DataFrame, number: int) -> None:
        whole(batch.where("id < 50"), number)
        whole(batch.where("id >= 50"), number)

    said = failure_of(write_by(halves, orders(spark, place), place))

    assert "called twice for epoch 0" in said


def test_a_first_epoch_whose_error_was_swallowed_is_noticed(spark: SparkSession, place: Place) -> None:
    place.add_orders(4)

    def fail_first(batch: DataFrame, epoch: EpochWriter) -> None:
        epoch.write("even", batch)
        if epoch.number == 0:
            raise RuntimeError("the first epoch fails")

    function = twophase.exactly_once(fail_first, even=sinks_of(place)["even"])

    def swallow(batch: DataFrame, number: int) -> None:
        with contextlib.suppress(RuntimeError):
            function(batch, number)

    said = failure_of(write_by(swallow, orders(spark, place), place))

    assert "an error was swallowed around exactly_once" in said
    assert epochs_of(place.root / "even") == []


def test_aggregations_in_update_mode_work(spark: SparkSession, place: Place) -> None:
    place.add_orders(4)
    totals = orders(spark, place).selectExpr("id % 2 as parity").groupBy("parity").count()

    run(write_by(twophase.exactly_once(FilesSink(str(place.table))), totals, place, mode="update"))

    read = spark.read.parquet(str(place.table)).orderBy("epoch", "parity").collect()
    assert [(row.epoch, row.parity, row["count"]) for row in read] == [(0, 0, 50), (0, 1, 50), (1, 0, 100), (1, 1, 100)]


def test_a_query_without_a_checkpoint_location_is_refused(spark: SparkSession, place: Place) -> None:
    place.add_orders(2)
    writer = orders(spark, place).writeStream.foreachBatch(twophase.exactly_once(FilesSink(str(place.table))))

    said = failure_of(writer.trigger(availableNow=True).start())

    assert "checkpointLocation is missing" in said
    assert place.epochs() == []


def test_a_sink_that_leaves_the_query_in_an_open_epoch_is_asked_for(spark: SparkSession, place: Place) -> None:
    place.add_orders(2)
    run(write_by(twophase.exactly_once(split, **sinks_of(place)), orders(spark, place), place))
    place.forget_commit(0)
    only = {"even": sinks_of(place)["even"]}

    said = failure_of(
        write_by(
            twophase.exactly_once(lambda batch, epoch: epoch.write("even", batch), **only), orders(spark, place), place
        )
    )

    assert "start the query once with the old sinks" in said
    assert differences(place) == []


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    sink = FilesSink(str(tmp_path / "t"))
    for function, sinks, says in (
        ("orders", {}, "a function or a sink"),
        (split, {}, "at least one sink"),
        (split, {"even": "/data"}, r"not a sink: even \(of the type str\)"),
        (split, {"even": twophase.exactly_once(sink)}, r"not a sink: even \(of the type ExactlyOnce\)"),
        (sink, {"more": sink}, "alone"),
    ):
        with pytest.raises(TypeError, match=says):
            twophase.exactly_once(function, **sinks)  # type: ignore[arg-type]


def test_options_that_do_not_exist_are_named(tmp_path: Path) -> None:
    made = twophase.exactly_once(FilesSink(str(tmp_path / "t")))

    with pytest.raises(twophase.OptionError, match="did you mean movedFrom"):
        made.options(movedFrm="/x")
    with pytest.raises(twophase.OptionError, match="option of the query"):
        made.options(checkpointLocation="/x")

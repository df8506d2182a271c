"""docs/options.md, made from the option classes: so that it says what the code does.

    make docs

A test compares the page with what this program would write.
"""

from __future__ import annotations

from pathlib import Path

from twophase.clients.hdfs.settings import HdfsSettings
from twophase.clients.rocksdb.read_options import RocksDBReadOptions
from twophase.connectors.query_options import QueryOptions
from twophase.options import describe
from twophase.sinks.files.sink import FilesOptions
from twophase.sinks.kafka.sink import KafkaOptions
from twophase.sinks.postgres.sink import PostgresOptions
from twophase.sinks.pravega.sink import PravegaOptions
from twophase.sinks.rocksdb.sink import RocksDBOptions
from twophase.sources.files.options import FilesSourceOptions
from twophase.sources.kafka.options import KafkaSourceOptions
from twophase.sources.postgres.options import PostgresSourceOptions
from twophase.sources.pravega.options import PravegaSourceOptions
from twophase.sources.socket.options import SocketSourceOptions

PAGE = Path(__file__).resolve().parent.parent / "docs" / "options.md"

_TEXT = """\
<!-- Made by `make docs` from the option classes. Change those, not this page. -->

# Options

Keys may be written in any case. A wrong or unknown option stops the query before anything is written, and the error names
every one of them; whether they fit together is looked at when each is right by itself. Give absolute paths, on a local disk,
on a mount that driver and executors share, or on HDFS.

## Of every query

Set them by `df.writeStream.option(…)`, whatever the format is:

{query}
`twophase.exactly_once(…)` takes the same ones by its method `options`, except for `checkpointLocation`, which stays an option
of the query, and with `takeOver` by the sink's name:

```python
twophase.exactly_once(route, orders=orders, refunds=refunds).options(
    owner="orders-pipeline",
    takeOver={{"refunds": "the owner that the error names"}},
)
```

When to use `owner`, `takeOver` and `movedFrom` is said in [operations.md](operations.md#checkpoints).

## HDFS

How HDFS is spoken to, for a checkpoint, a ledger, or a table of files there. Each is written with `hdfs.` before it, such as
`hdfs.patienceMs`; [hdfs.md](hdfs.md) says what for:

{hdfs}
In Python, `FilesSink(path, hdfs={{"patienceMs": "60000"}})` takes the same ones, without `hdfs.`

## Writing `twophase-files`

By `df.writeStream.format("twophase-files").option(…)`, and `twophase-hdfs` alike. `start(path)` sets `path`, and
`partitionBy(…)` sets `partitionBy`:

{files}
In Python, `FilesSink(path, file_format=…, partition_by=[…], …)` takes the same ones in Python's spelling.

## Reading `twophase-files`

By `spark.readStream.format("twophase-files").option(…)`, and `twophase-hdfs` alike. `load(path)` sets `path`:

{source}
## Writing `twophase-kafka`

By `df.writeStream.format("twophase-kafka").option(…)`; [kafka.md](kafka.md) says what brokers and consumers must do:

{kafka}
In Python, `KafkaSink(bootstrap_servers, topic, kafka={{…}}, …)` takes the same ones in Python's spelling.

## Reading `twophase-kafka`

By `spark.readStream.format("twophase-kafka").option(…)`, and by `spark.read` for a batch:

{kafka_source}
In Python, `KafkaSource(bootstrap_servers, subscribe, kafka={{…}}, …)` takes the same ones in Python's spelling.

## Writing `twophase-postgres`

By `df.writeStream.format("twophase-postgres").option(…)`; [postgres.md](postgres.md) says what it creates, and which rights it
needs:

{postgres}
In Python, `PostgresSink(dsn, table, …)` takes the same ones in Python's spelling.

## Reading `twophase-postgres`

By `spark.readStream.format("twophase-postgres").option(…)`, and by `spark.read` for a batch:

{postgres_source}
In Python, `PostgresVersions(dsn, versions_of, …)` and `PostgresLog(dsn, publication, slot, …)` take the same ones in Python's
spelling.

## Reading `twophase-socket`

By `spark.readStream.format("twophase-socket").option(…)`; [socket.md](socket.md) says what is promised with which sender:

{socket_source}
In Python, `SocketSource(host, port, journal, …)` takes the same ones in Python's spelling.

## Writing `twophase-rocksdb`

By `df.writeStream.format("twophase-rocksdb").option(…)`; [rocksdb.md](rocksdb.md) says how rows get to the right task:

{rocksdb}
In Python, `RocksDBSink(path, key_columns, …)` takes the same ones in Python's spelling.

## Reading `twophase-rocksdb`

By `spark.read.format("twophase-rocksdb").option(…)`:

{rocksdb_source}
In Python, `twophase.state.open(path, epoch)` reads without Spark.

## Writing `twophase-pravega`

By `df.writeStream.format("twophase-pravega").option(…)`; [pravega.md](pravega.md) says what it creates:

{pravega}
In Python, `PravegaSink(controller, scope, stream, …)` takes the same ones in Python's spelling.

## Reading `twophase-pravega`

By `spark.readStream.format("twophase-pravega").option(…)`, and by `spark.read` for a batch:

{pravega_source}
In Python, `PravegaSource(controller, scope, stream, …)` takes the same ones in Python's spelling.
"""


def page() -> str:
    return _TEXT.format(
        query=describe(QueryOptions),
        hdfs=describe(HdfsSettings),
        files=describe(FilesOptions),
        source=describe(FilesSourceOptions),
        kafka=describe(KafkaOptions),
        kafka_source=describe(KafkaSourceOptions),
        postgres=describe(PostgresOptions),
        postgres_source=describe(PostgresSourceOptions),
        socket_source=describe(SocketSourceOptions),
        rocksdb=describe(RocksDBOptions),
        rocksdb_source=describe(RocksDBReadOptions),
        pravega=describe(PravegaOptions),
        pravega_source=describe(PravegaSourceOptions),
    )


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    print(f"wrote {PAGE}")

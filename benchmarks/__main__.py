"""`make bench`, or `make bench TARGET=files`, `hdfs`, `kafka`, `postgres` or `rocksdb`; `kafka-price` is a part of `kafka`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import files, hdfs, kafka, postgres, rocksdb

TARGETS = {"files": files.run, "hdfs": hdfs.run, "kafka": kafka.run, "postgres": postgres.run, "rocksdb": rocksdb.run}
PARTS = {"kafka-price": kafka.run_price}
"""What is measured with its target, and can be measured alone."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("target", nargs="?", choices=sorted({**TARGETS, **PARTS}), help="all of them, if none is named")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repetitions", type=int, default=5, help="beyond the first, which is dropped")
    parser.add_argument("--out", type=Path, default=Path.cwd(), help="where the JSON and the picture go")
    told = parser.parse_args()
    told.out.mkdir(parents=True, exist_ok=True)
    for name, run in {**TARGETS, **PARTS}.items():
        if told.target == name or (told.target is None and name in TARGETS):
            run(told.out, rows=told.rows, repetitions=told.repetitions)
    return 0


if __name__ == "__main__":
    sys.exit(main())

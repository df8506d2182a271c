"""`make bench`, or `make bench TARGET=files`, `hdfs`, `kafka`, `postgres` or `rocksdb`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import files, hdfs, kafka, postgres, rocksdb

TARGETS = {"files": files.run, "hdfs": hdfs.run, "kafka": kafka.run, "postgres": postgres.run, "rocksdb": rocksdb.run}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("target", nargs="?", choices=sorted(TARGETS), help="all of them, if none is named")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repetitions", type=int, default=5, help="beyond the first, which is dropped")
    parser.add_argument("--out", type=Path, default=Path.cwd(), help="where the JSON and the picture go")
    told = parser.parse_args()
    told.out.mkdir(parents=True, exist_ok=True)
    for name, run in TARGETS.items():
        if told.target in (None, name):
            run(told.out, rows=told.rows, repetitions=told.repetitions)
    return 0


if __name__ == "__main__":
    sys.exit(main())

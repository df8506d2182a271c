"""Log lines: one line an event, its fields readable by people and by programs, and never a secret."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twophase.errors import Fenced
from twophase.log import Log
from twophase.options import PassThrough
from twophase.secret import Secret

log = Log("twophase.test")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "twophase")


def parsed(message: str) -> dict[str, str]:
    """A logfmt line's fields, read by a parser that knows nothing of the writer."""
    found = re.findall(r'(\w+)=(?:("(?:[^"\\]|\\.)*")|([^\s"=]+))(?= |$)', message)
    return {name: json.loads(quoted) if quoted else bare for name, quoted, bare in found}


def test_a_line_has_the_event_and_its_fields_in_order(caplog: pytest.LogCaptureFixture) -> None:
    log.info("decided", owner="orders/kafka", epoch=7, slot=None, generation=12)
    (record,) = caplog.records
    assert record.getMessage() == "decided owner=orders/kafka epoch=7 generation=12"
    assert record.name == "twophase.test"
    assert record.levelno == logging.INFO


def test_a_record_carries_event_and_fields_for_json(caplog: pytest.LogCaptureFixture) -> None:
    log.info("decided", owner="orders", epoch=7, alive=True, took_ms=1.5, slot=None, path=Path("/c"))
    fields = vars(caplog.records[0])["twophase"]
    assert fields == {"owner": "orders", "epoch": 7, "alive": True, "took_ms": 1.5, "path": "/c"}
    assert json.loads(json.dumps(fields)) == fields
    assert vars(caplog.records[0])["twophase_event"] == "decided"


class Outcome(str, Enum):  # noqa: UP042 - the kind of enum whose text and value differ
    COMMITTED = "committed"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("plain", "plain"),
        ("a/b:c.d-e_f%20", "a/b:c.d-e_f%20"),
        ("Zürich", "Zürich"),
        ("", '""'),
        ("two words", '"two words"'),
        ('say "hi"', '"say \\"hi\\""'),
        ("a=b", '"a=b"'),
        ("back\\slash", '"back\\\\slash"'),
        ("two\nlines", '"two\\nlines"'),
        ("\x1b[31mred", '"\\u001b[31mred"'),
        ("\u2028", '"\\u2028"'),
        ("\x7f", '"\\u007f"'),
        ("%s %d", '"%s %d"'),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (-1.5, "-1.5"),
        (["a", 1], "\"['a', 1]\""),
        (Outcome.COMMITTED, "Outcome.COMMITTED"),
        (Fenced("stop", owner="q", epoch=3), '"[FENCED] stop (owner=q, epoch=3)"'),
    ],
    ids=ascii,
)
def test_a_value_is_quoted_where_a_reader_would_stumble(
    value: object, written: str, caplog: pytest.LogCaptureFixture
) -> None:
    log.info("seen", value=value)
    assert caplog.records[0].getMessage() == f"seen value={written}"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=())), st.text())
def test_any_text_stays_on_one_line_and_can_be_read_back(
    caplog: pytest.LogCaptureFixture, one: str, other: str
) -> None:
    caplog.clear()
    log.info("seen", one=one, other=other)
    message = caplog.records[0].getMessage()
    assert message.splitlines() == [message]
    assert message.isprintable()
    assert parsed(message) == {"one": one, "other": other}


def test_a_secret_prints_as_its_safe_form_wherever_it_is(caplog: pytest.LogCaptureFixture) -> None:
    secret = Secret("hunter2")
    log.warning("connecting", password=secret, all=[secret], kafka=PassThrough({"sasl.password": "hunter2"}))
    log.warning("connecting", password=Secret("env:DB_PASSWORD"))
    literal, reference = caplog.records
    assert "hunter2" not in literal.getMessage() + repr(vars(literal))
    assert literal.getMessage().startswith("connecting password=Secret('***') ")
    assert reference.getMessage() == "connecting password=Secret('env:DB_PASSWORD')"
    assert vars(reference)["twophase"] == {"password": "Secret('env:DB_PASSWORD')"}


def test_each_method_logs_at_its_level_from_the_caller_s_line(caplog: pytest.LogCaptureFixture) -> None:
    for method in (log.debug, log.info, log.warning, log.error):
        method("seen")
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR]
    for record in caplog.records:
        assert record.pathname == __file__
        assert record.funcName == "test_each_method_logs_at_its_level_from_the_caller_s_line"
        assert record.exc_info is None


def test_exception_adds_the_traceback(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise Fenced("stop", epoch=3)
    except Fenced as error:
        log.exception("commit failed", epoch=3, error=error)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.funcName == "test_exception_adds_the_traceback"
    assert record.exc_info
    assert record.exc_info[0] is Fenced


def test_fields_may_have_any_name(caplog: pytest.LogCaptureFixture) -> None:
    log.info("seen", event="e", self="s", level=1, name="n", message="m", msg="g", args="a")
    assert caplog.records[0].getMessage() == "seen event=e self=s level=1 name=n message=m msg=g args=a"


def test_a_level_that_is_off_formats_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("formatted")

    caplog.set_level(logging.WARNING, "twophase")
    log.debug("seen", value=Costly())
    assert caplog.records == []


def test_the_library_prints_nothing_and_configures_nothing_of_its_own() -> None:
    code = (
        "import logging; from twophase.log import Log; Log('twophase.x').error('seen', epoch=1);"
        "root, ours = logging.getLogger(), logging.getLogger('twophase');"
        "print(root.handlers, [type(each).__name__ for each in ours.handlers], ours.level, ours.propagate)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[] ['NullHandler'] 0 True\n"
    assert done.stderr == ""

"""Secret: only reveal() gives the value away."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import pprint
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twophase.errors import OptionError
from twophase.secret import Secret

VALUE = "hunter2-κλειδί"


@dataclasses.dataclass(frozen=True)
class Login:
    user: str
    password: Secret


def test_a_literal_reveals_itself() -> None:
    assert Secret(VALUE).reveal() == VALUE
    assert not Secret(VALUE).is_reference


def test_an_environment_reference_is_resolved_at_each_use(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Secret("env:TWOPHASE_TEST_SECRET")
    assert secret.is_reference
    for value in (VALUE, "rotated", ""):
        monkeypatch.setenv("TWOPHASE_TEST_SECRET", value)
        assert secret.reveal() == value


def test_a_file_reference_is_resolved_at_each_use(tmp_path: Path) -> None:
    file = tmp_path / "password"
    secret = Secret(f"file:{file}")
    for value in (VALUE, "rotated"):
        file.write_text(value, encoding="utf-8")
        assert secret.reveal() == value


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"a\n", "a"),
        (b"a\r\n", "a"),
        (b"a", "a"),
        (b"a\n\n", "a\n"),
        (b"a\r", "a\r"),
        (b" a \n", " a "),
        (b"a\r\nb\n", "a\r\nb"),
        (b"", ""),
        (b"\n", ""),
    ],
)
def test_one_newline_at_the_end_of_a_file_is_no_part_of_the_secret(content: bytes, value: str, tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(content)
    assert Secret(f"file:{tmp_path}/password").reveal() == value


@pytest.mark.parametrize(
    "reference", ["env:TWOPHASE_TEST_MISSING", "env:", "file:/nowhere/password", "file:", "file:a\0b", "file:/"]
)
def test_a_reference_to_nothing_is_an_option_error_that_names_it(reference: str) -> None:
    with pytest.raises(OptionError) as caught:
        Secret(reference).reveal()
    assert reference in str(caught.value)
    assert len(caught.value.problems) == 1
    assert reference in caught.value.problems[0]


def test_a_file_that_is_no_text_does_not_leak_into_the_error(tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(b"hunter2\xff")
    with pytest.raises(OptionError, match="not UTF-8") as caught:
        Secret(f"file:{tmp_path}/password").reveal()
    shown = (
        "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value)) + repr(caught.value.__context__)
    )
    assert "hunter2" not in shown


@given(st.text(min_size=5, alphabet="XYZ\"'\\\n%{}é"))
def test_no_printed_form_shows_a_literal(value: str) -> None:
    secret = Secret(value)
    shown = [str(secret), repr(secret), f"{secret}", f"{secret!r}", f"{secret!s:>40}", f"{secret:>40}", "%s" % secret]  # noqa: UP031
    shown += ["{}".format(secret), pprint.pformat([secret]), str({"password": secret}), repr(Login("me", secret))]  # noqa: UP032
    shown += [str(dataclasses.asdict(Login("me", secret))), ascii(secret)]
    for text in shown:
        assert value not in text
        assert "Secret('***')" in text


@pytest.mark.parametrize("reference", ["env:DB_PASSWORD", "file:/run/secrets/db"])
def test_printed_forms_show_a_reference(reference: str) -> None:
    assert str(Secret(reference)) == repr(Secret(reference)) == f"{Secret(reference)}" == f"Secret('{reference}')"


def test_the_length_of_a_literal_is_not_shown() -> None:
    assert repr(Secret("a")) == repr(Secret("a" * 100)) == repr(Secret(""))


def test_a_secret_is_not_text_and_can_t_become_json_by_accident() -> None:
    secret = Secret(VALUE)
    assert str not in Secret.__mro__
    with pytest.raises(TypeError):
        json.dumps({"password": secret})
    with pytest.raises(TypeError):
        "".join([secret])  # type: ignore[list-item]
    assert not hasattr(secret, "__dict__")
    assert not dataclasses.is_dataclass(secret)


@pytest.mark.parametrize("text", [VALUE, "env:DB_PASSWORD", "file:/run/secrets/db", ""])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_secret_travels_by_pickle(text: str, protocol: int) -> None:
    assert pickle.loads(pickle.dumps(Secret(text), protocol)) == Secret(text)
    assert copy.deepcopy(Secret(text)) == copy.copy(Secret(text)) == Secret(text)


def test_a_reference_travels_as_a_reference_and_is_resolved_where_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOPHASE_TEST_SECRET", "the driver's")
    secret = Secret("env:TWOPHASE_TEST_SECRET")
    assert secret.reveal() == "the driver's"
    data = pickle.dumps(secret)
    assert b"the driver's" not in data
    monkeypatch.setenv("TWOPHASE_TEST_SECRET", "the executor's")
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).reveal())"
    arrived = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    assert arrived.stdout.decode() == "the executor's\n"


def test_secrets_compare_and_hash_by_their_spelling() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("env:A"), Secret("file:A")}) == 3


def test_a_secret_can_t_be_changed() -> None:
    secret = Secret(VALUE)
    with pytest.raises(AttributeError):
        secret._text = "other"
    with pytest.raises(AttributeError):
        del secret._text
    with pytest.raises(AttributeError):
        secret.note = "other"
    assert secret.reveal() == VALUE

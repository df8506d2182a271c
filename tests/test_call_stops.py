"""Stops are where something may have happened to a target; and another process shares nothing with this one."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.fs
import pytest

from twophase.testing.call_stops import Stop, stopping, stopping_in
from twophase.testing.other_process import OtherProcess, answer_of, stop

pytestmark = pytest.mark.kit

written: list[int] = []


def rename_twice(folder: Path) -> None:
    os.rename(folder / "a", folder / "b")
    pa.fs.LocalFileSystem().move(str(folder / "b"), str(folder / "c"))  # Cython: Python reports no such call


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_reader_at_the_stops_misses_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    seen = []
    with stopping(lambda _: seen.append(names(tmp_path))):
        rename_twice(tmp_path)
        assert seen[-1] == ["c"]
    assert [state for at, state in enumerate(seen) if state not in seen[:at]] == [["a"], ["b"], ["c"]]


def test_an_error_at_a_stop_is_an_error_of_the_call(tmp_path: Path) -> None:
    (tmp_path / "a").touch()

    def fail(at: Stop) -> None:
        if at.function == "rename":
            raise OSError("failed")

    with stopping_in({"tests"}, fail), pytest.raises(OSError, match="failed"):
        rename_twice(tmp_path)
    assert names(tmp_path) == ["b"]


def test_what_fails_when_it_starts_was_never_called(tmp_path: Path) -> None:
    (tmp_path / "a").touch()

    def fail(at: Stop) -> None:
        if at.function == "rename":
            raise OSError("failed")

    with stopping_in({"tests"}, lambda _: None, fail), pytest.raises(OSError, match="failed"):
        rename_twice(tmp_path)
    assert names(tmp_path) == ["a"]


def test_another_process_has_the_folder_and_the_environment_of_whoever_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("one", "two"):
        (tmp_path / value).mkdir()
        monkeypatch.chdir(tmp_path / value)
        monkeypatch.setenv("TWOPHASE_SUITE", value * 30_000)
        assert answer_of(os.getcwd) == str(tmp_path / value)
        assert answer_of(os.getenv, "TWOPHASE_SUITE") == value * 30_000


def test_only_calls_of_the_named_packages_are_stops(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    stops: list[Stop] = []
    with stopping_in({"another"}, stops.append):
        rename_twice(tmp_path)
    assert stops == []


def test_another_process_shares_no_memory_and_says_why_it_failed() -> None:
    written.append(1)
    assert answer_of(_written) == []
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        answer_of(divmod, 1, 0)


def test_another_process_stands_at_a_stop_until_it_goes_on_or_is_killed(tmp_path: Path) -> None:
    for is_killed in (False, True):
        file = tmp_path / str(is_killed)
        with OtherProcess(_stop_and_touch, str(file)) as other:
            assert other.goes_on()
            assert not file.exists()
            if not is_killed:
                other.go_on()
                assert not other.goes_on()
        assert file.exists() is not is_killed


def _written() -> list[int]:
    return written


def _stop_and_touch(file: str) -> None:
    stop()
    Path(file).touch()

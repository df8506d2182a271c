"""A missing vendor client names its extra; a broken one is never called missing."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from twophase.errors import MissingExtra
from twophase.extras import require


@pytest.fixture
def vendors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An import folder for made-up vendors; what a test imports from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def _write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_an_installed_client_is_returned(vendors: Path) -> None:
    _write(vendors / "vendor_ok" / "__init__.py")
    _write(vendors / "vendor_ok" / "admin.py", "answer = 42")

    assert require("vendor_ok", "kafka") is sys.modules["vendor_ok"]
    assert require("vendor_ok.admin", "kafka").answer == 42


@pytest.mark.parametrize("module", ["vendor_absent", "vendor_absent.admin.client"])
def test_a_client_that_is_not_installed_names_the_command_that_installs_it(module: str) -> None:
    with pytest.raises(MissingExtra) as caught:
        require(module, "kafka")

    assert caught.value.message == f'{module} is not installed: pip install "twophase[kafka]"'


def test_a_namespace_shared_with_others_does_not_make_the_client_installed(vendors: Path) -> None:
    _write(vendors / "vendor_shared" / "other" / "__init__.py")

    with pytest.raises(MissingExtra, match=r'pip install "twophase\[pravega\]"'):
        require("vendor_shared.protobuf", "pravega")


@pytest.mark.parametrize(
    ("module", "text"),
    [
        pytest.param("vendor_broken", "import vendor_needs_this", id="misses-a-dependency"),
        pytest.param("vendor_broken", "import vendor_broken.gone", id="misses-its-own-submodule"),
        pytest.param("vendor_broken", "raise ImportError('lib.so: cannot open')", id="misses-a-shared-library"),
        pytest.param("vendor_broken", "from os import no_such_name", id="expects-another-version"),
        pytest.param("vendor_broken.gone", "", id="lacks-the-submodule-we-need"),
    ],
)
def test_an_installed_client_that_does_not_import_is_called_broken_and_not_missing(
    vendors: Path, module: str, text: str
) -> None:
    _write(vendors / "vendor_broken" / "__init__.py", text)

    with pytest.raises(ImportError, match=rf"^{module}, .* is installed, but importing it failed") as caught:
        require(module, "kafka")

    assert "pip install" not in str(caught.value)
    cause = caught.value.__cause__
    assert isinstance(cause, ImportError)
    assert str(cause) in str(caught.value)


def test_a_missing_extra_crosses_from_an_executor_to_the_driver() -> None:
    with pytest.raises(MissingExtra) as caught:
        require("vendor_absent", "rocksdb")

    copy = pickle.loads(pickle.dumps(caught.value))

    assert isinstance(copy, MissingExtra)
    assert str(copy) == str(caught.value)

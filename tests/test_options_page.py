"""docs/options.md is what the option classes say."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest

from tools.options_page import PAGE, page
from twophase.connectors.query_options import QueryOptions
from twophase.options import key_of
from twophase.sinks.files.sink import FilesOptions
from twophase.sources.files.options import FilesSourceOptions
from twophase.sources.socket.options import SocketSourceOptions


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == page(), "docs/options.md is out of date: run `make docs`"


@pytest.mark.parametrize("options", [QueryOptions, FilesOptions, FilesSourceOptions, SocketSourceOptions])
def test_every_option_has_its_line(options: type) -> None:
    text = PAGE.read_text("utf-8")

    keys = [key_of(each.name) for each in fields(options)]
    assert [key for key in keys if f"| `{key}` |" not in text and f"| `{key}.*` |" not in text] == []


def test_the_page_is_made_without_spark() -> None:
    program = "import sys, tools.options_page; sys.exit('pyspark' in sys.modules)"

    subprocess.run([sys.executable, "-c", program], cwd=PAGE.parent.parent, check=True)

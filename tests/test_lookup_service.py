"""The example: a service that answers from a state while it is written."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples import lookup_service
from tests.state_query import StateQuery
from tests.test_rocksdb_sink import made, rows


@pytest.fixture
def query(tmp_path: Path) -> StateQuery:
    query = made(tmp_path, retain_epochs=2)
    query.epoch(0, rows(range(10), 0), 2)
    return query


@pytest.fixture
def address(tmp_path: Path, query: StateQuery) -> Iterator[str]:
    assert str(query.sink.target).endswith("/state")
    server = lookup_service.server_of(str(tmp_path / "state"), 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(10)
    server.server_close()


def ask(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return json.load(answer)


def test_the_service_goes_over_to_newer_epochs_while_the_state_is_written(query: StateQuery, address: str) -> None:
    assert ask(f"{address}/rows/customer%207") == {"epoch": 0, "row": {"customer": "customer 7", "amount": 0}}
    with pytest.raises(urllib.error.HTTPError, match="404") as caught:
        ask(f"{address}/rows/nobody")
    caught.value.close()

    for number in range(1, 5):
        query.epoch(number, rows(range(10), number), 2)
        answer = ask(f"{address}/rows/customer%207")
        assert answer["row"]["amount"] == answer["epoch"]

    deadline = time.monotonic() + 30
    while ask(f"{address}/epoch") != {"epoch": 4}:
        assert time.monotonic() < deadline
        time.sleep(0.1)

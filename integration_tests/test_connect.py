"""Through Spark Connect. (That exactly_once says why it can't be used there: test_exactly_once.py.)"""

from __future__ import annotations

import json
import sys

from integration_tests.complaints import ROOT
from integration_tests.streams import Place
from integration_tests.tables import residue_of
from twophase.testing.child import running


def test_a_format_and_its_partitions_work_through_spark_connect(place: Place) -> None:
    place.add_orders(2)
    command = [sys.executable, "-m", "integration_tests.connect_program", str(place.root)]

    with running(command, output=place.root / "output.txt", cwd=ROOT) as child:
        answer = place.root / "said.json"
        child.wait_for(answer.exists, "its answer", timeout_s=240)

    assert json.loads(answer.read_text()) == {"failed": ""}
    assert not place.difference()
    assert {path.name for path in place.table.glob("epoch=0/odd=[01]")} == {"odd=0", "odd=1"}
    assert residue_of(place.table) == []

"""The upgrade promise: a ledger of version 1 is read, written with the same bytes, and gone on with."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.ledger.ledger_folder import contents, ledger_in, path_of, read, records
from twophase.decision import Decision, SinkDecision
from twophase.errors import CheckpointMismatch
from twophase.identity import Attempt, DecisionId, Epoch, Generation, Owner
from twophase.ledger import Tail
from twophase.record import Decide, Enrolment, Prepare, Record, encode
from twophase.sink import Description, Marker
from twophase.vote import VotedShare

SAMPLE = Path(__file__).parent.parent / "samples" / "ledger-v1"

OLD = Generation("5f0c2b9a41d84e6f", 38)
NEW = Generation("5f0c2b9a41d84e6f", 40)
SAMPLE_EPOCH = Epoch(7, "9b1c64f0a2e85d7733c0f1e2d4b5a697")
SAMPLE_FIRST = Decision(
    DecisionId(OLD.ledger, 39),
    OLD,
    SAMPLE_EPOCH,
    0,
    {
        "orders": SinkDecision(
            decided_by=DecisionId(OLD.ledger, 39),
            joined=0,
            base=0,
            origin=Marker(
                Owner("3a51", "orders"), Epoch(6, "00aa11bb22cc33dd44ee55ff66778899"), f"{OLD.ledger}.33.511"
            ),
            shares=(
                VotedShare(0, Attempt(OLD, 611), 1200, "7f3a", '{"producer_epoch":0,"producer_id":4001,"version":1}'),
                VotedShare(1, Attempt(OLD, 612), 0, "0", '{"producer_epoch":3,"producer_id":4002,"version":1}'),
                VotedShare(2, Attempt(OLD, 615), 7, "e1", '{"producer_epoch":0,"producer_id":4003,"version":1}'),
            ),
        ),
        "Prüfung / 監査": SinkDecision(
            decided_by=DecisionId(OLD.ledger, 39),
            joined=7,
            base=3,
            origin=None,
            shares=(
                VotedShare(
                    0,
                    Attempt(OLD, 620),
                    1207,
                    "e19b",
                    '{"bytes":88123,"name":"part-0 \\"ä\\".parquet","rows":1.5e+300,"version":2}',
                ),
            ),
        ),
    },
)
SAMPLE_REVISED = Decision(
    DecisionId(NEW.ledger, 41),
    NEW,
    SAMPLE_EPOCH,
    1,
    {
        "orders": SinkDecision(
            decided_by=DecisionId(NEW.ledger, 41),
            joined=0,
            base=0,
            origin=SAMPLE_FIRST.sinks["orders"].origin,
            shares=(
                SAMPLE_FIRST.sinks["orders"].shares[0],
                VotedShare(1, Attempt(NEW, 702), 0, "0", '{"producer_epoch":0,"producer_id":4009,"version":1}'),
                SAMPLE_FIRST.sinks["orders"].shares[2],
            ),
        ),
        "Prüfung / 監査": SAMPLE_FIRST.sinks["Prüfung / 監査"],
    },
)
SAMPLE_RECORDS: Sequence[Record] = (
    Prepare(
        number=38,
        nonce="n38",
        ledger=OLD.ledger,
        location="file:///checkpoints/orders/twophase",
        query="3a51",
        epoch=SAMPLE_EPOCH,
        tasks=True,
        sinks={"orders": Enrolment(0, 0), "dropped": Enrolment(2, 11)},
        replaces=("e7d0", "11aa"),
        decision=None,
        written_ms=1_763_300_000_038,
    ),
    Decide(39, "n39", OLD.ledger, SAMPLE_FIRST, 1_763_300_000_039),
    Prepare(
        number=40,
        nonce="n40",
        ledger=OLD.ledger,
        location="file:///checkpoints/orders/twophase",
        query="3a51",
        epoch=SAMPLE_EPOCH,
        tasks=True,
        sinks={"orders": Enrolment(0, 0), "dropped": Enrolment(2, 11), "Prüfung / 監査": Enrolment(7, 3)},
        replaces=("e7d0", "11aa"),
        decision=SAMPLE_FIRST,
        written_ms=1_763_300_000_040,
    ),
    Decide(41, "n41", OLD.ledger, SAMPLE_REVISED, 1_763_300_000_041),
    Prepare(
        number=42,
        nonce="n42",
        ledger=OLD.ledger,
        location="file:///checkpoints/orders/twophase",
        query="3a51",
        epoch=Epoch(8, "c4d5e6f708192a3b4c5d6e7f8091a2b3"),
        tasks=False,
        sinks={"orders": Enrolment(0, 0), "dropped": Enrolment(2, 11), "Prüfung / 監査": Enrolment(7, 3)},
        replaces=("e7d0", "11aa"),
        decision=SAMPLE_REVISED,
        written_ms=1_763_300_000_042,
    ),
)


def test_the_sample_of_version_1_is_read_record_by_record() -> None:
    """Never change the sample: it stands for the ledgers that are out there. A new format gets a sample beside it."""
    assert list(records(SAMPLE).items()) == [(record.number, record) for record in SAMPLE_RECORDS]


def test_the_same_content_written_today_has_the_same_bytes() -> None:
    written = {path_of(SAMPLE, record.number).name: encode(record) for record in SAMPLE_RECORDS}

    assert written == contents(SAMPLE)


def test_a_ledger_of_version_1_can_be_gone_on_with_from_any_of_its_records(tmp_path: Path) -> None:
    tails: list[Tail] = []
    for record in SAMPLE_RECORDS:
        tails.append(Tail(record, None) if isinstance(record, Prepare) else Tail(tails[-1].prepare, record))
    assert [tail.number for tail in tails] == [38, 39, 40, 41, 42]
    for kept, expected in enumerate(tails, 1):
        folder = tmp_path / str(kept)
        folder.mkdir()
        for record in SAMPLE_RECORDS[:kept]:
            shutil.copy(path_of(SAMPLE, record.number), folder)
        ledger = ledger_in(folder)
        tail = read(ledger)
        assert tail == expected
        with pytest.raises(CheckpointMismatch, match="file:///checkpoints/orders/twophase"):
            ledger.refuse_if_foreign(tail, query="3a51", moved_from=None)
        ledger.refuse_if_foreign(tail, query="3a51", moved_from="file:/checkpoints/orders/twophase")

        moved = ledger.prepare(tail, query="3a51", epoch=Epoch(8, "x"))

        assert moved.number == expected.number + 1
        assert moved.replaces == ("e7d0", "11aa", OLD.ledger)
        assert moved.decision == expected.decision
        assert moved.sinks == expected.sinks
        assert set(moved.sinks) >= {"orders", "dropped"}
        assert list(records(folder)) == [*range(38, moved.number + 1)]


def test_a_prepare_from_before_begun_sinks_were_written_down_has_begun_those_that_it_describes() -> None:
    described = {"orders": Description("twophase-files", {}), "audit": Description("twophase-files", {})}
    older = Prepare(
        7, "n7", "e7d0", "file:///c", "3a51", SAMPLE_EPOCH, True, {"orders": Enrolment(0, 0)}, targets=described
    )
    assert Tail(older, None).begun == {"audit": SAMPLE_EPOCH.number}
    assert b"begun" not in encode(older)

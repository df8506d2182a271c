"""The command `twophase`: look at a query by its checkpoint, and settle one that is dead."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import TextIO

import twophase
from twophase.connectors.explained import explained
from twophase.connectors.inspection import EpochLine, Inspection, SinkLine, inspect, opened
from twophase.coordinator import Coordinator
from twophase.errors import TwophaseError, about

_SHOWN_EPOCHS = 15


def main(arguments: Sequence[str] | None = None, *, out: TextIO | None = None) -> int:
    """Run the command; 0 if it did what it was asked to, 1 with a sentence on the error output if it could not."""
    told = _parser().parse_args(arguments)
    try:
        with explained():
            told.run(told, out or sys.stdout)
    except TwophaseError as error:
        print(f"twophase: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="twophase", description="Look at, and recover, exactly-once Spark queries.")
    parser.add_argument("--version", action="version", version=f"twophase {twophase.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run, what in (
        ("inspect", _inspect, "say where a query stands; changes nothing, and is safe while it runs"),
        ("recover", _recover, "settle a query that is dead: finish what is decided, remove what is not"),
    ):
        command = commands.add_parser(name, help=what, description=what.capitalize() + ".")
        command.add_argument("checkpoint", metavar="CHECKPOINT", help="the query's checkpointLocation")
        command.add_argument("--ledger", help="the ledger's folder, if the query has the option ledger")
        command.add_argument("--json", action="store_true", help="print one JSON object instead of text")
        command.set_defaults(run=run)
    return parser


def _inspect(told: argparse.Namespace, out: TextIO) -> None:
    _show(inspect(told.checkpoint, ledger=told.ledger), out, as_json=told.json)


def _recover(told: argparse.Namespace, out: TextIO) -> None:
    query, tail = opened(told.checkpoint, ledger=told.ledger)
    if tail is not None:
        with about(owner=query.name):
            Coordinator(query).recover()
    _show(inspect(told.checkpoint, ledger=told.ledger), out, as_json=told.json)


def _show(found: Inspection, out: TextIO, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found.to_json(), indent=2), file=out)
        return
    print(found.verdict, file=out)
    print(file=out)
    for what, value in (
        ("query", found.query),
        ("checkpoint", found.checkpoint),
        ("ledger", found.ledger + ("" if found.ledger_id is None else f" (id {found.ledger_id})")),
        (
            "Spark's logs",
            f"offsets up to {_number(found.newest_offsets)}, commits up to {_number(found.newest_commit)}",
        ),
    ):
        print(f"{what:<13} {value}", file=out)
    for sink in found.sinks:
        _show_sink(sink, out)
    if found.epochs:
        _show_epochs(found.epochs, out)


def _show_sink(sink: SinkLine, out: TextIO) -> None:
    print(file=out)
    options = " ".join(f"{key}={value}" for key, value in sink.options.items())
    print(f"sink {sink.sink}: {sink.format or 'of no known format'} {options}".rstrip(), file=out)
    print(f"  owner       {sink.owner}", file=out)
    if sink.problem is not None:
        print(f"  problem     {sink.problem}", file=out)
        return
    print(f"  marker      {sink.marker}", file=out)
    if sink.open:
        print("  in doubt    the newest decision is not visible here yet", file=out)
    for what in sink.staged:
        print(f"  staged      {what}", file=out)


def _show_epochs(epochs: Sequence[EpochLine], out: TextIO) -> None:
    print(file=out)
    if len(epochs) > _SHOWN_EPOCHS:
        print(f"the newest {_SHOWN_EPOCHS} of {len(epochs)} generations in the ledger (--json has all):", file=out)
    print(
        f"{'epoch':>7} {'generation':>10} {'state':<10} {'rows':>12} {'shares':>7} {'tasks took':>11}  prepared",
        file=out,
    )
    for line in epochs[-_SHOWN_EPOCHS:]:
        state = line.state + (f" (revision {line.revision})" if line.revision else "")
        took = "" if line.decided_after_ms is None else f"{line.decided_after_ms / 1000:.2f} s"
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.prepared_ms / 1000))
        rows, shares = _number(line.rows, ""), _number(line.shares, "")
        print(f"{line.epoch:>7} {line.generation:>10} {state:<10} {rows:>12} {shares:>7} {took:>11}  {when}", file=out)


def _number(number: int | None, none: str = "none") -> str:
    return none if number is None else f"{number:,}"


if __name__ == "__main__":
    sys.exit(main())

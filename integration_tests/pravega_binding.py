"""Pravega's own binding, as a writer and a reader that know nothing of twophase. (It stops at Python 3.11.)"""

from __future__ import annotations

import asyncio
import importlib
import time
import uuid
from collections.abc import Sequence
from typing import Any

from twophase.clients.pravega.stream import Stream

WITHIN_S = 60.0
QUIET_S = 2.0
"""A reader at the end of a stream is told nothing: if nothing comes for so long, it has read all."""


def manager(address: str) -> Any:
    return importlib.import_module("pravega_client").StreamManager(f"tcp://{address}")


def write(address: str, stream: Stream, events: Sequence[tuple[str, bytes]]) -> None:
    """Routing key and content of each."""
    kept = manager(address)  # its threads end with it
    writer = kept.create_writer(stream.scope, stream.name)
    for key, content in events:
        writer.write_event_bytes(content, routing_key=key)
    writer.flush()
    del kept


def read(address: str, stream: Stream, at_least: int) -> list[bytes]:
    """All events from the head of the stream on."""
    kept = manager(address)
    group = kept.create_reader_group(f"group-{uuid.uuid4().hex}", stream.scope, stream.name)
    found = asyncio.run(_read(group.create_reader(f"reader-{uuid.uuid4().hex}"), at_least))
    del kept
    return found


async def _read(reader: Any, at_least: int) -> list[bytes]:
    found = list[bytes]()
    last = begun = time.monotonic()
    while time.monotonic() - begun < WITHIN_S and (len(found) < at_least or time.monotonic() - last < QUIET_S):
        try:
            part = await asyncio.wait_for(reader.get_segment_slice_async(), QUIET_S)
        except TimeoutError:
            continue
        events = [bytes(event.data()) for event in part]
        reader.release_segment(part)
        if events:
            found, last = found + events, time.monotonic()
    return found

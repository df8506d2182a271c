"""Stream cuts: for each segment that is read, the position up to which it was.

    {"shop/orders": {"0": 1048, "4294967297": 0}}

A cut has a segment for every key: together, they take all of them, each once. As text it is what Spark logs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from twophase.clients.pravega.stream import Stream

Cut = Mapping[int, int]


def to_text(stream: Stream, cut: Cut) -> str:
    return json.dumps({str(stream): {str(segment): cut[segment] for segment in sorted(cut)}})


def from_text(stream: Stream, text: str) -> Cut:
    """ValueError, as the end of a sentence, if it is no cut of this stream."""
    wanted = f'is no stream cut: JSON such as {{"{stream}": {{"0": 0}}}} is expected'
    try:
        told = json.loads(text)
    except ValueError:
        raise ValueError(wanted) from None
    if not isinstance(told, dict) or set(told) != {str(stream)} or not isinstance(told[str(stream)], dict):
        raise ValueError(wanted)
    cut = told[str(stream)]
    fits = all(segment.isdecimal() and type(at) is int and at >= 0 for segment, at in cut.items())
    if not cut or not fits:
        raise ValueError(wanted)
    return {int(segment): at for segment, at in cut.items()}

"""What source and sender say to each other, so that lines are neither lost nor doubled when either of them dies.

::

    source ──► twophase-socket 1 journal=5f… stream=orders next=1000      this is what I have of your stream: send line 1000 next
    source ◄── twophase-socket 1 stream=orders first=990                  what follows begins with line 990
    source ◄── …lines 990, 991, 992 …
    source ──► ack=1004                                                   all lines before 1004 are safe: you may forget them

Lines of a stream are numbered from 0 on, by their sender, without being written down: line n is the same bytes each time that it
is sent. The source leaves out what it has. A journal that has met no stream yet says ``stream=- next=-``, and takes it from any
line on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from twophase.errors import DataLost, OptionError, TargetUnavailable

VERSION = 1
MOST_HEADER_BYTES = 1024
_SENDER = re.compile(rb"twophase-socket ([0-9]{1,9}) stream=([A-Za-z0-9._-]{1,64}) first=([0-9]{1,18})\r?")
_REFUSAL = re.compile(rb"twophase-socket [0-9]{1,9} refuse=(.*)")


@dataclass(frozen=True)
class Begin:
    """What a sender says before its lines."""

    stream: str
    first: int


def greeting(journal: str, stream: str | None, following: int) -> bytes:
    known = "stream=- next=-" if stream is None else f"stream={stream} next={following}"
    return f"twophase-socket {VERSION} journal={journal} {known}\n".encode()


def acknowledgement(following: int) -> bytes:
    return f"ack={following}\n".encode()


def begin_of(line: bytes, sender: str) -> Begin:
    """What the first line of a sender says; raises what keeps this source from listening to it."""
    found = _SENDER.fullmatch(line)
    if found is None:
        refusal = _REFUSAL.fullmatch(line)
        if refusal is not None:
            raise TargetUnavailable(f"the sender at {sender} refuses: {refusal[1].decode(errors='replace')}")
        shown = line[:60].decode(errors="replace")
        raise _wrong(
            f"acknowledge is true, and the sender at {sender} began with {shown!r}: it does not speak the protocol. Unset "
            "acknowledge, or use a sender that does"
        )
    if int(found[1]) != VERSION:
        raise _wrong(
            f"the sender at {sender} speaks version {int(found[1])} of the protocol, and this release {VERSION}"
        )
    return Begin(found[2].decode(), int(found[3]))


def require_following(begin: Begin, stream: str | None, following: int, sender: str) -> int:
    """How many of the lines that come are in the journal already."""
    if stream is None:
        return 0
    if begin.stream != stream:
        raise _wrong(
            f"the journal holds lines of the stream {stream!r}, and the sender at {sender} has the stream {begin.stream!r}: mend "
            "host and port, or give another journal, with a new checkpoint"
        )
    if begin.first > following:
        raise DataLost(
            f"the sender at {sender} begins with line {begin.first} of the stream {stream!r}, and the journal has those before "
            f"{following}: the lines {following} to {begin.first - 1} are gone. They were acknowledged to another journal, or this "
            "one was restored from a backup. Begin anew, with a new journal and a new checkpoint"
        )
    return following - begin.first


def _wrong(problem: str) -> OptionError:
    return OptionError(f"1 problem with the options: {problem}", problems=[problem])

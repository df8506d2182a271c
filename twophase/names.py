"""Names from options, made safe to be one path component or one id.

An owner, a sink's name, a table: people choose them, and they become folders, file names and transaction ids. `escape`
turns any text into ASCII that is exactly one path component; `unescape` gives the text back.

The mechanism is percent-escaping of UTF-8 bytes. ``A-Z a-z 0-9 _ -`` stay as they are, and so does a dot that is
neither first nor last; every other byte becomes ``%XX`` with upper-case digits. The empty name becomes a lone ``%``. A
result longer than `LONGEST` bytes is cut, and ends in ``%-`` and the first 128 bits of the SHA-256 of the whole name.

The guarantee:

- the result is never empty, never starts or ends with a dot, and holds no separator and no control character, so that
  no name can leave its folder, be hidden by a listing that skips dot files, or break a line;
- names that differ never give the same result: by construction up to `LONGEST`, by SHA-256 above;
- letters outside ASCII are escaped, so a file system that normalises Unicode can't merge two names;
- `unescape` accepts only what `escape` gives, and refuses a cut name, because the rest of it is not there.

What it can't do: ``A`` and ``a`` stay different only where the file system tells them apart (POSIX and HDFS do; the
defaults of macOS and Windows don't), and a name such as ``CON`` is left alone, although Windows reserves it. The result
may hold ``%``, which a Kafka topic's name may not.
"""

from __future__ import annotations

import hashlib
import re

LONGEST = 200
"""Bytes in the longest result: below the 255 of a file name, with room for what is put before or after it."""

_KEPT = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_DOT = ord(".")
_EMPTY = "%"
_CUT = "%-"
_DIGEST_DIGITS = 32
_PLAIN = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST}}}")
_ESCAPED = re.compile(r"(?:[A-Za-z0-9_.-]|%[0-9A-F]{2})+")


def escape(name: str) -> str:
    """`name` as one path component; reversible by `unescape` unless it had to be cut."""
    if _PLAIN.fullmatch(name):
        return name  # nearly all are, and some are asked for with every request to a target
    # A lone surrogate has no UTF-8 form, but an option can hold one: every text must have a result, and its own.
    data = name.encode("utf-8", "surrogatepass")
    last = len(data) - 1
    whole = "".join(
        chr(byte) if byte in _KEPT or (byte == _DOT and 0 < at < last) else f"%{byte:02X}"
        for at, byte in enumerate(data)
    )
    if len(whole) <= LONGEST:
        return whole or _EMPTY
    head = whole[: LONGEST - len(_CUT) - _DIGEST_DIGITS]
    head = re.sub(r"%.?$", "", head)  # no half of an escape before the mark
    return head + _CUT + hashlib.sha256(data).hexdigest()[:_DIGEST_DIGITS]


def unescape(text: str) -> str:
    """The name whose `escape` is `text`; ValueError if there is none, or if it was cut."""
    if text == _EMPTY:
        return ""
    if _CUT in text:
        raise ValueError(f"{text!r} is a name that was cut: the whole of it is not known")
    name = _decoded(text) if _ESCAPED.fullmatch(text) else None
    # A second spelling, such as %41 for A, is nobody's escape: accepting it would give one name two folders.
    if name is None or escape(name) != text:
        raise ValueError(f"{text!r} is not an escaped name")
    return name


def _decoded(text: str) -> str | None:
    data = re.sub(rb"%(..)", lambda found: bytes([int(found[1], 16)]), text.encode("ascii"))
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None

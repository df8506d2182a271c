"""A few kilobytes spelled by the names of empty folders: content that needs no file.

It is for places where a file would be in somebody's way, or is slow: on HDFS a small file costs up to half a second, and a folder
some milliseconds.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable, Iterator

_NAME_LENGTH = 200


def spelled(data: bytes) -> Iterator[str]:
    """The names of the folders that stand for it; in lower case, since some file systems don't tell cases apart."""
    letters = base64.b32encode(zlib.compress(data, 9)).decode().rstrip("=").lower()
    for number, start in enumerate(range(0, len(letters), _NAME_LENGTH)):
        yield f"{number:06}-{letters[start : start + _NAME_LENGTH]}"


def read_from(names: Iterable[str]) -> bytes:
    """What folders spell; ValueError if one is missing, or is none of them."""
    letters = ""
    for number, name in enumerate(sorted(names)):
        place, _, part = name.partition("-")
        if place != f"{number:06}":
            raise ValueError(f"is torn: of the folders that spell it, number {number} is missing")
        letters += part.upper()
    try:
        return zlib.decompress(base64.b32decode(letters + "=" * (-len(letters) % 8)))
    except (binascii.Error, zlib.error) as error:
        raise ValueError("is torn or was altered: its folders spell nothing") from error

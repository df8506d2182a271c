"""What a query's user sees of its failure: our sentence, and little else."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_JVM_FRAME = re.compile(r"^\s+at [\w.$]+\(", re.MULTILINE)
_OUR_FRAME = re.compile(rf'^\s*File "{re.escape(str(ROOT))}/(?:connectors|sinks|sources|twophase)/', re.MULTILINE)


def sentence_in(said: str, condition: str, *, frames: int = 2) -> str:
    """The sentence with this condition, if the user can find it: no JVM frame, and at most so many of our own lines, around it."""
    sentences = [line for line in said.splitlines() if f"[{condition}]" in line]
    assert len(sentences) == 1, said
    assert not _JVM_FRAME.search(said), said
    assert len(_OUR_FRAME.findall(said)) <= frames, said
    return sentences[0].partition(f"[{condition}] ")[2]

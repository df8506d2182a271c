"""What the application is told to run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Run:
    """One run of one contender."""

    target: str
    contender: str
    folder: str
    """Where it keeps its checkpoint, and what it writes if that is files."""
    input: str = ""
    files_per_epoch: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)
    """What else the contenders of this target are told."""

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Run:
        return cls(**json.loads(line))

"""A gate in the plain pipeline: whoever comes to it in the epoch that it is closed for waits there, to be killed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.05


@dataclass(frozen=True)
class Gate:
    """Two files: `closed` says where and for which epoch, `reached` that somebody is there."""

    closed: str
    reached: str

    @classmethod
    def of(cls, place: str) -> Gate:
        return cls(f"{place}/gate-closed", f"{place}/gate-reached")

    def close(self, step: str, epoch: int) -> None:
        Path(self.reached).unlink(missing_ok=True)
        Path(self.closed).write_text(f"{step} {epoch}")

    def open(self) -> None:
        Path(self.closed).unlink(missing_ok=True)

    @property
    def is_reached(self) -> bool:
        return Path(self.reached).exists()

    def pass_by(self, step: str, epoch: int) -> None:
        while self._is_closed(step, epoch):
            Path(self.reached).touch()
            time.sleep(_POLL_S)

    def _is_closed(self, step: str, epoch: int) -> bool:
        try:
            return Path(self.closed).read_text() == f"{step} {epoch}"
        except FileNotFoundError:
            return False

"""How a job tells the comparison where it is: a small file, replaced at most a few times a second."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

_EVERY_S = 0.3


@dataclass(frozen=True)
class Report:
    """Where a job is. ``success`` holds the newest evaluation made while training."""

    phase: str = "starting"
    done: float = 0.0
    total: float | None = None
    note: str = ""
    success: float | None = None

    @property
    def fraction(self) -> float | None:
        """How much of the phase is done, where its total is known."""
        return min(self.done / self.total, 1.0) if self.total else None


class FileProgress:
    """A `flowrl.learner.progress.Progress` that writes a `Report` into a file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._written = path, 0.0
        self._phase, self._done, self._note = "starting", 0.0, ""
        self._total: float | None = None
        self._success: float | None = None
        self._write()

    def phase(self, name: str, total: float | None = None) -> None:
        """A new phase begins."""
        self._phase, self._total, self._done, self._note = name, total, 0.0, ""
        self._write()

    def advance(self, done: float, note: str = "") -> None:
        """Where the phase is; written when the last writing is old enough."""
        self._done, self._note = done, note or self._note
        if time.monotonic() - self._written >= _EVERY_S:
            self._write()

    def collected(self, steps: int, rate: float, episodes: int) -> None:
        """Not shown: ``advance`` says it, too."""

    def success(self, step: int, rate: float) -> None:
        """The newest evaluation."""
        self._success = rate
        self._write()

    def say(self, text: str) -> None:
        """Not shown: a run says the same in its log."""

    def _write(self) -> None:
        self._written = time.monotonic()
        report = Report(self._phase, self._done, self._total, self._note, self._success)
        aside = self._path.with_name(f".{self._path.name}")
        aside.write_text(json.dumps(asdict(report)))
        aside.replace(self._path)


def read_report(path: Path) -> Report:
    """What a job last wrote; a report of a beginning when it has written nothing."""
    try:
        return Report(**json.loads(path.read_text()))
    except FileNotFoundError:
        return Report()

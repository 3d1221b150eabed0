"""How a long piece of work tells where it is; the command line shows it, tests and jobs stay quiet."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A listener. Phases follow one another; ``advance`` counts towards the phase's total."""

    def phase(self, name: str, total: float | None = None) -> None:
        """A new phase begins; ``total`` units of work are expected."""
        ...

    def advance(self, done: float, note: str = "") -> None:
        """``done`` units of the phase are complete; ``note`` is the newest number worth seeing."""
        ...

    def collected(self, steps: int, rate: float, episodes: int) -> None:
        """A point of the live curve: success of the newest ``episodes`` collected, after ``steps``."""
        ...

    def success(self, step: int, rate: float) -> None:
        """The answer of an evaluation made while training, by update."""
        ...

    def say(self, text: str) -> None:
        """A line that stays."""
        ...


class Quiet:
    """Listens and shows nothing."""

    def phase(self, name: str, total: float | None = None) -> None:
        """Ignored."""

    def advance(self, done: float, note: str = "") -> None:
        """Ignored."""

    def collected(self, steps: int, rate: float, episodes: int) -> None:
        """Ignored."""

    def success(self, step: int, rate: float) -> None:
        """Ignored."""

    def say(self, text: str) -> None:
        """Ignored."""

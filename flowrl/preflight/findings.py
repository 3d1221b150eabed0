"""What a check says: findings by subject, and numbers per dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Level = Literal["ok", "warning", "error"]
"""An ``error`` is certain, and blocks a run. What a heuristic suspects is at most a ``warning``."""

Subject = Literal[
    "interfaces", "content", "timing", "values", "cameras", "actions", "normalisation", "machine"
]

SUBJECTS: Mapping[Subject, str] = {
    "interfaces": "What each side sees and does",
    "content": "Episodes",
    "timing": "Rate and horizon",
    "values": "Values per dimension",
    "cameras": "Cameras",
    "actions": "Meaning of actions and rotations",
    "normalisation": "Normalisation, trained and served",
    "machine": "This machine",
}
"""Subjects in the order in which they are shown, with their titles."""


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, how it stands, and, unless it is ``ok``, what to do.

    ``numbers`` are the figures behind the message, for programs.
    """

    level: Level
    subject: Subject
    name: str
    message: str
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class Dimension:
    """One dimension of the state or the action in the data, and what the policy makes of it.

    ``q01``, ``median`` and ``q99`` are quantiles of the rows looked at, ``minimum`` and ``maximum`` of all
    rows. ``low`` and ``high`` are the policy's 1 % and 99 % quantiles of the state, or what its normalisation
    maps to [-1, 1] of the action; without a policy the bounds of the action, or None. ``outside`` is the share
    of rows beyond them, ``at_bounds`` that of actions at their bounds.
    """

    kind: Literal["state", "action"]
    name: str
    q01: float
    median: float
    q99: float
    minimum: float
    maximum: float
    low: float | None = None
    high: float | None = None
    outside: float = 0.0
    at_bounds: float = 0.0


@dataclass(frozen=True)
class Checked:
    """Everything that was found. ``compared`` names what was given, ``rows`` the rows looked at and all rows."""

    compared: Sequence[str]
    findings: Sequence[Finding]
    dimensions: Sequence[Dimension] = ()
    rows: tuple[int, int] = (0, 0)

    def at(self, level: Level) -> list[Finding]:
        """The findings of one level."""
        return [finding for finding in self.findings if finding.level == level]

    def about(self, subject: Subject) -> list[Finding]:
        """The findings of one subject."""
        return [finding for finding in self.findings if finding.subject == subject]

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        errors, warnings = len(self.at("error")), len(self.at("warning"))
        seen = f"{warnings} warning{'s' * (warnings != 1)}"
        if errors:
            return f"A run would be refused: {errors} error{'s' * (errors != 1)}, {seen}."
        return f"A run would start, with {seen}." if warnings else "Nothing speaks against a run."

    def to_json(self) -> dict[str, Any]:
        """A JSON object: verdict, findings, dimensions."""
        return {
            "format": 1,
            "ok": not self.at("error"),
            "verdict": self.verdict,
            "compared": list(self.compared),
            "rows_looked_at": self.rows[0],
            "rows": self.rows[1],
            "findings": [{**asdict(f), "numbers": dict(f.numbers)} for f in self.findings],
            "dimensions": [asdict(each) for each in self.dimensions],
        }


def listed(items: Sequence[str], most: int = 8) -> str:
    """Items separated by commas; beyond ``most`` of them only how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more

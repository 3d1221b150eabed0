"""What actions mean: absolute targets or changes, by how they go along with the state.

An action that is an absolute target rises with the state one step later; one that is a change rises with the
change of the state. Both are correlations, so they suspect, and never refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flowrl.preflight.findings import Finding, listed
from flowrl.preflight.rows import Rows
from flowrl.spec import Spec

CLEAR = 0.9
"""A correlation that says what an action is."""
APART = 0.2
"""By how much it must exceed the other one."""
LEAST_ROWS = 50

Meaning = Literal["absolute", "relative", "unclear"]
_WORDS: dict[Meaning, tuple[str, ...]] = {
    "relative": ("delta", "relative", "vel", "velocity", "twist"),
    "absolute": ("abs", "absolute", "target", "goal"),
}
_KEYS = ("action_space", "action_mode", "action_type", "control_mode")


@dataclass(frozen=True)
class Motion:
    """One action dimension: its largest correlation with the next state, and with the change of the state."""

    name: str
    level: float
    change: float

    @property
    def meaning(self) -> Meaning:
        """What the correlations say."""
        if self.level > CLEAR and self.level > self.change + APART:
            return "absolute"
        if self.change > CLEAR and self.change > self.level + APART:
            return "relative"
        return "unclear"


def motions(rows: Rows, stream: int | None = None) -> list[Motion]:
    """Each action dimension of all streams, or of one by its position; empty with too few rows."""
    here = rows.going_on
    chosen = np.ones(len(here), np.bool_) if stream is None else rows.stream[here] == stream
    if chosen.sum() < LEAST_ROWS:
        return []
    state, after = rows.state[here][chosen].astype(np.float64), rows.following[chosen].astype(np.float64)
    action = rows.action[here][chosen].astype(np.float64)
    level, change = _correlations(action, after), _correlations(action, after - state)
    names = rows.reader.spec.action.names
    return [
        Motion(name, *map(float, pair))
        for name, *pair in zip(
            names, level.max(axis=1, initial=0), change.max(axis=1, initial=0), strict=True
        )
    ]


def check_motion(rows: Rows) -> Iterator[Finding]:
    """What the actions look like against what their names or the spec's settings say, and between streams."""
    spec, all_of = rows.reader.spec, motions(rows)
    if not all_of:
        return
    wrong = [
        f"{each.name} is {said}, but looks {each.meaning} (correlation with the next state {each.level:.2f}, "
        f"with its change {each.change:.2f})"
        for each in all_of
        if (said := stated(each.name, spec)) is not None and each.meaning not in ("unclear", said)
    ]
    if wrong:
        message = (
            f"by its name or the settings, {listed(wrong, 3)}; a policy of one executed as the other moves "
            "wildly: convert the actions, or correct the names"
        )
        yield Finding("warning", "actions", "absolute or relative", message, {"dimensions": len(wrong)})
    mixed = _mixed(rows)
    if mixed:
        message = f"streams disagree: {listed(mixed, 3)}; do not mix them, convert one of them first"
        yield Finding("warning", "actions", "streams", message, {"dimensions": len(mixed)})
    if not wrong and not mixed:
        yield Finding("ok", "actions", "absolute or relative", _summary(all_of))


def stated(name: str, spec: Spec) -> Meaning | None:
    """What an action dimension is by its own name, else by a setting such as ``action_space``."""
    settings = [str(spec.settings[key]) for key in _KEYS if key in spec.settings]
    for text in (name, *settings):
        words = text.lower().replace("-", "_").replace(".", "_").split("_")
        for meaning, known in _WORDS.items():
            if any(word in known for word in words):
                return meaning
    return None


def _correlations(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pearson's correlation of all pairs of columns of (P, A) and (P, S): (A, S), 0 where one is constant."""
    parts = [side - side.mean(axis=0) for side in (left, right)]
    norms = [np.linalg.norm(part, axis=0) for part in parts]
    size = norms[0][:, None] * norms[1]
    still = (norms[0][:, None] < 1e-9) | (norms[1] < 1e-9)
    return np.where(still, 0.0, (parts[0].T @ parts[1]) / np.where(still, 1.0, size))


def _mixed(rows: Rows) -> list[str]:
    """Action dimensions that look absolute in one stream and relative in another."""
    found: dict[str, dict[Meaning, str]] = {}
    for index, stream in enumerate(rows.reader.streams):
        for each in motions(rows, index):
            if each.meaning != "unclear":
                found.setdefault(each.name, {}).setdefault(each.meaning, stream)
    return [
        f"{name} looks absolute in {meanings['absolute']} and relative in {meanings['relative']}"
        for name, meanings in found.items()
        if len(meanings) == 2
    ]


def _summary(all_of: Sequence[Motion]) -> str:
    counts = {m: [each for each in all_of if each.meaning == m] for m in ("absolute", "relative")}
    parts = [f"{len(found)} look {meaning}" for meaning, found in counts.items() if found]
    unclear = len(all_of) - sum(len(found) for found in counts.values())
    parts += [f"{unclear} cannot be told by correlation"] if unclear else []
    return f"of {len(all_of)} dimensions {', '.join(parts)}"

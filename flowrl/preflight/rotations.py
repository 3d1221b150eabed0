"""Rotations by the names of their dimensions: unit quaternions, axis-angle and Euler angles, 6D columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flowrl.preflight.findings import Finding
from flowrl.preflight.rows import Rows

TOLERANCE = 0.02
"""Of a norm of 1, and of right angles."""
BAD_SHARE = 0.01
FULL_TURN = 2 * np.pi + 0.1

Form = Literal["quaternion", "axis-angle", "Euler angles", "6D rotation"]

_FORMS: tuple[tuple[Form, re.Pattern[str], int], ...] = (
    ("quaternion", re.compile(r"(^|[._])quat(ernion)?([._]|$)"), 4),
    ("6D rotation", re.compile(r"(^|[._])(rot(ation)?_?6d|6d)([._]|$)"), 6),
    ("axis-angle", re.compile(r"(^|[._])(axis_?angle|rotvec|rot_vec)([._]|$)"), 3),
    ("Euler angles", re.compile(r"(^|[._])euler([._]|$)"), 3),
)
_RELATIVE = re.compile(r"delta|(^|[._])d?vel|_to_")


@dataclass(frozen=True)
class Rotation:
    """Consecutive dimensions that are one rotation by their names."""

    form: Form
    name: str
    columns: slice


def rotations(names: Sequence[str]) -> list[Rotation]:
    """The rotations among dimension names: as many neighbours as the form needs, named alike but for the end."""
    found: list[Rotation] = []
    start = 0
    while start < len(names):
        rotation = _at(names, start)
        if rotation is None:
            start += 1
        else:
            found.append(rotation)
            start = rotation.columns.stop
    return found


def check_rotations(rows: Rows) -> Iterator[Finding]:
    """All rotations of state and action, over the rows looked at."""
    spec = rows.reader.spec
    labels = [f.names[i] if f.names else f"{f.name}.{i}" for f in spec.state_features for i in range(f.size)]
    good: list[str] = []
    for kind, names, values in (("state", labels, rows.state), ("action", spec.action.names, rows.action)):
        for rotation in rotations(names):
            message = _fault(rotation, values[:, rotation.columns].astype(np.float64))
            if message:
                yield Finding("warning", "actions", f"{kind} {rotation.name}", message)
            else:
                good.append(f"{rotation.name} ({rotation.form})")
    if good:
        yield Finding("ok", "actions", "rotations", f"well formed: {', '.join(good)}")


def _at(names: Sequence[str], start: int) -> Rotation | None:
    for form, pattern, size in _FORMS:
        group = [name.lower() for name in names[start : start + size]]
        if len(group) == size and all(pattern.search(name) for name in group):
            stems = {re.sub(r"[._]?(\d+|[wxyz]|roll|pitch|yaw)$", "", name) for name in group}
            if len(stems) == 1 and not _RELATIVE.search(group[0]):
                return Rotation(form, stems.pop(), slice(start, start + size))
    return None


def _fault(rotation: Rotation, values: NDArray[np.float64]) -> str:
    """What is wrong with (R, size) values of a rotation; empty when nothing is."""
    if rotation.form == "quaternion":
        norms = np.linalg.norm(values, axis=1)
        share = float((np.abs(norms - 1) > TOLERANCE).mean())
        return (
            f"{share:.1%} of the quaternions have no norm of 1 ({norms.min():.3g} .. {norms.max():.3g}); were they "
            "averaged, normalised per dimension, or is it another form? Convert them again"
            if share > BAD_SHARE
            else ""
        )
    if rotation.form == "6D rotation":
        return _six(values)
    size = np.linalg.norm(values, axis=1) if rotation.form == "axis-angle" else np.abs(values).max(axis=1)
    share = float((size > FULL_TURN).mean())
    return (
        f"{share:.1%} of the angles exceed a full turn (up to {size.max():.3g} rad); are they degrees? "
        "Convert them to radians"
        if share > BAD_SHARE
        else ""
    )


def _six(values: NDArray[np.float64]) -> str:
    """Two columns of a rotation matrix (arXiv 1812.07035, section 4): each of norm 1, at right angles."""
    first, second = values[:, :3], values[:, 3:]
    norms = [np.linalg.norm(each, axis=1) for each in (first, second)]
    product = np.abs((first * second).sum(axis=1))
    off = (np.abs(np.stack(norms) - 1).max(axis=0) > TOLERANCE) | (product > TOLERANCE)
    share = float(off.mean())
    return (
        f"{share:.1%} of the 6D rotations are no two unit columns at right angles; are they rows, or another "
        "form? Convert them again"
        if share > BAD_SHARE
        else ""
    )

"""Compare what two sides see and do, by name: each difference a finding with its own remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from itertools import pairwise

from flowrl.preflight.findings import Finding, Level, Subject
from flowrl.spec import IMAGES, Difference, Spec, compare

Side = tuple[str, Spec]


def check_interfaces(sides: Sequence[Side]) -> Iterator[Finding]:
    """Compare neighbours of a list of named specs; chunking and normalisation only where both state them."""
    for left, right in pairwise(sides):
        yield from compare_sides(left, right)


def compare_sides(left: Side, right: Side) -> Iterator[Finding]:
    """All differences of two sides as errors; one finding that is ``ok`` when there are none."""
    (left_name, mine), (right_name, theirs) = left, right
    name = f"{left_name} against {right_name}"
    differences = compare(mine, theirs)
    if not differences:
        cameras = f", {len(mine.cameras)} cameras" if mine.cameras else ""
        sizes = f"S = {mine.state_size}, A = {mine.action.size}, {mine.control_hz:g} Hz{cameras}"
        yield Finding("ok", "interfaces", name, f"specs match ({sizes})")
    for difference in differences:
        yield _finding(name, difference, left, right)


def fit_together(left: Spec, right: Spec) -> bool:
    """Whether rows of one side have the dimensions and cameras of the other, so that values can be compared."""
    return left.observation == right.observation and left.action.names == right.action.names


def _finding(name: str, difference: Difference, left: Side, right: Side) -> Finding:
    where = difference.where
    level: Level = "error"
    subject: Subject = "interfaces"
    said = f"{where}: {left[0]} {difference.left!r}, {right[0]} {difference.right!r}"
    if {difference.left, difference.right} == {"present", "missing"}:
        said, remedy = _missing(where, difference, left, right)
    elif where.startswith(IMAGES) and where.endswith(".shape"):
        remedy = "both must see the same size: import again with --image-size, or set image_size"
    elif where == "control_hz":
        remedy = "an action lasts another time there; record, or train, at one rate"
    elif where in ("action.low", "action.high"):
        said = f"{where}: {_values(where, left, right)}"
        remedy = "the same action means another motion; import again for the same bounds"
    elif where in ("action.names", "order of state features") or where.endswith(".names"):
        remedy = "values would be read as those of other dimensions; bring them into one order"
    elif where.startswith("chunk."):
        remedy = "serve and train with the chunk the policy was made for"
    else:
        remedy = "use data and policy of the same setting"
    return Finding(level, subject, name, f"{said}; {remedy}")


def _missing(where: str, difference: Difference, left: Side, right: Side) -> tuple[str, str]:
    has, lacks = (left, right) if difference.left == "present" else (right, left)
    kind = "camera" if where.startswith(IMAGES) else "feature"
    others = [f.name for f in lacks[1].observation if f.is_image == (kind == "camera")]
    same = [name for name in others if name not in {f.name for f in has[1].observation}]
    said = f"{kind} {where} is present in {has[0]} and missing in {lacks[0]}"
    near = difflib.get_close_matches(where, same, 1, cutoff=0.0)
    if near:
        return (
            said,
            f"names decide: if {near[0]} is the same {kind}, rename it when it is imported or recorded",
        )
    return said, f"record it, or train a policy without it; {lacks[0]} has {', '.join(others) or 'none'}"


def _values(where: str, left: Side, right: Side) -> str:
    """The first action dimension whose bound differs, by name."""
    sides = [getattr(side[1].action, where.rpartition(".")[2]) for side in (left, right)]
    for label, mine, theirs in zip(left[1].action.names, *sides, strict=False):
        if mine != theirs:
            return f"{label} is {mine:g} in {left[0]} and {theirs:g} in {right[0]}"
    return f"{len(sides[0])} values in {left[0]} and {len(sides[1])} in {right[0]}"

"""Numbers per dimension: quantiles, what is constant, what lies outside bounds or what the policy knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flowrl.normalisation import Normalisation
from flowrl.preflight.findings import Dimension, Finding, listed
from flowrl.preflight.rows import Rows
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import Floats

OUTSIDE_SHARE = 0.2
"""A dimension with more than this share outside the 1 % to 99 % range of the policy's data is warned of."""
CONSTANT = 1e-6
AT_BOUNDS_SHARE = 0.95
"""Beyond this share at both bounds, an action that takes other values too is warned of."""
USED_SHARE = 0.01
"""An action that spans less than this part of its bounds is suspected to be in another unit."""
BOUND_TOLERANCE = 1e-4

Numbers = NDArray[np.floating]


def check_values(rows: Rows, normalisation: Normalisation | None) -> tuple[list[Finding], list[Dimension]]:
    """Findings and quantiles of state and action. Bounds and finiteness are checked on all rows."""
    broken = list(_not_finite(rows.reader))
    if broken:
        return broken, []
    dimensions = [*_states(rows, normalisation), *_actions(rows, normalisation)]
    found = [
        *_bounds(rows.reader),
        *_constant(dimensions),
        *_use_of_bounds(rows.reader, dimensions),
    ]
    if normalisation is not None:
        found += _known([d for d in dimensions if d.kind == "state"])
        found += _representable(rows.reader, [d for d in dimensions if d.kind == "action"])
    return found, dimensions


def _states(rows: Rows, normalisation: Normalisation | None) -> Iterator[Dimension]:
    low = high = None
    if normalisation is not None:
        low, high = np.asarray(normalisation.state_q01), np.asarray(normalisation.state_q99)
    names = rows.reader.spec.state_dimension_names()
    yield from _dimensions("state", names, rows.state, rows.reader.state, low, high)


def _actions(rows: Rows, normalisation: Normalisation | None) -> Iterator[Dimension]:
    spec = rows.reader.spec.action
    low, high = np.asarray(spec.low), np.asarray(spec.high)
    at_bounds = _near(rows.action, low, high).mean(axis=0)
    if normalisation is not None:
        centre, half = np.asarray(normalisation.action_centre), np.asarray(normalisation.action_half_range)
        low, high = centre - half, centre + half
    for index, each in enumerate(
        _dimensions("action", spec.names, rows.action, rows.reader.action, low, high, BOUND_TOLERANCE)
    ):
        yield replace(each, at_bounds=float(at_bounds[index]))


def _dimensions(
    kind: Literal["state", "action"],
    names: Sequence[str],
    sample: Floats,
    every: Floats,
    low: Numbers | None,
    high: Numbers | None,
    tolerance: float = CONSTANT,
) -> Iterator[Dimension]:
    q01, median, q99 = np.quantile(sample.astype(np.float64), [0.01, 0.5, 0.99], axis=0)
    minimum, maximum = every.min(axis=0), every.max(axis=0)
    outside = np.zeros(len(names))
    if low is not None and high is not None:
        margin = tolerance * np.maximum(1.0, np.maximum(np.abs(low), np.abs(high)))
        outside = ((sample < low - margin) | (sample > high + margin)).mean(axis=0)
    for i, name in enumerate(names):
        yield Dimension(
            kind,
            name,
            float(q01[i]),
            float(median[i]),
            float(q99[i]),
            float(minimum[i]),
            float(maximum[i]),
            None if low is None else float(low[i]),
            None if high is None else float(high[i]),
            float(outside[i]),
        )


def _near(actions: Floats, low: Numbers, high: Numbers) -> NDArray[np.bool_]:
    margin = 1e-3 * (high - low)
    return (actions <= low + margin) | (actions >= high - margin)


def _not_finite(reader: ReplayReader) -> Iterator[Finding]:
    spec = reader.spec
    for kind, names, values in (
        ("state", spec.state_dimension_names(), reader.state),
        ("action", spec.action.names, reader.action),
        ("reward", ("reward",), reader.reward[:, None]),
    ):
        counts = (~np.isfinite(values)).sum(axis=0)
        wrong = [f"{names[i]} ({counts[i]:,} steps)" for i in np.flatnonzero(counts)]
        if wrong:
            message = (
                f"not finite: {listed(wrong)}; find the episodes with `flowrl replay verify` and remove them"
            )
            yield Finding("error", "values", f"{kind} finite", message, {"values": int(counts.sum())})


def _bounds(reader: ReplayReader) -> Iterator[Finding]:
    spec = reader.spec.action
    low, high = np.asarray(spec.low), np.asarray(spec.high)
    outside = ((reader.action < low - BOUND_TOLERANCE) | (reader.action > high + BOUND_TOLERANCE)).mean(
        axis=0
    )
    minimum, maximum = reader.action.min(axis=0), reader.action.max(axis=0)
    for i in np.flatnonzero(outside):
        message = (
            f"{outside[i]:.1%} of the steps lie outside the bounds ({minimum[i]:.3g} .. {maximum[i]:.3g}, allowed "
            f"{low[i]:g} .. {high[i]:g}); import again with a rule: --actions clip or rescale"
        )
        yield Finding("error", "values", f"action {spec.names[i]}", message, {"outside": float(outside[i])})
    if not outside.any():
        yield Finding("ok", "values", "action bounds", "every executed action lies within the bounds")


def _constant(dimensions: Sequence[Dimension]) -> Iterator[Finding]:
    for kind in ("state", "action"):
        names = [d.name for d in dimensions if d.kind == kind and d.maximum - d.minimum < CONSTANT]
        if names:
            message = f"constant in this data, so nothing is learned from them: {', '.join(names)}"
            yield Finding("warning", "values", f"constant {kind}", message, {"dimensions": len(names)})


def _use_of_bounds(reader: ReplayReader, dimensions: Sequence[Dimension]) -> Iterator[Finding]:
    spec = reader.spec.action
    full: list[str] = []
    little: list[str] = []
    for each, low, high in zip(
        [d for d in dimensions if d.kind == "action"], spec.low, spec.high, strict=True
    ):
        used = (each.maximum - each.minimum) / (high - low)
        only_two_values = each.maximum - each.minimum >= CONSTANT and each.at_bounds == 1.0
        if each.at_bounds > AT_BOUNDS_SHARE and not only_two_values:
            full.append(f"{each.name} {each.at_bounds:.0%}")
        if used < USED_SHARE and each.maximum - each.minimum >= CONSTANT:
            little.append(f"{each.name} {used:.2%}")
    if full:
        message = (
            f"almost always at their bounds: {listed(full)} of the steps; were they clipped from a larger range? "
            "rescale instead (--actions rescale)"
        )
        yield Finding("warning", "values", "actions at bounds", message)
    if little:
        message = (
            f"use hardly any of their bounds: {listed(little)}; are they in another unit (metres where the "
            "controller takes -1 to 1)?"
        )
        yield Finding("warning", "values", "use of bounds", message)


def _known(states: Sequence[Dimension]) -> Iterator[Finding]:
    far = sorted((d for d in states if d.outside > OUTSIDE_SHARE), key=lambda d: -d.outside)
    worst = max((d.outside for d in states), default=0.0)
    if far:
        shares = [
            f"{d.name} {d.outside:.0%} (data {d.q01:.3g} .. {d.q99:.3g}, policy {d.low:.3g} .. {d.high:.3g})"
            for d in far
        ]
        message = (
            f"outside the 1 % to 99 % range the policy was trained on: {listed(shares, 4)}; if the unit or the "
            "frame changed, mend it; if the task did, expect the base to fail there"
        )
        yield Finding("warning", "values", "observation range", message, {"worst_share": worst})
    else:
        message = f"within what the policy was trained on (at most {worst:.0%} of a dimension outside)"
        yield Finding("ok", "values", "observation range", message, {"worst_share": worst})


def _representable(reader: ReplayReader, actions: Sequence[Dimension]) -> Iterator[Finding]:
    """Actions within the bounds that the policy cannot make, because its own range is narrower."""
    spec = reader.spec.action
    narrow = [
        f"{d.name} {d.outside:.1%} (policy {d.low:.3g} .. {d.high:.3g})"
        for d, low, high in zip(actions, spec.low, spec.high, strict=True)
        if d.low is not None
        and d.high is not None
        and (d.low > low + BOUND_TOLERANCE or d.high < high - BOUND_TOLERANCE)
        and d.outside > 0.01
    ]
    if narrow:
        message = (
            f"beyond what the policy can do: {listed(narrow, 4)} of the steps; its statistics are of other "
            "actions. Fit a policy on this data, or bring the actions to its range"
        )
        yield Finding("warning", "values", "policy's action range", message)

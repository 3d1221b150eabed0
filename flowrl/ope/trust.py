"""When not to trust an estimate, in words."""

from __future__ import annotations

import math

from flowrl.acting import Actor
from flowrl.ope.data import EpisodeSubset, LoggedData
from flowrl.ope.fqe import FQEValues
from flowrl.ope.likelihood import Densities
from flowrl.ope.wpdis import FEW_EPISODES, Weighted
from flowrl.replay.schema import EPISODE, Outcome

FEW_STARTS = 20
OUTSIDE = 0.2
FARTHER = 1.5
EFFECTIVE = 0.1
"""Warn below this share of effective episodes."""


def on_data(data: LoggedData, actor: Actor) -> list[str]:
    """What concerns every estimate."""
    notes = list[str]()
    chunk = actor.policy.chunk
    if data.episodes < FEW_STARTS:
        notes.append(f"Only {data.episodes} episodes: intervals over so few initial states are rough.")
    if chunk.executed < chunk.length:
        notes.append(
            f"The policies look again after {chunk.executed} of {chunk.length} actions; fitted-Q values them as "
            "if they executed whole chunks."
        )
    timeouts = sum(int((p.table[:, EPISODE["outcome"]] == Outcome.TIMEOUT).sum()) for p in _parts(data))
    if timeouts:
        notes.append(
            f"{timeouts} of {data.episodes} episodes ended by the time limit; fitted-Q goes on beyond it, so its "
            "values tend to lie above what is measured within the limit."
        )
    return notes


def on_fit(values: FQEValues, base: FQEValues, data: LoggedData) -> tuple[str, ...]:
    """What speaks against a fitted value. ``base`` is the fit of the policy that others are held against."""
    warnings = list[str]()
    spread = float(data.returns().std())
    if math.isnan(values.td_error):
        warnings.append("no whole chunk was held out, so the fit was not checked")
    elif values.td_error > spread:
        warnings.append(
            f"the held-out TD error {values.td_error:.3g} exceeds the spread of logged returns {spread:.3g}"
        )
    if values.outside > OUTSIDE:
        warnings.append(f"{values.outside:.0%} of the initial states are valued outside the logged returns")
    if values.distance > FARTHER * base.distance:
        warnings.append(
            f"its actions lie {values.distance / base.distance:.1f} times as far from logged ones as the base's: "
            "the critic extrapolates"
        )
    return tuple(warnings)


def drift(moved: float, half_width: float) -> tuple[str, ...]:
    """A value that still moves has not been fitted to the end."""
    if moved <= half_width:
        return ()
    return (f"the estimate still moved by {moved:.3g} in the last quarter of the updates: raise --updates",)


def on_weights(weighted: Weighted, candidate: Densities, behaviour: Densities) -> tuple[str, ...]:
    """What speaks against an estimate by importance sampling."""
    total, used = len(weighted.usable), int(weighted.usable.sum())
    warnings = list[str]()
    if used < total:
        reasons = {
            "clipped to a bound": behaviour.clipped,
            "not inverted": candidate.not_inverted + behaviour.not_inverted,
            "folded": candidate.folded + behaviour.folded,
        }
        words = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
        warnings.append(
            f"{total - used} of {total} episodes have chunks without a density ({words}) and are left out"
        )
    if used < FEW_EPISODES:
        warnings.append(f"{used} episodes are too few for an estimate")
    elif weighted.effective_share < EFFECTIVE:
        warnings.append(
            f"at one decision {weighted.effective.min():.1f} of {total} episodes carry the weight: the policy is "
            "too far from the one that collected"
        )
    return tuple(warnings)


def _parts(data: LoggedData) -> tuple[EpisodeSubset, ...]:
    return (data.training, data.held_out)

"""What a step must satisfy before it enters a stream, and how it is packed into the two matrices.

`flowrl.replay.verify` checks the same invariants afterwards: what is refused here cannot be stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowrl.errors import DataError, ReplayError
from flowrl.replay.schema import (
    INT,
    NO_INTERVENTION,
    Array,
    Floats,
    Kind,
    Outcome,
    OutcomeBy,
    Source,
    Step,
    as_state,
    column_name,
)
from flowrl.spec import Spec


@dataclass(frozen=True)
class StepChecks:
    """The checks of one stream. ``where`` names stream, episode and step in every message."""

    spec: Spec
    kind: Kind

    def floats(self, step: Step, where: str) -> Floats:
        """The float row of a step. Raises DataError when a shape is wrong or a value not finite."""
        size = self.spec.action.size
        state = self.state(step.observation, where)
        action = _vector(step.action, size, "action", where)
        proposed = step.policy_action
        if proposed is None:
            proposal = action if step.source is Source.POLICY else np.full(size, np.nan, np.float32)
        else:
            proposal = _vector(proposed, size, "policy_action", where)
            if np.isinf(proposal).any() or np.isnan(proposal).any() != np.isnan(proposal).all():
                raise DataError(f"{where}: policy_action is {proposal}; it must be finite, or NaN throughout")
            if step.source is Source.POLICY and np.isnan(proposal).all():
                raise DataError(
                    f"{where}: the policy acted, but policy_action is NaN; leave it out or give it"
                )
        values = np.concatenate([state, action, proposal, np.array([step.reward], np.float32)])
        acted = slice(0, len(state) + size)
        if not (np.isfinite(values[acted]).all() and np.isfinite(values[-1])):
            checked = values.copy()
            checked[acted.stop : -1] = 0.0
            self.require_finite(checked, where)
        return values

    def state(self, observation: Mapping[str, Array | bytes] | Array, where: str) -> Floats:
        """The flat state (S,). Raises DataError when a feature is missing or has another shape."""
        try:
            return as_state(self.spec, observation)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error

    def require_finite(self, values: Floats, where: str) -> None:
        """Raise DataError naming the first column that is not finite."""
        wrong = np.flatnonzero(~np.isfinite(values))
        if len(wrong):
            name = column_name(self.spec, int(wrong[0]))
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise DataError(
                f"{where}: {name} is {values[wrong[0]]}{more}, expected a finite number; "
                "it is not stored. Mend the sensor or the environment that produced it"
            )

    def require_order(self, step: Step, previous: list[int] | None, takeovers: int, where: str) -> None:
        """Raise when a step does not fit the one before it (``previous``, its integer row).

        ``takeovers`` is the highest intervention number of the episode so far.
        """
        if previous is not None and (previous[INT["terminated"]] or previous[INT["truncated"]]):
            raise ReplayError(f"{where}: the step before ended the episode; close it before the next step")
        if previous is not None and step.stamp_ns < previous[INT["stamp_ns"]]:
            raise DataError(
                f"{where}: stamp_ns {step.stamp_ns} lies before the stamp {previous[INT['stamp_ns']]} of the "
                "step before; stamps come from a monotonic clock"
            )
        takeover = step.intervention_id
        if takeover == NO_INTERVENTION:
            if step.source is Source.HUMAN and not self.kind.is_demonstration:
                raise DataError(
                    f"{where}: a human acted in a stream of kind {str(self.kind)!r} without an "
                    "intervention_id; number the takeovers of an episode 0, 1, 2, ..."
                )
            return
        if takeover < 0 or step.source is Source.POLICY:
            raise DataError(
                f"{where}: intervention_id {takeover} with source {step.source.name.lower()}; give the number "
                "of the takeover and the source that acted, or -1 outside a takeover"
            )
        continues = previous is not None and previous[INT["intervention_id"]] == takeover
        if not continues and takeover <= takeovers:
            raise DataError(
                f"{where}: takeover {takeover} is already over; number takeovers upwards within an episode"
            )


def require_outcome(outcome: Outcome, outcome_by: OutcomeBy, terminated: bool, where: str) -> None:
    """Raise ReplayError when an outcome contradicts the last step or nobody said it."""
    if outcome in (Outcome.SUCCESS, Outcome.FAILURE) and outcome_by is OutcomeBy.NONE:
        raise ReplayError(
            f"{where}: {outcome.name.lower()} needs someone who said so: environment, human or classifier"
        )
    if outcome is Outcome.TIMEOUT and terminated:
        raise ReplayError(
            f"{where}: its last step terminated, so it was not cut by the time limit; "
            "close it as success, failure or unknown"
        )


def integer_row(step: Step, episode: int, number: int) -> tuple[int, ...]:
    """The values of `flowrl.replay.schema.INT_COLUMNS` of a step."""
    return (
        int(step.source),
        step.intervention_id,
        int(step.terminated),
        int(step.truncated),
        step.stamp_ns,
        step.age_ns,
        step.policy_version,
        episode,
        number,
    )


def _vector(value: Any, size: int, name: str, where: str) -> Floats:
    vector = np.asarray(value, np.float32)
    if vector.shape != (size,):
        raise DataError(f"{where}: {name} has shape {vector.shape}, the spec says ({size},)")
    return vector

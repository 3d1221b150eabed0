"""Who acted at each step of a recording: flags of the file become sources and numbered takeovers.

Tele-operation in robosuite's layout records, per step, which users act (``user_acting``, one column per
user), whether a policy does (``policy_acting``), and whether a person has taken over (``interventions``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from flowrl.errors import DataError
from flowrl.replay.schema import NO_INTERVENTION, Ints, Source

USER, POLICY, INTERVENTION = "user_acting", "policy_acting", "interventions"
FLAGS = (USER, POLICY, INTERVENTION)
"""The datasets of a demonstration that say who acts, each (T,) or (T, users)."""

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Acting:
    """Per step of an episode: ``source`` (T,), see `Source`, and ``takeover`` (T,), -1 outside one."""

    source: Ints
    takeover: Ints

    @classmethod
    def throughout(cls, source: Source, length: int) -> Self:
        """The same at all of ``length`` steps, outside any takeover."""
        return cls(np.full(length, int(source), np.int64), np.full(length, NO_INTERVENTION, np.int64))

    def first(self, steps: int) -> Self:
        """Its first steps."""
        return type(self)(self.source[:steps], self.takeover[:steps])

    @property
    def takeovers(self) -> int:
        """How many takeovers there are."""
        return int(self.takeover.max(initial=NO_INTERVENTION)) + 1


def acting_of(flags: Mapping[str, Flags], user: Source, length: int) -> Acting:
    """Who acted at each of ``length`` steps; ``user`` is what a user counts as, and who acted without flags.

    A step belongs to the user when any user acts or has taken over, else to the policy when it acts, else to
    nobody (`Source.HOLD`). Where a file lacks one of the two, the other's steps are its opposite. As in the
    rest of a replay, a user who acts in an episode in which a policy acts has taken over: consecutive such
    steps are one takeover.
    """
    if not flags:
        return Acting.throughout(user, length)
    seen = {
        name: np.any(values.reshape(length, -1), axis=1, keepdims=True)[:, 0]
        for name, values in flags.items()
    }
    nobody = np.zeros(length, np.bool_)
    taken = seen.get(INTERVENTION, nobody)
    by_user = seen.get(USER, ~seen[POLICY] if POLICY in seen else nobody) | taken
    by_policy = seen.get(POLICY, nobody if USER in seen else ~by_user) & ~by_user
    source = np.where(by_user, int(user), np.where(by_policy, int(Source.POLICY), int(Source.HOLD)))
    return Acting(source.astype(np.int64), _numbered(by_user if by_policy.any() else taken))


def shared_steps(flags: Mapping[str, Flags]) -> int:
    """Steps at which some users act and others do not, which a step's one source does not tell."""
    users = flags.get(USER)
    if users is None or users.ndim < 2:
        return 0
    return int((users.any(axis=1) & ~users.all(axis=1)).sum())


def as_flags(values: NDArray[np.float64], length: int, where: str) -> Flags:
    """Numbers of a file as flags. Raises DataError unless they are 0 or 1, (T,) or (T, users)."""
    if values.ndim not in (1, 2) or len(values) != length:
        raise DataError(
            f"{where} has shape {values.shape}, expected one flag, or one per user, for each of {length} "
            "actions; mend it or remove the dataset"
        )
    if not np.isin(values, (0.0, 1.0)).all():
        step = int(np.argwhere(~np.isin(values, (0.0, 1.0)))[0][0])
        raise DataError(
            f"{where}, step {step}: {values[step]}, expected 0 or 1; mend it or remove the dataset"
        )
    return values.astype(np.bool_)


def _numbered(taken: Flags) -> Ints:
    """The number of the run of True that each step lies in, from 0; -1 outside."""
    begins = taken & ~np.concatenate([[False], taken[:-1]])
    return np.where(taken, np.cumsum(begins) - 1, NO_INTERVENTION).astype(np.int64)

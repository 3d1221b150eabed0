"""A scripted person who watches a policy and finishes what it does not manage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from sim.base import SimEnv
from sim.experts import Expert


class PatientSupervisor:
    """Lets the policy try, then takes over for the rest of the episode (a `flowrl.rollout.Supervisor`).

    Args:
        env: the environment of the episode.
        expert: who acts after the takeover, from wherever the policy has got to.
        patience: steps the policy gets.
    """

    def __init__(self, env: SimEnv, expert: Expert, patience: int) -> None:
        self._env, self._expert, self._patience = env, expert, patience

    def act(self, observation: Mapping[str, NDArray[Any]], step: int) -> NDArray[Any] | None:
        """The expert's action (A,) from step ``patience`` on, None before."""
        if step < self._patience:
            return None
        if step == self._patience:
            self._expert.reset(self._env)
        return self._expert.act(self._env.full_state())

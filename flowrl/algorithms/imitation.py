"""Self-imitation: flow matching on chosen episodes, without any critic.

With the source ``success_mix`` it clones demonstrations and the policy's own successes. It is the
control that every comparison carries: what it gains, a critic must beat.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Literal

import torch

from flowrl.acting import Actor
from flowrl.algorithms.interface import Batches
from flowrl.config import configclass
from flowrl.policies.interface import FlowPolicy
from flowrl.policies.pretrain import imitation_loss
from flowrl.training import adam, clipped_step, polyak_


@configclass
class ImitationConfig:
    """Hyper-parameters of self-imitation."""

    kind: Literal["imitation"] = "imitation"
    """Name of the algorithm."""
    discount: float = 0.99
    """Unused by the loss; rewards in logged batches are discounted by it."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    gradient_clip: float = 1.0
    """Limit on the gradient's norm."""
    source: str | None = "success_mix"
    """The named replay source that is cloned; None is the whole mix."""
    average_actor: float | None = 0.01
    """Act with a moving average of the policy of this rate; None acts with the policy itself."""


class Imitation:
    """Clones a named source of the replay. ``policy`` is the base; ``seed`` fixes noise and flow times."""

    def __init__(self, config: ImitationConfig, policy: FlowPolicy, seed: int = 0) -> None:
        self.config = config
        self.policy = deepcopy(policy).requires_grad_(True)
        self.average = policy.frozen_copy() if config.average_actor is not None else None
        self.generator = torch.Generator().manual_seed(seed)
        self.optimiser = adam({"policy": self.policy}, {"policy": config.learning_rate})

    def update(self, batches: Batches) -> dict[str, float]:
        """One step of flow matching."""
        loss = imitation_loss(self.policy, batches.batch(self.config.source), self.generator)
        norms = clipped_step(self.optimiser, loss, self.config.gradient_clip)
        if self.average is not None and self.config.average_actor is not None:
            polyak_(self.average, self.policy, self.config.average_actor)
        return {"policy/loss": float(loss.detach()), "policy/gradient_norm": norms["policy"]}

    def warm_up(self, batches: Batches) -> dict[str, float]:
        """Nothing: there is no critic."""
        return {}

    def diagnostics(self, batches: Batches) -> dict[str, float]:
        """Nothing beyond the loss."""
        return {}

    def actor(self, purpose: Literal["collect", "evaluate"]) -> Actor:
        """One sample, for both purposes."""
        return Actor(self.policy if self.average is None else self.average)

    def deviations(self) -> list[str]:
        """None: this is a control, not a publication."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Networks, optimiser and random state."""
        return {
            "policy": self.policy.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.policy.load_state_dict(state["policy"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"])

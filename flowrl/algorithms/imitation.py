"""Self-imitation: flow matching on chosen episodes, without any critic.

With the source ``success_mix`` it clones demonstrations and the policy's own successes. It is the
control that every comparison carries: what it gains, a critic must beat. With ``demonstrations`` it is
behaviour cloning that goes on.
"""

from __future__ import annotations

from typing import Literal

from flowrl.algorithms.base import PolicyLearner, PolicyLearnerConfig
from flowrl.algorithms.interface import Batches
from flowrl.config import configclass
from flowrl.policies.interface import FlowPolicy
from flowrl.policies.pretrain import imitation_loss


@configclass
class ImitationConfig(PolicyLearnerConfig):
    """Hyper-parameters of self-imitation; the discount serves only to log rewards."""

    kind: Literal["imitation"] = "imitation"
    """Name of the algorithm."""
    source: str | None = "success_mix"
    """The named replay source that is cloned; None is the whole mix."""
    average_actor: float | None = 0.01
    """Act with a moving average of the policy of this rate; None acts with the policy itself."""


class Imitation(PolicyLearner[ImitationConfig, FlowPolicy]):
    """Clones a named source of the replay. ``policy`` is the base; ``seed`` fixes noise and flow times."""

    def __init__(self, config: ImitationConfig, policy: FlowPolicy, seed: int = 0) -> None:
        super().__init__(config, policy, seed)
        self.optimise({"policy": (self.policy, config.learning_rate)})

    def update(self, batches: Batches) -> dict[str, float]:
        """One step of flow matching."""
        loss = imitation_loss(self.policy, batches.batch(self.config.source), self.generator)
        norms = self.step(loss)
        self.average_policy()
        return {"policy/loss": float(loss.detach())} | norms

    def deviations(self) -> list[str]:
        """None: this is a control, not a publication."""
        return []

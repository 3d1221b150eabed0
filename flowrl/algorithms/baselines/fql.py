"""FQL: a one-step policy climbs the critic and stays near a cloned flow (arXiv 2502.02538).

The flow clones replay. A network that maps noise to an action in one step is distilled from the flow's
samples and at the same time pushed along the critic's gradient: no gradient passes through a sampler.
Equations are numbered as in docs/algorithms/fql.md.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from flowrl.algorithms.base import ActorCritic, ActorCriticConfig
from flowrl.algorithms.baselines.cloning import cloning_deviations, cloning_loss
from flowrl.algorithms.baselines.sac import ascent_loss
from flowrl.algorithms.interface import Batches
from flowrl.config import configclass
from flowrl.critics.ensemble import CriticEnsemble
from flowrl.critics.targets import CriticConfig
from flowrl.errors import ConfigError
from flowrl.policies.interface import Context, FlowPolicy
from flowrl.policies.one_step import OneStepPolicy


@configclass
class FQLConfig(ActorCriticConfig):
    """Hyper-parameters of FQL; defaults are the authors' released ones."""

    kind: Literal["fql"] = "fql"
    """Name of the algorithm."""
    critic: CriticConfig = CriticConfig(heads=2, aggregation="mean")
    """The critic ensemble and its TD target."""
    alpha: float = 10.0
    """Weight of the distillation: a mean over B and D, so that alpha / D is what one dimension feels."""
    normalise_value: bool = False
    """Divide the critic's term by the mean of |Q|, which makes alpha independent of the reward's scale."""
    source: str | None = None
    """Deviation when set: the named replay source that the flow clones; None is every batch of the critic."""

    def __post_init__(self) -> None:
        if self.alpha < 0:
            raise ValueError(f"alpha is {self.alpha}; it must not be negative")


def one_step_loss(
    critic: CriticEnsemble,
    features: Tensor,
    action: Tensor,
    taught: Tensor,
    alpha: float,
    normalise: bool = False,
) -> tuple[Tensor, dict[str, float]]:
    """``alpha mean_{B,D} (mu - taught)^2 - z mean_B Q(s, clip(mu))`` (2), z = 1 or 1 / mean |Q|.

    ``action`` = mu(s, z) and ``taught`` = ODE(z), both (B, D), the second without gradient. The critic gets
    no gradient.
    """
    ascent, gradient, values = ascent_loss(critic, features, action)
    distillation = (action - taught).square().mean()
    scale = 1 / values.mean(dim=0).abs().mean() if normalise else 1.0
    loss = alpha * distillation + scale * ascent
    return loss, {
        "actor/loss": float(loss.detach()),
        "actor/distillation_loss": float(distillation.detach()),
        "actor/q": float(values.mean()),
        "actor/q_gradient_norm": float(gradient.norm(dim=1).mean()),
        "actor/saturated": float((action.detach().abs() > 1).float().mean()),
    }


class FQL(ActorCritic[FQLConfig, OneStepPolicy]):
    """The learner of FQL.

    ``policy`` is the behaviour-cloned base; ``seed`` fixes all random draws. Raises ConfigError when its
    encoder of images is to learn.

    Attributes:
        policy: the one-step policy, which starts with the base's weights.
        flow: the cloning flow that teaches it.
    """

    def __init__(self, config: FQLConfig, policy: FlowPolicy, seed: int = 0) -> None:
        if policy.learns_encoder:
            raise ConfigError(
                "FQL's flow and one-step policy share the base's encoder, which cannot learn: set trainable to "
                "expert"
            )
        super().__init__(config, OneStepPolicy.around(policy), seed)
        self.flow = policy.trainable_copy()
        rate = config.learning_rate
        self.optimise({"one_step": (self.policy, rate), "flow": (self.flow, rate)})

    def update(self, batches: Batches) -> dict[str, float]:
        """One joint step of the critic (1), the one-step policy (2) and the flow (3)."""
        batch, view = self.draw(batches)
        temporal, _, info = self.temporal_loss(batch, view)
        actor, actor_info = self.actor_loss(view.context)
        cloning, cloned = cloning_loss(self.flow, batch, batches, self.config.source, self.generator)
        info |= actor_info | cloned | self.step(temporal + actor + cloning)
        self.critic.track()
        self.average_policy()
        return info

    def warm_up(self, batches: Batches) -> dict[str, float]:
        """One TD update of the critic alone, on samples of the flow: one step is no sampler yet."""
        batch, view = self.draw(batches)
        with torch.no_grad():
            noise = self.normal(len(view.next_context), self.policy.flat_size)
            next_action = self.flow.sample(view.next_context, noise)
        loss, _, info = self.critic.loss(batch, view, next_action, self.generator)
        info |= self.step(loss)
        self.critic.track()
        return info

    def actor_loss(self, context: Context) -> tuple[Tensor, dict[str, float]]:
        """(2) with fresh noise; the flow's samples are clipped as in the authors' code."""
        noise = self.normal(len(context), self.policy.flat_size)
        with torch.no_grad():
            taught = self.flow.clip(self.flow.sample(context, noise))
        action = self.policy.sample(context, noise)
        config, critic = self.config, self.critic.online
        return one_step_loss(
            critic, critic.see(context), action, taught, config.alpha, config.normalise_value
        )

    def deviations(self) -> list[str]:
        """Options in use that the publication does not have."""
        return cloning_deviations(self.config.source, super().deviations(), chooses=False)

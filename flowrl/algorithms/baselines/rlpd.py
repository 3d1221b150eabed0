"""RLPD: SAC from scratch with demonstrations in every batch (arXiv 2302.02948).

A squashed Gaussian over chunks, an ensemble with LayerNorm of which two random heads make the target,
several updates of the critic for one of the actor. It takes nothing from the base but its view of the
observation. Equations are numbered as in docs/algorithms/rlpd.md.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from flowrl.acting import Actor
from flowrl.algorithms.baselines.cloning import check_counts
from flowrl.algorithms.baselines.sac import SoftActorCritic, SoftConfig, wrap
from flowrl.algorithms.interface import Batches
from flowrl.config import configclass
from flowrl.critics.chunk_critic import CriticView
from flowrl.critics.targets import CriticConfig
from flowrl.policies.gaussian import GaussianPolicy
from flowrl.policies.interface import FlowPolicy
from flowrl.replay.batch import ChunkBatch


@configclass
class RLPDConfig(SoftConfig):
    """Hyper-parameters of RLPD; defaults are the authors', with a chunk in the place of an action."""

    kind: Literal["rlpd"] = "rlpd"
    """Name of the algorithm."""
    critic: CriticConfig = CriticConfig(heads=10, width=256, depth=3, aggregation="subsample_min2")
    """The critic ensemble and its TD target."""
    critic_updates: int = 20
    """Updates of the critic, each on a fresh batch, for one of the actor."""
    backup_entropy: bool = True
    """Add the next action's entropy to its value in the TD target."""
    source: str | None = None
    """Named mix of all batches, half demonstrations and half online by the publication; None is the run's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(critic_updates=self.critic_updates)


class RLPD(SoftActorCritic[RLPDConfig, GaussianPolicy]):
    """The learner of RLPD. ``policy`` gives its encoder alone; ``seed`` fixes weights and random draws."""

    def __init__(self, config: RLPDConfig, policy: FlowPolicy, seed: int = 0) -> None:
        gaussian = wrap(GaussianPolicy, policy, seed, width=config.width, depth=config.depth)
        super().__init__(config, gaussian, seed)
        self.policy.base.requires_grad_(False)
        self.optimise(
            {
                "actor": (self.policy.gaussian, config.learning_rate),
                "temperature": (self.temperature, config.temperature_rate),
            },
            {"base": self.policy.base},
        )

    def update(self, batches: Batches) -> dict[str, float]:
        """n steps of the critic (1), then one of the actor (2) on the last batch and one of alpha (3)."""
        for _ in range(self.config.critic_updates - 1):
            self.warm_up(batches)
        batch, view = self.draw(batches)
        temporal, _, info = self.temporal_loss(batch, view)
        features, critic = view.context.features.detach(), self.critic.online
        action, log_density = self.policy.draw(features, self.normal(len(batch), self.policy.noise_size))
        actor, actor_info = self.soft_loss(critic, critic.see(view.context), action, log_density)
        info |= actor_info | self.step(temporal + actor)
        info |= self.temper(log_density)
        self.critic.track()
        self.average_policy()
        return info

    def draw(self, batches: Batches) -> tuple[ChunkBatch, CriticView]:
        """A batch of the configured mix, and what the critic sees of it."""
        batch = self.critic.draw(batches, self.config.source)
        return batch, self.critic.view(batch, self.policy, self.generator)

    def temporal_loss(
        self, batch: ChunkBatch, view: CriticView, policy_action: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, dict[str, float]]:
        """The critic's TD loss (1), with ``-alpha log pi(a'|s')`` added to the next value."""
        with torch.no_grad():
            noise = self.normal(len(view.next_context), self.policy.noise_size)
            next_action, log_density = self.policy.draw(view.next_context.features, noise)
            bonus = -self.temperature.value * log_density if self.config.backup_entropy else None
        return self.critic.loss(batch, view, next_action, self.generator, policy_action, bonus)

    def actor(self, purpose: Literal["collect", "evaluate"]) -> Actor:
        """One random action for collection (or the best of N); the mean for evaluation."""
        return super().actor(purpose) if purpose == "collect" else Actor(self.acting, zero_noise=True)

    def deviations(self) -> list[str]:
        """Options in use that the publication does not have."""
        found = {
            "batches are the run's mix, not half of demonstrations": self.config.source is None,
            "the next action's entropy is no part of the target": not self.config.backup_entropy,
        }
        return [text for text, used in found.items() if used] + super().deviations()

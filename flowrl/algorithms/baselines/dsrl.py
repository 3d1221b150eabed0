"""DSRL with noise aliasing: SAC chooses the noise of a frozen flow (arXiv 2506.15799).

A critic of real actions is trained by TD. A second critic, of noise, is regressed on what the first says of
the action that the flow makes of the noise, and a squashed Gaussian over the noise climbs it. Equations are
numbered as in docs/algorithms/dsrl.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from flowrl.acting import Actor
from flowrl.algorithms.baselines.cloning import check_counts
from flowrl.algorithms.baselines.sac import SoftActorCritic, SoftConfig, seeded, wrap
from flowrl.algorithms.interface import Batches
from flowrl.config import configclass
from flowrl.critics.targets import CriticConfig
from flowrl.policies.interface import Context, FlowPolicy
from flowrl.policies.steered import SteeredPolicy


@configclass
class DSRLConfig(SoftConfig):
    """Hyper-parameters of DSRL; defaults are the authors' for Robomimic, with smaller networks."""

    kind: Literal["dsrl"] = "dsrl"
    """Name of the algorithm."""
    critic: CriticConfig = CriticConfig(heads=2, aggregation="min")
    """The critic of actions and its TD target; the critic of noise has the same size and rate."""
    magnitude: float = 1.5
    """b: the noise lies in [-b, b] in every dimension of the chunk."""
    latent_updates: int = 10
    """Regression steps of the critic of noise in every update."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.magnitude > 0:
            raise ValueError(f"magnitude is {self.magnitude}; it must be positive")
        check_counts(latent_updates=self.latent_updates)


class DSRL(SoftActorCritic[DSRLConfig, SteeredPolicy]):
    """The learner of DSRL.

    ``policy`` is the behaviour-cloned base, which stays frozen; ``seed`` fixes all random draws.

    Attributes:
        latent: the critic of noise, Q_w(s, u) with u = w / b; it sees what the critic sees.
    """

    def __init__(self, config: DSRLConfig, policy: FlowPolicy, seed: int = 0) -> None:
        size = {"width": config.width, "depth": config.depth}
        steered = wrap(SteeredPolicy, policy, seed, magnitude=config.magnitude, **size)
        super().__init__(config, steered, seed)
        self.policy.base.requires_grad_(False)
        plain = replace(config.critic, head="scalar", lora_rank=None, encoder=None)
        with seeded(seed):
            self.latent = plain.build(self.critic.feature_size, policy.flat_size).to(policy.device)
        self.optimise(
            {
                "latent": (self.latent, config.critic.learning_rate),
                "steering": (self.policy.steering, config.learning_rate),
                "temperature": (self.temperature, config.temperature_rate),
            },
            {"base": self.policy.base},
        )

    def update(self, batches: Batches) -> dict[str, float]:
        """One step of the critic (1), n of the critic of noise (2), one of the noise's policy (3) and of alpha."""
        batch, view = self.draw(batches)
        temporal, _, info = self.temporal_loss(batch, view)
        context = view.context.detach()
        u, log_density = self.policy.choose(context, self.normal(len(context), self.policy.flat_size))
        actor, actor_info = self.soft_loss(self.latent, self.critic.online.see(context), u, log_density)
        latent = self.latent_loss(context)
        info |= actor_info | self.step(temporal + latent + actor)
        for _ in range(self.config.latent_updates - 1):
            latent = self.latent_loss(context)
            self.step(latent)
        info |= self.temper(log_density)
        self.critic.track()
        self.average_policy()
        return info | {
            "latent/loss": float(latent.detach()),
            "actor/at_bound": float((u.detach().abs() > 0.95).float().mean()),
        }

    def warm_up(self, batches: Batches) -> dict[str, float]:
        """One TD update of the critic, one of the critic of noise; the policy stays."""
        batch, view = self.draw(batches)
        temporal, _, info = self.temporal_loss(batch, view)
        latent = self.latent_loss(view.context)
        info |= self.step(temporal + latent)
        self.critic.track()
        return info | {"latent/loss": float(latent.detach())}

    def actor(self, purpose: Literal["collect", "evaluate"]) -> Actor:
        """One random noise for collection (or the best of N); the mean noise for evaluation."""
        return super().actor(purpose) if purpose == "collect" else Actor(self.acting, zero_noise=True)

    def limits(self) -> Mapping[str, float] | float:
        """As for every critic: the critic of noise is clipped as the critic of actions is."""
        limits, own = super().limits(), self.config.critic_gradient_clip
        return {**limits, "latent": own} if isinstance(limits, Mapping) and own is not None else limits

    def latent_loss(self, context: Context) -> Tensor:
        """``mean_{m,B} (Q_w,m(s, w / b) - Q_m(s, clip(ODE(s, w))))^2``, head by head (2).

        Half of the noises are the policy's, half are normal draws clipped to its box: the regression holds
        where the actor is and wherever it may go.
        """
        rows = len(context)
        with torch.no_grad():
            noise = self.normal(rows, self.policy.flat_size)
            u = (noise / self.config.magnitude).clamp(-1, 1)
            u[: rows // 2] = self.policy.choose(context, noise)[0][: rows // 2]
            action = self.policy.clip(self.policy.decode(context, u))
            seen = self.critic.online.see(context)
            target = self.critic.online(seen, action)
        return (self.latent(seen, u) - target).square().mean()

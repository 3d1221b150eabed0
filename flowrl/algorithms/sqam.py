"""SQAM: Q-learning with scalar adjoint matching (arXiv 2610.10437).

A flow policy ``v_fast`` is fine-tuned towards the tilt of a base policy by the critic,
``pi(a|s) ~ pi_base(a|s) exp(Q(s, a) / lambda)``, without back-propagating through its sampler. The adjoint
of the memoryless SDE is replaced by a scalar multiple of the critic's gradient at the end point,
``-tau grad_a Q(s, a_1)``, and a dual variable ``lambda`` keeps the path KL to the base at a budget.
Equations are numbered as in docs/algorithms/sqam.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flowrl.algorithms.adjoint_matching import (
    Dual,
    TrustRegion,
    TrustRegionConfig,
    adjoint_matching_loss,
    matching_info,
    path_kl,
    squared_noise_scale,
)
from flowrl.algorithms.interface import Batches
from flowrl.config import configclass
from flowrl.critics.ensemble import action_gradient
from flowrl.policies.interface import Context, concatenate
from flowrl.policies.samplers import interpolate
from flowrl.replay.batch import ChunkBatch

__all__ = [
    "SQAM",
    "Draws",
    "Dual",
    "SQAMConfig",
    "adjoint_matching_loss",
    "bridge_times",
    "path_kl",
    "scalar_adjoint",
    "squared_noise_scale",
]


@configclass
class SQAMConfig(TrustRegionConfig):
    """Hyper-parameters of SQAM; defaults are the authors' released ones."""

    kind: Literal["sqam"] = "sqam"
    """Name of the algorithm."""
    discount: float = 0.995
    """gamma, per environment step; a chunk is discounted by gamma^H."""
    bridge_states: int | None = None
    """States per end point at which the adjoint is matched; None means the policy's flow steps K."""
    kl_budget: float = 0.5
    """eps_KL: the path KL to the base, divided by H, that the dual variable aims at."""
    value_penalty: float = 0.3
    """c: weight of Q(s, a_policy) - Q(s, a_data) in the critic's loss; scales with the reward."""


@dataclass(frozen=True)
class Draws:
    """Every random number of one update, (B, D) unless said, so that an update can be repeated exactly."""

    endpoint: Tensor
    next_action: Tensor  # (N, D), for every row of the critic's next contexts
    bridge: Tensor  # (K * B, D), the batch tiled K times
    base_noise: Tensor
    base_time: Tensor  # (B, 1)

    @classmethod
    def sample(
        cls,
        rows: int,
        size: int,
        bridges: int,
        generator: torch.Generator,
        device: torch.device,
        next_rows: int | None = None,
    ) -> Draws:
        """Fresh draws, made on the CPU so that a seed means the same on every ``device``; N is B unless given."""
        counts = (rows, rows if next_rows is None else next_rows, bridges * rows, rows)
        normal = [torch.randn(n, size, generator=generator) for n in counts]
        draws = [*normal, torch.rand(rows, 1, generator=generator)]
        return cls(*(draw.to(device) for draw in draws))


def bridge_times(bridges: int, rows: int, device: torch.device | None = None) -> Tensor:
    """tau = 1/K, 2/K, ..., 1, each for a whole batch of ``rows``: (K * B, 1)."""
    times = torch.arange(1, bridges + 1, device=device) / bridges
    return times.repeat_interleave(rows)[:, None]


def scalar_adjoint(gradient: Tensor, tau: Tensor) -> Tensor:
    """``-tau grad_a Q(s, a_1)`` (2): exact when the base velocity does not depend on x."""
    return -tau * gradient


class SQAM(TrustRegion[SQAMConfig]):
    """The learner of SQAM: critic and target, slow base and its average, fast policy.

    ``policy`` is the behaviour-cloned base, copied for every role. ``seed`` fixes all random draws.
    """

    def update(self, batches: Batches) -> dict[str, float]:
        """One update of critic, base, policy and dual variable."""
        batch = self.critic.draw(batches)
        base_batch = self.base_batch(batch, batches)
        draws = self._draws(len(batch), self.config.bridge_states or self.fast.flow_steps)
        loss, info, kl = self.losses(batch, base_batch, draws)
        info |= self.step(loss)
        info |= self.adapt(kl)
        self.track()
        return info

    def losses(
        self, batch: ChunkBatch, base_batch: ChunkBatch, draws: Draws
    ) -> tuple[Tensor, dict[str, float], float]:
        """The joint loss of one update, its metrics and the path KL; changes nothing."""
        view = self.view(batch)
        with torch.no_grad():
            noise = torch.cat([draws.endpoint, draws.next_action])
            sampled = self.fast.sample(concatenate(view.context, view.next_context), noise)
            endpoint, next_action = sampled.tensor_split([len(batch)])
        temporal, gap, critic_info = self.critic.loss(batch, view, next_action, self.generator, endpoint)
        assert gap is not None
        actor_loss, actor_info, kl = self.actor_loss(view.context, endpoint, draws.bridge)
        base_loss = self.base_loss(base_batch, draws)
        info = critic_info | actor_info | {"base/loss": float(base_loss.detach())}
        return temporal + self.config.value_penalty * gap + actor_loss + base_loss, info, kl

    def actor_loss(
        self, context: Context, endpoint: Tensor, bridge_noise: Tensor
    ) -> tuple[Tensor, dict[str, float], float]:
        """Scalar adjoint matching on bridge states that end at the policy's own ``endpoint`` (B, D)."""
        rows = len(endpoint)
        bridges = len(bridge_noise) // rows
        h = 1 / bridges
        gradient, values = action_gradient(self.critic.target, self.critic.target.see(context), endpoint)
        tau = bridge_times(bridges, rows, endpoint.device)
        squared_scale = squared_noise_scale(tau, h)
        x = interpolate(bridge_noise, endpoint.repeat(bridges, 1), tau)
        tiled = context.tile(bridges)
        with torch.no_grad():
            base = self.slow_target.base_velocity(tiled, x, tau)
        shift = self.fast.velocity(tiled, x, tau) - base
        adjoint = scalar_adjoint(gradient.repeat(bridges, 1), tau)
        loss = adjoint_matching_loss(shift, adjoint, squared_scale, self.dual_effective, rows)
        kl = float(path_kl(shift, squared_scale, h, rows, self.fast.chunk.length))
        return loss, matching_info(loss, shift, endpoint, gradient, values), kl

    def _draws(self, rows: int, bridges: int) -> Draws:
        policy, next_rows = self.fast, self.critic.next_rows(rows)
        return Draws.sample(rows, policy.flat_size, bridges, self.generator, policy.device, next_rows)

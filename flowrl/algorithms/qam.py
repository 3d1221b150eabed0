"""QAM and TRQAM: Q-learning with the exact adjoint (arXiv 2601.14234, 2605.27079).

A flow policy ``v_fast`` is fine-tuned towards the tilt of a base policy by the critic,
``pi(a|s) ~ pi_base(a|s) exp(Q(s, a) / temperature)``. Its paths are drawn from the memoryless SDE; the lean
adjoint runs back along each of them, from the critic's gradient at its end, by vector-Jacobian products
through the base's drift alone; the velocity is regressed on what the adjoint asks for. QAM has a fixed
temperature, TRQAM a dual variable that keeps the path KL to the base at a budget. SQAM
(`flowrl.algorithms.sqam`) replaces path and adjoint by a scalar; these are the references for it.
Equations are numbered as in docs/algorithms/qam.md.

The published variants QAM-E, with an edit policy on top, and QAM-F, with a one-step policy distilled from
the flow, are not here.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flowrl.algorithms.adjoint_matching import (
    AdjointMatching,
    AdjointMatchingConfig,
    TrustRegion,
    TrustRegionConfig,
    adjoint_matching_loss,
    matching_info,
    path_kl,
    squared_noise_scale,
)
from flowrl.algorithms.adjoints import exact_adjoint
from flowrl.algorithms.interface import Batches
from flowrl.config import configclass
from flowrl.critics.chunk_critic import CriticView
from flowrl.critics.ensemble import action_gradient
from flowrl.errors import NonFiniteLoss
from flowrl.policies.interface import Context, Velocity
from flowrl.policies.samplers import memoryless_step, sample_sde
from flowrl.replay.batch import ChunkBatch


@configclass
class ExactMatchingConfig(AdjointMatchingConfig):
    """Hyper-parameters of the exact adjoint."""

    adjoint_growth_limit: float | None = None
    """Deviation when set: the adjoint's norm stays below this many times that of the critic's gradient."""

    def __post_init__(self) -> None:
        limit = self.adjoint_growth_limit
        if limit is not None and limit <= 0:
            raise ValueError(f"adjoint_growth_limit is {limit}; it must be positive, or null")


@configclass
class QAMConfig(ExactMatchingConfig):
    """Hyper-parameters of QAM; defaults are the authors' released ones."""

    kind: Literal["qam"] = "qam"
    """Name of the algorithm."""
    inverse_temperature: float = 0.3
    """beta: how far Q tilts the base; tuned for each task, the authors' range is 0.1 to 30."""


@configclass
class TRQAMConfig(TrustRegionConfig, ExactMatchingConfig):
    """Hyper-parameters of TRQAM; defaults are the authors' released ones."""

    kind: Literal["trqam"] = "trqam"
    """Name of the algorithm."""
    discount: float = 0.995
    """gamma, per environment step; a chunk is discounted by gamma^H."""


@dataclass(frozen=True)
class PathDraws:
    """Random numbers of a path and of the slow base's step, so that both can be repeated exactly."""

    start: Tensor  # (B, D)
    steps: Tensor  # (K - 1, B, D): the last step is deterministic
    base_noise: Tensor  # (B, D)
    base_time: Tensor  # (B, 1)

    @classmethod
    def sample(
        cls, rows: int, size: int, steps: int, generator: torch.Generator, device: torch.device
    ) -> PathDraws:
        """Fresh draws for paths of ``steps``, made on the CPU so that a seed means the same on every device."""
        normal = torch.randn(steps + 1, rows, size, generator=generator).to(device)
        time = torch.rand(rows, 1, generator=generator).to(device)
        return cls(normal[0], normal[1:-1], normal[-1], time)


def path_times(steps: int, rows: int, device: torch.device | None = None) -> Tensor:
    """t = 0, 1/K, ..., (K-1)/K, each for a whole batch of ``rows``: (K * B, 1)."""
    times = torch.arange(steps, device=device) / steps
    return times.repeat_interleave(rows)[:, None]


def memoryless_path(
    fast: Velocity, base: Velocity, context: Context, start: Tensor, noises: Tensor
) -> Tensor:
    """States X_0, X_h, ..., X_1 of the memoryless SDE of ``fast`` (6): (K + 1, B, D).

    ``noises`` is (K - 1, B, D). The last step is one of the ODE, and of the base: ``X_1 = X + h v_base``.
    """
    steps, pending = len(noises) + 1, iter(noises)

    def transition(x: Tensor, i: int) -> tuple[Tensor, float]:
        if i < steps - 1:
            return memoryless_step(fast, context, x, i, steps)
        return x + base(context, x, x.new_full((len(x), 1), i / steps)) / steps, 0.0

    return sample_sde(transition, start, steps, lambda _: next(pending)).states


class ExactMatching[Config: ExactMatchingConfig](AdjointMatching[Config]):
    """Adjoint matching on paths of the memoryless SDE, with the exact adjoint; the temperature is open."""

    @property
    @abstractmethod
    def temperature(self) -> tuple[float, float]:
        """What multiplies the critic's gradient, and the lambda by which the loss divides g^2."""

    @abstractmethod
    def adapt(self, kl: float) -> dict[str, float]:
        """React to the path KL of a step; returns metrics."""

    def update(self, batches: Batches) -> dict[str, float]:
        """One update of critic, base and policy, and of the temperature where it adapts."""
        batch, view = self.draw(batches)
        base_batch = self.base_batch(batch, batches)
        fast = self.fast
        draws = PathDraws.sample(len(batch), fast.flat_size, fast.flow_steps, self.generator, fast.device)
        loss, info, kl = self.losses(batch, view, base_batch, draws)
        info |= self.step(loss)
        info |= self.adapt(kl)
        self.track()
        return info

    def losses(
        self, batch: ChunkBatch, view: CriticView, base_batch: ChunkBatch, draws: PathDraws
    ) -> tuple[Tensor, dict[str, float], float]:
        """The joint loss of one update, its metrics and the path KL."""
        temporal, _, info = self.temporal_loss(batch, view)
        actor_loss, actor_info, kl = self.actor_loss(view.context, draws)
        base_loss = self.base_loss(base_batch, draws)
        info |= actor_info | {"base/loss": float(base_loss.detach())}
        return temporal + actor_loss + base_loss, info, kl

    def actor_loss(self, context: Context, draws: PathDraws) -> tuple[Tensor, dict[str, float], float]:
        """Adjoint matching along the policy's own paths, whose states at t = 0, h, ..., 1 - h are matched."""
        fast, base = self.fast.velocity, self.slow_target.base_velocity
        rows, steps = len(draws.start), len(draws.steps) + 1
        with torch.no_grad():
            path = memoryless_path(fast, base, context, draws.start, draws.steps)
        gradient, values = action_gradient(self.critic.target, self.critic.target.see(context), path[-1])
        limit = self.config.adjoint_growth_limit
        adjoints = exact_adjoint(base, context, path, gradient, steps, limit)
        growth = adjoint_growth(adjoints)
        if not math.isfinite(growth) and bool(gradient.isfinite().all()):
            raise NonFiniteLoss(
                "the adjoint overflowed on its way back through the base, whose velocity is too steep; no step "
                "was taken: set algorithm.adjoint_growth_limit (2, say), or take the scalar adjoint of sqam"
            )
        t = path_times(steps, rows, path.device)
        squared_scale = squared_noise_scale(t, 1 / steps)
        x, tiled = path[:-1].flatten(0, 1), context.tile(steps)
        with torch.no_grad():
            base_velocity = base(tiled, x, t)
        shift = fast(tiled, x, t) - base_velocity
        matched = adjoints[:-1].flatten(0, 1)
        factor, dual_effective = self.temperature
        loss = adjoint_matching_loss(shift, factor * matched, squared_scale, dual_effective, rows)
        kl = float(path_kl(shift, squared_scale, 1 / steps, rows, self.fast.chunk.length))
        info = matching_info(loss, shift, path[-1], gradient, values) | {
            "actor/adjoint_norm": float(matched.norm(dim=1).mean()),
            "actor/adjoint_growth": growth,
        }
        return loss, info, kl

    def deviations(self) -> list[str]:
        """Options in use that the publication does not have."""
        limit = self.config.adjoint_growth_limit
        found = [] if limit is None else [f"the adjoint's growth is limited to {limit}"]
        return found + super().deviations()


class QAM(ExactMatching[QAMConfig]):
    """The learner of QAM: critic and target, slow base and its average, fast policy.

    ``policy`` is the behaviour-cloned base, copied for every role. ``seed`` fixes all random draws.
    """

    @property
    def temperature(self) -> tuple[float, float]:
        """beta multiplies the gradient; sigma = g (8)."""
        return self.config.inverse_temperature, 1.0

    def adapt(self, kl: float) -> dict[str, float]:
        """Nothing adapts; the path KL is a metric."""
        return {"actor/path_kl": kl}


class TRQAM(TrustRegion[TRQAMConfig], ExactMatching[TRQAMConfig]):
    """The learner of TRQAM: QAM with the dual variable of SQAM.

    ``policy`` is the behaviour-cloned base, copied for every role. ``seed`` fixes all random draws.
    """

    @property
    def temperature(self) -> tuple[float, float]:
        """The gradient as it is; sigma = g / sqrt(lambda_eff) (8)."""
        return 1.0, self.dual_effective


def adjoint_growth(adjoints: Tensor) -> float:
    """The largest ratio of a row's adjoint at any time to the same at the end: adjoints (K + 1, B, D)."""
    norms = adjoints.norm(dim=2)
    return float((norms / norms[-1].clamp(min=torch.finfo(norms.dtype).tiny)).max())

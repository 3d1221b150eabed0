"""QF3: flow matching on replay actions with filtered Q-gradients (arXiv 2610.08789).

The velocity is trained by flow matching on replay actions. A critic is evaluated at the *one-step
prediction* of the flow's end point, and its gradient reaches only those action dimensions whose
prediction lies near the replay action: no sampler is back-propagated through, and no dimension is pulled
further from the data than a clip in velocity space allows. Equations are numbered as in
docs/algorithms/qf3.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flowrl.policies.samplers import interpolate

Value = Callable[[Tensor], Tensor]
"""Flat chunks (B, D) of a batch of states to their values (B,)."""


@dataclass(frozen=True)
class PathPoint:
    """Points on the paths from ``noise`` (B, D) to replay actions ``action`` (B, D), at times ``t`` (B, 1)."""

    action: Tensor
    noise: Tensor
    t: Tensor

    @classmethod
    def sample(cls, action: Tensor, generator: torch.Generator) -> PathPoint:
        """One noise and one uniform time per action, drawn on the CPU so that a seed means the same anywhere."""
        noise, t = (
            torch.randn(action.shape, generator=generator),
            torch.rand(len(action), 1, generator=generator),
        )
        return cls(action, noise.to(action.device), t.to(action.device))

    @property
    def x(self) -> Tensor:
        """``x_t = (1 - t) eps + t a``, (B, D)."""
        return interpolate(self.noise, self.action, self.t)

    def gap(self, velocity: Tensor) -> Tensor:
        """``delta = v - (a - eps)``: how far a velocity (B, D) is from the one that leads to the action (1)."""
        return velocity - (self.action - self.noise)

    def prediction(self, velocity: Tensor) -> Tensor:
        """``x_t + (1 - t) v = a + (1 - t) delta``: where one Euler step to t = 1 would end (2)."""
        return self.x + (1 - self.t) * velocity

    def clipped_prediction(self, velocity: Tensor, clip: float) -> Tensor:
        """``a + (1 - t) clip(delta, -alpha, alpha)``, constant in every dimension outside the clip (3).

        The clip is in velocity space: in action space it allows ``alpha / (1 - t)``, which bends the flow.
        """
        gap = self.gap(velocity)
        inside = torch.where(in_clip(gap, clip), gap, gap.detach().clamp(-clip, clip))
        return self.action + (1 - self.t) * inside


@dataclass(frozen=True)
class LossWeights:
    """alpha and the two weights of (4); both multiply sums over D."""

    clip: float
    flow: float
    base: float = 0.0


def in_clip(gap: Tensor, clip: float) -> Tensor:
    """Which dimensions the critic may move, ``|delta| < alpha``: a mask like ``gap``."""
    return gap.detach().abs() < clip


def value_through_action(value: Value, action: Tensor) -> Tensor:
    """``value(action)`` (B,) whose gradient reaches ``action`` (B, D) and no parameter of ``value``."""
    point = action.detach().requires_grad_(True)
    values = value(point)
    (gradient,) = torch.autograd.grad(values.sum(), point)
    return values.detach() + (gradient * (action - action.detach())).sum(dim=1)


def qf3_loss(
    value: Value,
    velocity: Tensor,
    point: PathPoint,
    weights: LossWeights,
    base_velocity: Tensor | None = None,
    row_weight: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """``mean_B [-Q(s, clipped prediction) + lambda_cfm ||delta||^2 + lambda_base ||v - v_base||^2]`` (4).

    ``velocity`` and ``base_velocity`` are (B, D), taken at ``point.x`` and ``point.t``; without a base its
    term is absent. All norms sum over D. ``row_weight`` (B,) leaves rows out; the mean divides by B.
    """
    gap = point.gap(velocity)
    values = value_through_action(value, point.clipped_prediction(velocity, weights.clip))
    rows = weights.flow * gap.square().sum(dim=1) - values
    info = {
        "actor/q_prediction": float(values.detach().mean()),
        "actor/in_clip": float(in_clip(gap, weights.clip).float().mean()),
    } | gap_by_time(gap, point.t)
    if base_velocity is not None:
        shift = (velocity - base_velocity.detach()).square().sum(dim=1)
        rows = rows + weights.base * shift
        info["actor/base_shift"] = float(shift.detach().mean())
    loss = (rows if row_weight is None else row_weight * rows).mean()
    return loss, info | {"actor/loss": float(loss.detach())}


def gap_by_time(gap: Tensor, t: Tensor) -> dict[str, float]:
    """Mean ``||delta||^2`` over the rows of each third of the flow; 0 where a third has no row."""
    squared, thirds = gap.detach().square().sum(dim=1), (3 * t[:, 0]).long().clamp(max=2)
    sums = squared.new_zeros(3).index_add(0, thirds, squared)
    counts = squared.new_zeros(3).index_add(0, thirds, torch.ones_like(squared))
    means = (sums / counts.clamp(min=1)).tolist()
    return dict(zip(("actor/gap_early", "actor/gap_middle", "actor/gap_late"), means, strict=True))

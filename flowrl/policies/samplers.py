"""Samplers and the flow-matching loss, for any velocity (algorithms are written against these).

Euler on ``t_i = i / K`` evaluates the network at 0, 1/K, ..., (K-1)/K and never at 1. Nothing here
clips but OGPO's: an action is clipped to its bounds once, after the last step, by whoever uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from flowrl.policies.interface import Context, Velocity

Clip = Callable[[Tensor], Tensor]
"""Flat chunks (B, D) to the nearest ones inside the action's bounds."""


def unit_clip(flat: Tensor) -> Tensor:
    """The clip of a policy whose bounds are -1 and 1."""
    return flat.clamp(-1, 1)


def euler_ode(
    velocity: Velocity, context: Context, noise: Tensor, steps: int, times: Sequence[float] | None = None
) -> Tensor:
    """Integrate dx/dt = v from ``noise`` (B, D) at t = 0 to an action (B, D) at t = 1.

    ``times`` (length steps + 1, increasing) replaces the uniform grid.
    """
    grid = [i / steps for i in range(steps + 1)] if times is None else times
    x = noise
    for start, end in pairwise(grid):
        t = x.new_full((len(x), 1), start)
        x = x + (end - start) * velocity(context, x, t)
    return x


@dataclass(frozen=True)
class StochasticPath:
    """A chain of Gaussian steps: ``states[i + 1] = means[i] + stds[i] * xi``.

    ``states`` is (steps + 1, B, D), ``means`` (steps, B, D), ``stds`` (steps,); a standard deviation
    of zero marks a deterministic step.
    """

    states: Tensor
    means: Tensor
    stds: Tensor

    @property
    def end(self) -> Tensor:
        """The sample at t = 1, unclipped: (B, D)."""
        return self.states[-1]


Transition = Callable[[Tensor, int], tuple[Tensor, float]]
"""``transition(x, i)`` gives the mean (B, D) and the standard deviation of step i from x (B, D)."""


def sample_sde(
    transition: Transition, noise: Tensor, steps: int, normal: Callable[[Tensor], Tensor] = torch.randn_like
) -> StochasticPath:
    """Draw a chain of Gaussian steps from ``noise`` (B, D).

    ``normal`` draws xi with the shape of its argument (clipped, or from a generator, say); it is not
    called for a deterministic step.
    """
    states, means, stds = [noise], list[Tensor](), list[float]()
    for i in range(steps):
        mean, std = transition(states[-1], i)
        states.append(mean + std * normal(mean) if std > 0 else mean)
        means.append(mean)
        stds.append(std)
    return StochasticPath(torch.stack(states), torch.stack(means), noise.new_tensor(stds))


def memoryless_sde(
    velocity: Velocity,
    context: Context,
    noise: Tensor,
    steps: int,
    normal: Callable[[Tensor], Tensor] = torch.randn_like,
) -> StochasticPath:
    """The memoryless SDE of adjoint matching, Euler-Maruyama (arXiv 2601.14234).

    ``X_{t+h} = X_t + h [2 v(X_t, t) - X_t / (t + h)] + sqrt(h) g_t xi`` with
    ``g_t^2 = 2 (1 - t + h) / (t + h)``; the last step adds no noise.
    """

    def transition(x: Tensor, i: int) -> tuple[Tensor, float]:
        return memoryless_step(velocity, context, x, i, steps)

    return sample_sde(transition, noise, steps, normal)


def memoryless_step(
    velocity: Velocity, context: Context, x: Tensor, i: int, steps: int
) -> tuple[Tensor, float]:
    """Mean (B, D) and standard deviation of step i of `memoryless_sde` from x (B, D)."""
    t, h = i / steps, 1 / steps
    drift = 2 * velocity(context, x, x.new_full((len(x), 1), t)) - x / (t + h)
    variance = h * 2 * (1 - t + h) / (t + h)
    return x + h * drift, variance**0.5 if i < steps - 1 else 0.0


def tapered_sde(
    velocity: Velocity,
    context: Context,
    noise: Tensor,
    steps: int,
    scale: float,
    normal: Callable[[Tensor], Tensor] = torch.randn_like,
    clip: Clip = unit_clip,
) -> StochasticPath:
    """The sampler of OGPO, whose every step has a density (arXiv 2605.03065, code).

    With h = 1 / steps and ``sigma_t = scale sqrt(1 - t)``, the mean of a step is
    ``clip(x + h [v + scale^2 (t v - x) / 2])`` (to the action's bounds) and its noise ``sigma_t clip(xi, -3, 3)``, not
    multiplied by sqrt(h): the correction by the score is about 1 / h times too small for the noise, which
    does no harm at scales near 0.05.
    """

    def transition(x: Tensor, i: int) -> tuple[Tensor, float]:
        return tapered_step(velocity, context, x, i, steps, scale, clip)

    return sample_sde(transition, noise, steps, lambda mean: normal(mean).clamp(-3, 3))


def tapered_step(
    velocity: Velocity,
    context: Context,
    x: Tensor,
    i: int,
    steps: int,
    scale: float,
    clip: Clip = unit_clip,
) -> tuple[Tensor, float]:
    """Mean (B, D) and standard deviation of step i of `tapered_sde` from x (B, D)."""
    t = i / steps
    v = velocity(context, x, x.new_full((len(x), 1), t))
    mean = x + (v + 0.5 * scale**2 * (t * v - x)) / steps
    return clip(mean), scale * (1 - t) ** 0.5


def flow_curvature(velocity: Velocity, context: Context, noise: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Euler end points (B, D) and ``sum_i || v_{i+1} - v_i ||`` along each path, (B,): 0 for straight paths."""
    x, previous = noise, None
    bend = noise.new_zeros(len(noise))
    for i in range(steps):
        v = velocity(context, x, x.new_full((len(x), 1), i / steps))
        if previous is not None:
            bend = bend + (v - previous).norm(dim=1)
        x, previous = x + v / steps, v
    return x, bend


def interpolate(noise: Tensor, action: Tensor, t: Tensor) -> Tensor:
    """The linear path ``x_t = (1 - t) noise + t action``."""
    return (1 - t) * noise + t * action


def flow_matching_loss(
    velocity: Velocity,
    context: Context,
    action: Tensor,
    noise: Tensor,
    t: Tensor,
    weight: Tensor | None = None,
) -> Tensor:
    """``mean || v(x_t, t) - (action - noise) ||^2`` over B and D, rows weighted by ``weight`` (B,).

    ``action`` and ``noise`` are (B, D), ``t`` is (B, 1). The mean divides by B, not by the weights' sum.
    """
    error = velocity(context, interpolate(noise, action, t), t) - (action - noise)
    per_row = error.square().mean(dim=1)
    return (per_row if weight is None else per_row * weight).mean()

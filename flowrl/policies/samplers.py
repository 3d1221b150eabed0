"""Samplers and the flow-matching loss, for any velocity (algorithms are written against these).

Euler on ``t_i = i / K`` evaluates the network at 0, 1/K, ..., (K-1)/K and never at 1. Nothing here
clips: an action is clipped to [-1, 1] once, after the last step, by whoever uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from flowrl.policies.interface import Context, Velocity


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


def memoryless_sde(
    velocity: Velocity,
    context: Context,
    noise: Tensor,
    steps: int,
    normal: Callable[[Tensor], Tensor] = torch.randn_like,
) -> tuple[Tensor, list[Tensor]]:
    """The memoryless SDE of adjoint matching, Euler-Maruyama (arXiv 2601.14234, eq. 1.1 and 1.2 here).

    ``X_{t+h} = X_t + h [2 v(X_t, t) - X_t / (t + h)] + sqrt(h) g_t xi`` with
    ``g_t^2 = 2 (1 - t + h) / (t + h)``; the last step adds no noise. ``normal`` draws xi with the
    shape of its argument. Returns the end point (B, D) and the path of steps + 1 states.
    """
    h = 1 / steps
    x, path = noise, [noise]
    for i in range(steps):
        t = i / steps
        drift = 2 * velocity(context, x, x.new_full((len(x), 1), t)) - x / (t + h)
        x = x + h * drift
        if i < steps - 1:
            x = x + (h * 2 * (1 - t + h) / (t + h)) ** 0.5 * normal(x)
        path.append(x)
    return x, path


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

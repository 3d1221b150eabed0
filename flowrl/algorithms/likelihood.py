"""Log-densities of stored chains of Gaussian steps, under the velocity that drew them or another one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flowrl.policies.interface import Context, Velocity
from flowrl.policies.samplers import Clip, StochasticPath, tapered_step, unit_clip


def chain_log_density(path: StochasticPath) -> Tensor:
    """``sum_i log N(x_{i+1}; mean_i, std_i^2 I)`` of each chain, (B,); every step must have noise.

    The density of the start is left out: it does not depend on a velocity. So is the truncation of the
    sampler's noise, whose constant is the same for every velocity.
    """
    steps, _, size = path.means.shape
    deviation = (path.states[1:] - path.means) / path.stds.view(-1, 1, 1)
    constant = size * (path.stds.log().sum() + steps * 0.5 * math.log(2 * math.pi))
    return -0.5 * deviation.square().sum(dim=(0, 2)) - constant


def rescore(
    velocity: Velocity, context: Context, states: Tensor, scale: float, clip: Clip = unit_clip
) -> StochasticPath:
    """The chain with ``states`` (K+1, B, D) of `tapered_sde`, as a chain of ``velocity``.

    Means and standard deviations come from the sampler's own step, its clipping of means included; a
    dimension whose mean is clipped gives the velocity no gradient. ``scale`` and ``clip`` are the sampler's.
    """
    steps = len(states) - 1
    means, stds = list[Tensor](), list[float]()
    for i in range(steps):
        mean, std = tapered_step(velocity, context, states[i], i, steps, scale, clip)
        means.append(mean)
        stds.append(std)
    return StochasticPath(states, torch.stack(means), states.new_tensor(stds))

"""At which times checkpoints were trained: beta distributions, by their quantiles."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_CELLS = 8192


def beta_quantile(level: Tensor, alpha: float, beta: float) -> Tensor:
    """The quantiles of Beta(alpha, beta) at levels in [0, 1], of their shape.

    Exact where one of the two is 1, as in every configuration that LeRobot ships. Otherwise the distribution
    is integrated in ``theta`` with ``x = sin(theta)^2``, which takes the edges' poles out of the density for
    parameters of 1/2 and more, and interpolated: to about 1e-6 for those.
    """
    if beta == 1:
        return level ** (1 / alpha)
    if alpha == 1:
        return 1 - (1 - level) ** (1 / beta)
    edges = torch.linspace(0, math.pi / 2, _CELLS + 1, dtype=torch.float64, device=level.device)
    middle = (edges[1:] + edges[:-1]) / 2
    mass = middle.sin() ** (2 * alpha - 1) * middle.cos() ** (2 * beta - 1)
    below = torch.cat([mass.new_zeros(1), mass.cumsum(0)]) / mass.sum()
    wanted = level.double().contiguous()
    cell = (torch.searchsorted(below, wanted, right=True) - 1).clamp(0, _CELLS - 1)
    share = (wanted - below[cell]) / (below[cell + 1] - below[cell]).clamp(min=1e-30)
    theta = edges[cell] + share.clamp(0, 1) * (edges[1] - edges[0])
    return (theta.sin() ** 2).to(level.dtype)

"""Distributional targets of categorical critics (C51, arXiv 1707.06887), and head aggregation for them."""

from __future__ import annotations

import torch
from torch import Tensor

from flowrl.critics.aggregation import Aggregation, draw_pair


def aggregate_distributions(
    probabilities: Tensor,
    atoms: Tensor,
    kind: Aggregation,
    pessimism: float = 0.5,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Reduce the heads' distributions (M, N, Z) over ``atoms`` (Z,) to one per row.

    Returns its probabilities (N, Z) and the points (N, Z) they sit at. The mean of the result is what
    `flowrl.critics.aggregation.aggregate` makes of the heads' means: ``mean`` mixes the heads, ``min``
    takes for each row the head of lowest mean, ``subsample_min2`` does so among two heads, and
    ``mean_minus_std`` moves the points of the mixture down by ``pessimism`` standard deviations of the
    heads' means.
    """
    means = probabilities @ atoms
    points = atoms.expand(*probabilities.shape[1:])
    if kind == "subsample_min2":
        pick = draw_pair(len(means), generator)
        probabilities, means = probabilities[pick], means[pick]
    if kind in ("min", "subsample_min2"):
        lowest = means.argmin(dim=0)
        return probabilities[lowest, torch.arange(len(lowest), device=lowest.device)], points
    mixture = probabilities.mean(dim=0)
    if kind == "mean_minus_std":
        points = points - pessimism * means.std(dim=0, correction=0)[:, None]
    return mixture, points


def project(probabilities: Tensor, points: Tensor, atoms: Tensor) -> Tensor:
    """Move mass (..., Z) at ``points`` (..., Z) onto evenly spaced ``atoms`` (Y,): (..., Y).

    Each point gives its mass to the two nearest atoms so that its mean is kept; points outside the
    atoms go to the nearest end. Mass is conserved.
    """
    width = (atoms[-1] - atoms[0]) / (len(atoms) - 1)
    place = ((points - atoms[0]) / width).clamp(0, len(atoms) - 1)
    lower = place.floor().clamp(max=len(atoms) - 2)
    upper_share = place - lower
    index = lower.long()
    projected = probabilities.new_zeros(*points.shape[:-1], len(atoms))
    projected.scatter_add_(-1, index, probabilities * (1 - upper_share))
    return projected.scatter_add_(-1, index + 1, probabilities * upper_share)

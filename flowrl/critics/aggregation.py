"""Many values of one thing become one: over the heads of an ensemble, over samples of the next action."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["mean", "min", "mean_minus_std", "subsample_min2"]
Reduction = Literal["mean", "median", "trimmed"]


def aggregate(
    values: Tensor,
    kind: Aggregation,
    pessimism: float = 0.5,
    generator: torch.Generator | None = None,
    *,
    fresh_pairs: bool = False,
) -> Tensor:
    """Reduce head values (M, B) to (B,).

    ``mean_minus_std`` subtracts ``pessimism`` population standard deviations; ``subsample_min2`` takes
    the minimum of two heads drawn fresh for each call and shared over the batch, or with ``fresh_pairs``
    drawn for each column.
    """
    match kind:
        case "mean":
            return values.mean(dim=0)
        case "min":
            return values.min(dim=0).values
        case "mean_minus_std":
            return values.mean(dim=0) - pessimism * values.std(dim=0, correction=0)
        case "subsample_min2":
            if fresh_pairs:
                pick = torch.rand(values.shape, generator=generator).argsort(dim=0)[:2].to(values.device)
                return values.gather(0, pick).min(dim=0).values
            return values[draw_pair(len(values), generator)].min(dim=0).values


def draw_pair(heads: int, generator: torch.Generator | None) -> Tensor:
    """Two different heads of M, (2,); the only head where M is 1."""
    return torch.randperm(heads, generator=generator)[:2]


def sample_weights(values: Tensor, kind: Reduction) -> Tensor:
    """The weight of each of n samples (n, ...) in their reduced value; weights sum to 1 over n.

    ``median`` keeps the middle sample, or the two middle ones; ``trimmed`` leaves out the lowest and
    the highest quarter, ``n // 4`` samples each.
    """
    count = len(values)
    dropped = {"mean": 0, "median": (count - 1) // 2, "trimmed": count // 4}[kind]
    if dropped == 0:
        return torch.full_like(values, 1 / count)
    rank = values.argsort(dim=0).argsort(dim=0)
    kept = (rank >= dropped) & (rank < count - dropped)
    return kept.to(values.dtype) / (count - 2 * dropped)

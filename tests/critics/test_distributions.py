"""Projection and head aggregation of categorical critics."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from flowrl.critics.aggregation import Aggregation, aggregate
from flowrl.critics.distributions import aggregate_distributions, project

ATOMS = torch.linspace(-2.0, 4.0, 13)


def naive_projection(probabilities: list[float], points: list[float]) -> list[float]:
    """The projection as the publication writes it: a loop over atoms."""
    atoms, width = ATOMS.tolist(), 0.5
    mass = [0.0] * len(atoms)
    for p, x in zip(probabilities, points, strict=True):
        place = (min(max(x, atoms[0]), atoms[-1]) - atoms[0]) / width
        low = int(place)
        high = min(low + 1, len(atoms) - 1)
        mass[high] += p * (place - low)
        mass[low] += p * (1 - (place - low))
    return mass


def test_projection_equals_a_loop_and_conserves_mass() -> None:
    probabilities = torch.randn(40, 13).softmax(dim=-1)
    points = 3 * torch.randn(40, 13)
    points[0], points[1] = ATOMS, 50.0
    found = project(probabilities, points, ATOMS)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(40))
    for p, x, row in zip(probabilities.tolist(), points.tolist(), found.tolist(), strict=True):
        assert row == pytest.approx(naive_projection(p, x), abs=1e-5)
    torch.testing.assert_close(found[0], probabilities[0], rtol=0, atol=1e-6)
    assert float(found[1, -1]) == pytest.approx(1.0)


def test_projection_keeps_the_mean_inside_the_support() -> None:
    probabilities = torch.randn(5, 40, 13).softmax(dim=-1)
    points = 6 * torch.rand(5, 40, 13) - 2
    found = project(probabilities, points, ATOMS) @ ATOMS
    torch.testing.assert_close(found, (probabilities * points).sum(dim=-1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", get_args(Aggregation))
def test_mean_of_the_aggregate_is_the_aggregate_of_the_means(kind: Aggregation) -> None:
    probabilities = torch.randn(4, 25, 13).softmax(dim=-1)
    mixed, points = aggregate_distributions(probabilities, ATOMS, kind, 0.7, torch.Generator().manual_seed(3))
    torch.testing.assert_close(mixed.sum(dim=1), torch.ones(25))
    expected = aggregate(probabilities @ ATOMS, kind, 0.7, torch.Generator().manual_seed(3))
    torch.testing.assert_close((mixed * points).sum(dim=1), expected, rtol=0, atol=1e-5)


def test_minimum_takes_one_heads_whole_distribution() -> None:
    probabilities = torch.randn(3, 20, 13).softmax(dim=-1)
    mixed, points = aggregate_distributions(probabilities, ATOMS, "min")
    assert torch.equal(points, ATOMS.expand(20, 13))
    for row, head in enumerate((probabilities @ ATOMS).argmin(dim=0).tolist()):
        assert torch.equal(mixed[row], probabilities[head, row])

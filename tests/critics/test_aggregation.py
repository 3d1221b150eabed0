"""Heads and samples reduce to known numbers."""

from __future__ import annotations

import pytest
import torch

from flowrl.critics.aggregation import aggregate, sample_weights

HEADS = torch.tensor([[1.0], [2.0], [3.0]])


@pytest.mark.parametrize(("kind", "value"), [("mean", 2.0), ("min", 1.0), ("mean_minus_std", 1.5918)])
def test_heads_1_2_3_aggregate_to_known_values(kind: str, value: float) -> None:
    assert float(aggregate(HEADS, kind, 0.5)) == pytest.approx(value, abs=5e-5)  # type: ignore[arg-type]


def test_two_random_heads_have_the_expected_minimum() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = [float(aggregate(HEADS, "subsample_min2", generator=generator)) for _ in range(6000)]
    assert set(draws) == {1.0, 2.0}
    assert sum(draws) / len(draws) == pytest.approx(4 / 3, abs=0.02)


def test_two_random_heads_are_shared_over_the_batch() -> None:
    values = HEADS.expand(3, 50)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        assert len(aggregate(values, "subsample_min2", generator=generator).unique()) == 1


def test_fresh_pairs_are_drawn_for_each_column() -> None:
    """Of 6000 columns a third must have head 2 as minimum: its standard error is 0.006."""
    generator = torch.Generator().manual_seed(0)
    found = aggregate(HEADS.expand(3, 6000), "subsample_min2", generator=generator, fresh_pairs=True)
    assert set(found.tolist()) == {1.0, 2.0}
    assert float(found.mean()) == pytest.approx(4 / 3, abs=0.02)


SAMPLES = torch.tensor([7.0, 0.0, 3.0, 1.0, 100.0, 2.0, 5.0, -50.0])


@pytest.mark.parametrize(
    ("kind", "count", "value"),
    [
        ("mean", 8, 8.5),
        ("median", 8, 2.5),  # of -50, 0, 1, 2, 3, 5, 7, 100
        ("median", 7, 3.0),
        ("trimmed", 8, 2.75),  # without -50, 0 and 7, 100
        ("trimmed", 4, 2.0),  # of 7, 0, 3, 1
        ("mean", 1, 7.0),
        ("median", 1, 7.0),
    ],
)
def test_samples_reduce_to_known_values(kind: str, count: int, value: float) -> None:
    samples = SAMPLES[:count, None].expand(count, 2)
    weights = sample_weights(samples, kind)  # type: ignore[arg-type]
    assert weights.sum(dim=0).tolist() == pytest.approx([1.0, 1.0])
    assert (weights * samples).sum(dim=0).tolist() == pytest.approx([value, value])

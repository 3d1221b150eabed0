"""Quantiles of beta distributions against scipy's."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import beta as beta_distribution

from flowrl.policies.lerobot.times import beta_quantile


@pytest.mark.parametrize(
    ("alpha", "beta", "tolerance"),
    [(1.5, 1.0, 1e-6), (1.0, 1.5, 1e-6), (2.0, 3.0, 1e-6), (0.5, 0.5, 1e-6), (0.3, 4.0, 1e-3)],
)
def test_quantiles(alpha: float, beta: float, tolerance: float) -> None:
    levels = torch.linspace(0, 1, 101, dtype=torch.float64)
    expected = torch.from_numpy(beta_distribution.ppf(levels.numpy(), alpha, beta))
    assert torch.allclose(beta_quantile(levels, alpha, beta), expected, rtol=0, atol=tolerance)

"""Policies around a flow, and the squashed Gaussian that some of them share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from flowrl.errors import UsageError
from flowrl.policies import io
from flowrl.policies.wrapped import TanhGaussian
from tests.helpers import identity_spec


def gaussian(**settings: bool) -> TanhGaussian:
    torch.manual_seed(0)
    return TanhGaussian(3, 2, width=8, depth=1, **settings)


def test_log_density_is_that_of_the_transformed_normal() -> None:
    network, features, noise = gaussian(), torch.randn(50, 3), torch.randn(50, 2)
    action, log_density = network(features, noise)
    mean, std = network.moments(features)
    known = TransformedDistribution(Independent(Normal(mean, std), 1), [TanhTransform(cache_size=1)])
    assert torch.allclose(log_density, known.log_prob(action), atol=1e-4)
    assert torch.allclose(network.log_prob(features, action.detach()), log_density, atol=1e-3)


def test_the_density_integrates_to_one() -> None:
    network, count = gaussian(), 20_001
    grid = torch.linspace(-0.99999, 0.99999, count)
    one = TanhGaussian(3, 1, width=8, depth=1)
    density = one.log_prob(torch.zeros(count, 3), grid[:, None]).exp().detach()
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1.0, abs=1e-3)
    assert network.moments(torch.zeros(1, 3))[0].shape == (1, 2)


def test_saturated_actions_have_a_finite_density_and_gradient() -> None:
    network = gaussian()
    action, log_density = network(torch.zeros(4, 3), torch.full((4, 2), 50.0))
    assert float(action.detach().abs().max()) <= 1
    log_density.sum().backward()
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    assert gradients
    assert all(bool(g.isfinite().all()) for g in gradients)


def test_zero_initialised_last_layer_starts_centred_with_the_middle_of_the_range() -> None:
    mean, std = gaussian(zero_init_last=True).moments(torch.randn(5, 3))
    assert torch.equal(mean, torch.zeros(5, 2))
    assert torch.allclose(std, torch.full((5, 2), -1.5).exp())


def test_only_a_policy_with_a_velocity_can_be_fine_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(io.KINDS, "constant", "tests.policies.constant:ConstantPolicy")
    for name, kind in {"flow": "flow_mlp", "constant": "constant"}.items():
        io.save_policy(io.create_policy(kind, identity_spec(2, 1, 3)), tmp_path / name)
    assert io.load_flow_policy(tmp_path / "flow").flow_steps == 10
    assert io.load_policy(tmp_path / "constant").config() == {"scale": 0.5}
    with pytest.raises(UsageError, match=r"constant is a policy of kind 'constant', which has no velocity"):
        io.load_flow_policy(tmp_path / "constant")

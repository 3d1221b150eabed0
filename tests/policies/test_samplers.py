"""Samplers against Gaussians, for which every law is known in closed form."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from flowrl.policies.interface import Context
from flowrl.policies.samplers import (
    euler_ode,
    flow_matching_loss,
    interpolate,
    memoryless_sde,
    sample_sde,
    tapered_sde,
)

NO_CONTEXT = Context(torch.zeros(1, 1))


def slope(t: float, std: float) -> float:
    """c_t of the exact velocity ``mu + c_t (x - t mu)`` of data N(mu, std^2)."""
    return (t * std**2 - (1 - t)) / ((1 - t) ** 2 + t**2 * std**2)


class GaussianVelocity:
    def __init__(self, mean: float, std: float) -> None:
        self.mean, self.std = mean, std

    def __call__(self, context: Context, x: Tensor, t: Tensor) -> Tensor:
        c = (t * self.std**2 - (1 - t)) / ((1 - t) ** 2 + t**2 * self.std**2)
        return self.mean + c * (x - t * self.mean)


EULER_STD = [(0.1, 0.0617), (0.3, 0.2469), (0.5, 0.4308), (1.0, 0.8790), (2.0, 1.7231)]


@pytest.mark.parametrize(("std", "expected"), EULER_STD)
def test_ten_step_euler_narrows_a_gaussian_by_the_known_factor(std: float, expected: float) -> None:
    product = math.prod(1 + slope(i / 10, std) / 10 for i in range(10))
    assert product == pytest.approx(expected, abs=5e-5)
    noise = torch.randn(50_000, 1, dtype=torch.float64)
    sample = euler_ode(GaussianVelocity(0.4, std), NO_CONTEXT, noise, 10)
    assert torch.allclose(sample, 0.4 + product * noise, atol=1e-12)
    assert float(sample.std()) == pytest.approx(expected, rel=0.02)


def test_euler_never_evaluates_the_velocity_at_the_action() -> None:
    seen: list[float] = []

    def velocity(context: Context, x: Tensor, t: Tensor) -> Tensor:
        seen.append(float(t[0]))
        return torch.zeros_like(x)

    euler_ode(velocity, NO_CONTEXT, torch.zeros(3, 2), 5)
    assert seen == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])


def test_euler_on_a_given_grid_takes_its_steps() -> None:
    def velocity(context: Context, x: Tensor, t: Tensor) -> Tensor:
        return t.expand_as(x)

    end = euler_ode(velocity, NO_CONTEXT, torch.zeros(1, 1), 2, times=[0.5, 0.6, 1.0])
    assert float(end) == pytest.approx(0.1 * 0.5 + 0.4 * 0.6)


@pytest.mark.parametrize("t", [0.2, 0.5, 0.9])
def test_optimal_velocity_gives_action_noise_and_score(t: float) -> None:
    mean, std = 0.4, 0.3
    x = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    v = GaussianVelocity(mean, std)(NO_CONTEXT, x, torch.full_like(x, t))
    variance = (1 - t) ** 2 + t**2 * std**2
    off = (x - t * mean) / variance
    assert torch.allclose(x + (1 - t) * v, mean + t * std**2 * off)
    assert torch.allclose(x - t * v, (1 - t) * off)
    assert torch.allclose((t * v - x) / (1 - t), -off)


@pytest.mark.parametrize("t", [0.2, 0.7])
def test_regressing_action_minus_noise_finds_the_optimal_velocity(t: float) -> None:
    mean, std = 0.4, 0.3
    noise, action = torch.randn(200_000, dtype=torch.float64), torch.randn(200_000, dtype=torch.float64)
    action = mean + std * action
    x = interpolate(noise, action, torch.tensor(t))
    joint = torch.cov(torch.stack([x, action - noise]))
    assert float(joint[0, 1] / joint[0, 0]) == pytest.approx(slope(t, std), abs=0.02)


@pytest.mark.parametrize(("mean", "std"), [(0.4, 0.3), (-0.2, 1.0)])
def test_memoryless_sde_ends_in_the_base_law_and_forgets_its_start(mean: float, std: float) -> None:
    steps, rows = 200, 20_000
    noise = torch.randn(rows, 1, dtype=torch.float64)
    path = memoryless_sde(GaussianVelocity(mean, std), NO_CONTEXT, noise, steps)
    assert float(path.end.mean()) == pytest.approx(mean, abs=4 * std / math.sqrt(rows) + 0.005)
    assert float(path.end.std()) == pytest.approx(std, rel=0.03)
    correlation = torch.corrcoef(torch.cat([noise, path.end], dim=1).T)[0, 1]
    assert abs(float(correlation)) < 4 / math.sqrt(rows)


def test_ode_remembers_its_start() -> None:
    noise = torch.randn(1000, 1)
    end = euler_ode(GaussianVelocity(0.4, 0.3), NO_CONTEXT, noise, 10)
    assert float(torch.corrcoef(torch.cat([noise, end], dim=1).T)[0, 1]) > 0.999


def test_memoryless_sde_follows_its_formula() -> None:
    steps, h = 4, 0.25
    draws = list(torch.randn(steps, 2, 3, dtype=torch.float64))
    noise = torch.randn(2, 3, dtype=torch.float64)
    velocity = GaussianVelocity(0.1, 0.5)
    pending = iter(draws)
    path = memoryless_sde(velocity, NO_CONTEXT, noise, steps, lambda mean: next(pending))
    x = noise
    for i in range(steps):
        t = i * h
        v = velocity(NO_CONTEXT, x, torch.full((2, 1), t, dtype=torch.float64))
        gain = math.sqrt(2 * (1 - t + h) / (t + h)) if i < steps - 1 else 0.0
        x = x + h * (2 * v - x / (t + h)) + math.sqrt(h) * gain * draws[i]
        assert torch.allclose(path.states[i + 1], x, atol=1e-12)
    assert float(path.stds[-1]) == 0
    assert next(pending) is draws[-1], "the last step is deterministic and must draw nothing"


def test_stochastic_path_is_means_plus_scaled_draws() -> None:
    draws = iter(torch.randn(3, 2, 1))
    used: list[Tensor] = []

    def normal(mean: Tensor) -> Tensor:
        used.append(next(draws))
        return used[-1]

    path = sample_sde(lambda x, i: (0.5 * x, [0.3, 0.2, 0.1][i]), torch.ones(2, 1), 3, normal)
    rebuilt = path.means + path.stds[:, None, None] * torch.stack(used)
    assert torch.equal(path.states[1:], rebuilt)
    assert torch.equal(path.end, path.states[-1])


def test_interpolation_starts_at_noise_and_ends_at_action() -> None:
    noise, action = torch.randn(2, 3), torch.randn(2, 3)
    assert torch.equal(interpolate(noise, action, torch.zeros(2, 1)), noise)
    assert torch.equal(interpolate(noise, action, torch.ones(2, 1)), action)


def test_weighted_flow_matching_divides_by_rows_not_by_weights() -> None:
    noise, action, t = torch.randn(4, 3), torch.randn(4, 3), torch.rand(4, 1)
    context = Context(torch.zeros(4, 1))

    def zero(context: Context, x: Tensor, t: Tensor) -> Tensor:
        return torch.zeros_like(x)

    weight = torch.tensor([1.0, 0.0, 0.0, 0.0])
    expected = (action - noise)[0].square().mean() / 4
    assert torch.allclose(flow_matching_loss(zero, context, action, noise, t, weight), expected)


def test_without_noise_the_tapered_sde_is_the_ode() -> None:
    """On paths that stay inside [-1, 1], where the means are not clipped."""
    velocity, steps = GaussianVelocity(0.0, 0.3), 5
    noise = torch.rand(100, 2, generator=torch.Generator().manual_seed(0)) * 1.8 - 0.9
    context = NO_CONTEXT
    path = tapered_sde(velocity, context, noise, steps, 0.0)
    assert torch.allclose(path.end, euler_ode(velocity, context, noise, steps), atol=1e-6)
    assert torch.equal(path.stds, torch.zeros(steps))


def test_the_tapered_sde_widens_a_gaussian_as_computed() -> None:
    """Base std 0.3, K = 10, scale 0.05: the ODE's 0.2469 becomes 0.2532 (clipping means apart)."""
    velocity, steps, scale = GaussianVelocity(0.0, 0.3), 10, 0.05
    gain, variance = 1.0, 0.0
    for i in range(steps):
        t = i / steps
        c = slope(t, 0.3)
        factor = 1 + (c + 0.5 * scale**2 * (t * c - 1)) / steps
        gain, variance = gain * factor, variance * factor**2 + scale**2 * (1 - t)
    assert (gain**2 + variance) ** 0.5 == pytest.approx(0.2532, abs=2e-4)
    noise = torch.randn(200_000, 1, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
    context = NO_CONTEXT
    generator = torch.Generator().manual_seed(1)
    path = tapered_sde(
        velocity, context, noise, steps, scale, lambda x: torch.randn(x.shape, generator=generator)
    )
    inner = gain * float(noise.std())
    assert float(path.end.std()) == pytest.approx((inner**2 + variance) ** 0.5, rel=0.01)

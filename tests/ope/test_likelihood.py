"""The density of the Euler map: closed forms of linear flows, Monte Carlo, and where there is none."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from flowrl.ope.likelihood import chunk_densities, euler_log_density, invert_step, step_jacobian, tractable
from flowrl.policies.interface import Context
from flowrl.policies.mlp import FlowMLP
from flowrl.policies.observation import Observation
from flowrl.policies.samplers import euler_ode
from tests.helpers import identity_spec
from tests.ope.analytic import GaussianPolicy, LinearFlow, chain_spec
from tests.policies.constant import ConstantPolicy


def linear_flow(steps: int = 4, slope: float = 0.3) -> LinearFlow:
    matrix = torch.tensor([[-2.0, 0.4], [0.1, -1.5]])
    return LinearFlow(identity_spec(1, 2, 1), matrix, torch.tensor([0.2, -0.1]), slope, steps)


def test_a_linear_flow_has_its_gaussian_density() -> None:
    policy = linear_flow()
    state = torch.tensor([[0.5], [-1.0], [0.0]])
    action = torch.tensor([[[0.1, 0.2]], [[-0.4, 0.3]], [[0.0, -0.2]]])
    found = chunk_densities(policy, Observation(state), action)
    for row in range(3):
        exact = policy.law(float(state[row])).log_prob(action[row, 0].double())
        assert float(found.log_prob[row]) == pytest.approx(float(exact), rel=1e-8)
    assert found.missing == 0


def test_a_velocity_too_steep_for_the_fixed_point_is_inverted_by_newton() -> None:
    """With one step and a slope of 3 the iteration x <- y - 3 x diverges; the map x -> 4 x is fine."""
    policy = LinearFlow(identity_spec(1, 2, 1), 3 * torch.eye(2), torch.zeros(2), 0.0, 1)
    action = torch.tensor([[[0.4, -0.8]]])
    found = chunk_densities(policy, Observation(torch.zeros(1, 1)), action)
    exact = torch.distributions.Normal(0.0, 4.0).log_prob(action).sum()
    assert float(found.log_prob) == pytest.approx(float(exact), abs=1e-6)


def test_normalisation_enters_the_density_per_raw_unit() -> None:
    """Raw actions are twice the normalised ones: per raw unit the density halves in each dimension."""
    plain = linear_flow()
    normalisation = replace(plain.spec.normalisation, action_half_range=(2.0, 2.0))  # type: ignore[type-var]
    wide = LinearFlow(
        replace(plain.spec, normalisation=normalisation),
        plain.get_buffer("matrix"), plain.get_buffer("bias"), 0.3, 4,
    )  # fmt: skip
    state, action = Observation(torch.zeros(1, 1)), torch.tensor([[[0.1, 0.2]]])
    difference = (
        chunk_densities(wide, state, 2 * action).log_prob - chunk_densities(plain, state, action).log_prob
    )
    assert float(difference) == pytest.approx(-2 * math.log(2.0), abs=1e-9)


def test_inverting_a_network_gives_back_the_noise_it_started_from() -> None:
    torch.manual_seed(1)
    policy = FlowMLP(identity_spec(3, 2, 2), width=32, depth=2, flow_steps=5).double()
    context = policy.encode(Observation(torch.randn(20, 3, dtype=torch.double)))
    start = torch.randn(20, 4, dtype=torch.double)
    x = euler_ode(policy.velocity, context, start, 5)
    for i in reversed(range(5)):
        x, found = invert_step(policy.velocity, context, x, i / 5, 1 / 5)
        assert bool(found.all())
    assert torch.allclose(x, start, atol=1e-7)


def test_the_log_density_of_a_network_is_that_of_the_whole_maps_jacobian() -> None:
    torch.manual_seed(2)
    policy = FlowMLP(identity_spec(3, 2, 2), width=32, depth=2, flow_steps=5).double().requires_grad_(False)
    context = policy.encode(Observation(torch.randn(1, 3, dtype=torch.double)))
    noise = torch.randn(1, 4, dtype=torch.double)

    def whole(z: torch.Tensor) -> torch.Tensor:
        return euler_ode(policy.velocity, context, z[None], 5)[0]

    jacobian = torch.func.jacrev(whole)(noise[0])
    exact = torch.distributions.Normal(0.0, 1.0).log_prob(noise).sum() - torch.linalg.slogdet(jacobian)[1]
    action = euler_ode(policy.velocity, context, noise, 5)
    found = euler_log_density(policy.velocity, context, action, 5)
    assert float(found.log_prob) == pytest.approx(float(exact), abs=1e-6)


def test_each_rows_jacobian_is_its_own() -> None:
    def velocity(context: Context, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return x**2 * context.features

    context = Context(torch.tensor([[1.0], [3.0]]))
    x = torch.tensor([[0.5, 2.0], [1.0, -1.0]])
    jacobian = step_jacobian(velocity, context, x, 0.0, 0.1)
    expected = torch.stack([torch.diag(1 + 0.2 * c * row) for c, row in zip((1.0, 3.0), x, strict=True)])
    assert torch.allclose(jacobian, expected)


def test_an_action_that_no_noise_gives_has_no_density_and_is_counted() -> None:
    """x + x^2 is never below -1/4."""

    def velocity(context: Context, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return x**2

    context = Context(torch.zeros(2, 1, dtype=torch.double))
    found = euler_log_density(velocity, context, torch.tensor([[-0.5], [0.3]], dtype=torch.double), 1)
    assert found.not_inverted == 1
    assert found.log_prob.isnan().tolist() == [True, False]


def test_where_the_map_folds_there_is_no_density() -> None:
    """x -> x - 3 x turns the line round: its determinant is -2."""

    def velocity(context: Context, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return -3 * x

    context = Context(torch.zeros(1, 1, dtype=torch.double))
    found = euler_log_density(velocity, context, torch.tensor([[0.2]], dtype=torch.double), 1)
    assert (found.folded, found.not_inverted) == (1, 0)
    assert bool(found.log_prob.isnan().all())


@pytest.mark.parametrize("kind", ["flow", "closed form"])
def test_an_action_on_its_bound_has_no_density(kind: str) -> None:
    policy = linear_flow() if kind == "flow" else GaussianPolicy(identity_spec(1, 2, 1), std=0.5)
    action = torch.tensor([[[1.0, 0.2]], [[0.5, 0.2]]])
    found = chunk_densities(policy, Observation(torch.zeros(2, 1)), action)
    assert found.clipped == 1
    assert found.log_prob.isnan().tolist() == [True, False]


def test_a_policy_with_a_density_of_its_own_is_asked_for_it() -> None:
    policy = GaussianPolicy(chain_spec(), mean=0.1, std=0.5)
    action = torch.tensor([[[0.2], [-0.3]]])
    found = chunk_densities(policy, Observation(torch.zeros(1, 1)), action)
    exact = torch.distributions.Normal(0.1, 0.5).log_prob(action).sum()
    assert float(found.log_prob) == pytest.approx(float(exact), abs=1e-6)


def test_a_policy_without_velocity_or_density_is_not_tractable() -> None:
    assert tractable(linear_flow())
    assert tractable(GaussianPolicy(chain_spec()))
    assert not tractable(ConstantPolicy(chain_spec()))

"""The exact lean adjoint, and where the scalar adjoint equals it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flowrl.algorithms.adjoints import exact_adjoint
from flowrl.algorithms.sqam import bridge_times, scalar_adjoint
from flowrl.policies.interface import Context
from flowrl.policies.mlp import FlowMLP
from flowrl.policies.observation import Observation
from flowrl.policies.samplers import memoryless_sde
from tests.algorithms.analytic import LinearFlow
from tests.helpers import identity_spec


def scalar_adjoints(gradient: Tensor, steps: int) -> Tensor:
    tiled = gradient.repeat(steps, 1)
    return scalar_adjoint(tiled, bridge_times(steps, len(gradient))).view(steps, *gradient.shape)


@pytest.mark.parametrize("steps", [1, 3, 10, 64])
def test_scalar_adjoint_equals_exact_adjoint_on_x_independent_velocity(steps: int) -> None:
    weight = torch.randn(3, 5)

    def velocity(context: Context, x: Tensor, t: Tensor) -> Tensor:
        return (context.features @ weight) * t.cos()

    context = Context(torch.randn(7, 3))
    path = memoryless_sde(velocity, context, torch.randn(7, 5), steps).states
    gradient = torch.randn(7, 5)
    exact = exact_adjoint(velocity, context, path, gradient, steps)
    torch.testing.assert_close(exact[1:], scalar_adjoints(gradient, steps), rtol=0, atol=1e-6)
    assert not exact[0].any()


@pytest.mark.parametrize("steps", [1, 3, 10])
def test_scalar_adjoint_equals_exact_adjoint_when_the_graph_through_x_is_zero(steps: int) -> None:
    policy = FlowMLP(identity_spec(3, 2, 2), width=16, depth=2, flow_steps=steps)
    with torch.no_grad():
        policy.network[0].weight[:, 3:7] = 0  # type: ignore[union-attr,index,operator]
    context = policy.encode(Observation(torch.randn(6, 3)))
    gradient = torch.randn(6, 4)
    path = torch.randn(steps + 1, 6, 4)
    exact = exact_adjoint(policy.velocity, context, path, gradient, steps)
    torch.testing.assert_close(exact[1:], scalar_adjoints(gradient, steps), rtol=0, atol=1e-6)


@pytest.mark.parametrize("std", [0.3, 0.5, 1.0, 2.0])
def test_exact_adjoint_of_a_gaussian_base_is_t_s2_over_rho(std: float) -> None:
    steps = 200
    policy = LinearFlow(2, steps, std, mean=0.4)
    context = Context(torch.ones(3, 2))
    path = memoryless_sde(policy.velocity, context, torch.randn(3, 2), steps).states
    gradient = torch.tensor([[1.0, -2.0], [0.5, 1.0], [3.0, 1.0]])
    exact = exact_adjoint(policy.velocity, context, path, gradient, steps)
    t = torch.arange(steps + 1)[:, None, None] / steps
    expected = -t * std**2 / ((1 - t) ** 2 + t**2 * std**2) * gradient
    error = (exact - expected).abs().amax(dim=0) / expected.abs().amax(dim=0)
    assert float(error.max()) < 0.03
    scalar = scalar_adjoints(gradient, steps)
    difference = (exact[1:] - scalar).abs().amax(dim=0) / scalar.abs().amax(dim=0)
    assert float(difference.min()) > 0.1
    torch.testing.assert_close(exact[-1], scalar[-1])


def test_exact_adjoint_matches_the_product_of_jacobians_of_the_drift() -> None:
    steps = 4
    policy = FlowMLP(identity_spec(2, 3, 1), width=16, depth=2).double().requires_grad_(False)
    context = Context(torch.randn(1, 2, dtype=torch.float64))
    path = torch.randn(steps + 1, 1, 3, dtype=torch.float64)
    gradient = torch.randn(1, 3, dtype=torch.float64)
    adjoint = -gradient
    for k in reversed(range(steps)):
        later = (k + 1) / steps

        def drift(x: Tensor, later: float = later) -> Tensor:
            return 2 * policy.velocity(context, x, torch.full((1, 1), later).double()) - x / later

        jacobian = torch.autograd.functional.jacobian(drift, path[k]).view(3, 3)
        adjoint = adjoint + adjoint @ jacobian / steps
    exact = exact_adjoint(policy.velocity, context, path, gradient, steps)
    torch.testing.assert_close(exact[0], adjoint)
    assert len(exact) == steps + 1
    assert not exact.requires_grad


def test_exact_adjoint_gives_the_base_no_gradient() -> None:
    policy = FlowMLP(identity_spec(2, 3, 1), width=8, depth=1)
    context = Context(torch.randn(4, 2))
    with torch.no_grad():
        adjoints = exact_adjoint(policy.velocity, context, torch.randn(3, 4, 3), torch.randn(4, 3), 2)
    assert float(adjoints[0].abs().sum()) > 0
    assert all(p.grad is None for p in policy.parameters())

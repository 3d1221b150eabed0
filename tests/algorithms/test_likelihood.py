"""A stored chain scores as it was drawn, by the densities of the Gaussians it consists of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from flowrl.algorithms.likelihood import chain_log_density, rescore
from flowrl.policies.diffusion import DiffusionMLP
from flowrl.policies.interface import Context, FlowPolicy
from flowrl.policies.mlp import FlowMLP
from flowrl.policies.samplers import tapered_sde
from flowrl.policies.transformer import FlowTransformer
from tests.algorithms.analytic import LinearFlow
from tests.helpers import identity_spec

ROWS, SCALE = 40, 0.05


def policies() -> list[FlowPolicy]:
    torch.manual_seed(0)
    spec = identity_spec(3, 2, 2)
    return [
        FlowMLP(spec, width=32, depth=2, flow_steps=5),
        FlowTransformer(spec, width=16, depth=1, heads=2, flow_steps=5),
        DiffusionMLP(spec, width=32, depth=2, prediction="epsilon", flow_steps=5),
    ]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("policy", policies(), ids=lambda policy: policy.kind)
def test_a_stored_chain_scores_as_the_sampler_did(policy: FlowPolicy, training: bool) -> None:
    policy.train(training)
    context = Context(torch.randn(ROWS, 3))
    path = tapered_sde(policy.velocity, context, 1.5 * torch.randn(ROWS, 4), policy.flow_steps, SCALE)
    assert (path.means.abs() == 1).any(), "the clip of means must take part"
    scored = rescore(policy.velocity, context, path.states, SCALE)
    torch.testing.assert_close(scored.means, path.means, rtol=0, atol=1e-6)
    assert torch.equal(scored.stds, path.stds)
    size = (policy.flow_steps + 1) * policy.flat_size
    difference = (chain_log_density(scored) - chain_log_density(path)) / size
    torch.testing.assert_close(difference, torch.zeros(ROWS), rtol=0, atol=1e-5)


def test_a_linear_chain_has_the_density_of_its_gaussians() -> None:
    """Inside [-1, 1], x' = f_i x + noise, with f_i = 1 + h (c_i + sigma_0^2 (t_i c_i - 1) / 2)."""
    flow, steps = LinearFlow(2, flow_steps=4, std=0.3), 4
    generator = torch.Generator().manual_seed(0)
    states = 0.9 * (2 * torch.rand(steps + 1, ROWS, 2, generator=generator) - 1)
    expected = torch.zeros(ROWS)
    for i in range(steps):
        t = i / steps
        c = (t * 0.09 - (1 - t)) / ((1 - t) ** 2 + t**2 * 0.09)
        factor = 1 + (c + 0.5 * SCALE**2 * (t * c - 1)) / steps
        step = Normal(factor * states[i], SCALE * (1 - t) ** 0.5)
        expected += step.log_prob(states[i + 1]).sum(dim=1)
    found = chain_log_density(rescore(flow.velocity, Context(torch.zeros(ROWS, 2)), states, SCALE))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


def test_a_clipped_mean_gives_no_gradient() -> None:
    push = torch.tensor([0.0, 9.0], requires_grad=True)

    def velocity(context: Context, x: Tensor, t: Tensor) -> Tensor:
        return push.expand_as(x)

    path = rescore(velocity, Context(torch.zeros(1, 1)), torch.zeros(2, 1, 2) + 0.5, SCALE)
    chain_log_density(path).sum().backward()
    assert push.grad is not None
    assert push.grad[1] == 0
    assert push.grad[0] == pytest.approx((0.5 - 0.5 * (1 - 0.5 * SCALE**2)) / SCALE**2, rel=1e-4)

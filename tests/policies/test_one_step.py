"""A flow network asked once."""

from __future__ import annotations

import torch

from flowrl.policies.interface import Context
from flowrl.policies.mlp import FlowMLP
from flowrl.policies.observation import Observation
from flowrl.policies.one_step import OneStepPolicy
from flowrl.policies.samplers import euler_ode
from tests.helpers import identity_spec


def test_it_is_a_single_euler_step_of_its_network() -> None:
    flow = FlowMLP(identity_spec(3, 2, 2), width=16, depth=2, flow_steps=7)
    policy = OneStepPolicy.around(flow)
    context, noise = Context(torch.randn(5, 3)), torch.randn(5, 4)
    assert torch.allclose(policy.sample(context, noise), euler_ode(flow.velocity, context, noise, 1))


def test_it_sees_what_its_flow_sees_and_owns_its_weights() -> None:
    flow = FlowMLP(identity_spec(3, 2, 2), width=16, depth=2)
    policy = OneStepPolicy.around(flow)
    observation = Observation(torch.randn(5, 3))
    assert torch.equal(policy.encode(observation).features, flow.encode(observation).features)
    with torch.no_grad():
        next(flow.parameters()).add_(1.0)
    assert not torch.equal(next(flow.parameters()), next(policy.base.parameters()))

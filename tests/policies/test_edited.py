"""Edits of a flow's samples: bounded, centred on the sample, offered beside it."""

from __future__ import annotations

import torch

from flowrl.policies.edited import EditedPolicy
from flowrl.policies.interface import Context
from flowrl.policies.mlp import FlowMLP
from tests.helpers import identity_spec


def edited(**settings: float) -> EditedPolicy:
    return EditedPolicy.around(FlowMLP(identity_spec(3, 2, 2), width=16, depth=2), **settings)


def test_an_edit_stays_within_its_bound_and_the_actions_range() -> None:
    policy, context = edited(bound=0.2), Context(torch.randn(500, 3))
    action = 2 * torch.randn(500, 4)
    with torch.no_grad():
        moved, _ = policy.edit(context, action, 5 * torch.randn(500, 4))
    assert float((moved - action.clamp(-1, 1)).abs().max()) <= 0.2 + 1e-6
    assert float(moved.abs().max()) <= 1


def test_every_noise_offers_the_flows_sample_and_its_edit() -> None:
    policy, context = edited(), Context(torch.randn(6, 3))
    noise = torch.randn(6, policy.noise_size)
    first, second = policy.candidates(context, noise).view(6, 2, 4).unbind(dim=1)
    assert policy.noise_size == 8
    assert torch.equal(first, policy.base.sample(context, noise[:, :4]).clamp(-1, 1))
    assert torch.equal(second, policy.sample(context, noise))
    assert not torch.equal(first, second)


def test_the_edit_sees_the_sample_it_edits() -> None:
    policy, context, noise = edited(), Context(torch.zeros(2, 3)), torch.zeros(2, 4)
    action = torch.stack([torch.full((4,), -0.5), torch.full((4,), 0.5)])
    moved, _ = policy.edit(context, action, noise)
    assert not torch.allclose((moved - action)[0], (moved - action)[1], atol=1e-6)

"""Advantages in a group: values by hand, agreement of the heads, invariances."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from flowrl.algorithms.groups import AdvantageKind, advantages, consensus_advantage, group_advantage

KINDS = get_args(AdvantageKind)
HEADS = torch.tensor([[[1.0, 5.0, 0.0]], [[3.0, 2.0, 1.0]], [[2.0, 4.0, 3.0]]])
"""Three heads over a group of three; their means are 2, 2 and 3."""


def random_values(heads: int = 5) -> torch.Tensor:
    return torch.randn(heads, 7, 16, generator=torch.Generator().manual_seed(0))


def test_group_advantage_by_hand() -> None:
    """Means over heads are 2, 11/3, 4/3, their mean is 7/3."""
    torch.testing.assert_close(group_advantage(HEADS), torch.tensor([[-1.0, 4.0, -3.0]]) / 3)


def test_group_advantages_sum_to_zero_and_scale_with_the_values() -> None:
    values = random_values()
    torch.testing.assert_close(group_advantage(values).sum(dim=1), torch.zeros(7), atol=1e-5, rtol=0)
    torch.testing.assert_close(group_advantage(3 * values), 3 * group_advantage(values))


def test_consensus_by_hand() -> None:
    """By heads: (-1, 3, -2), (1, 0, -1), (-1, 1, 0): none of the three actions has an agreement."""
    assert torch.equal(consensus_advantage(HEADS), torch.zeros(1, 3))
    up = HEADS + torch.tensor([-3.0, 3.0, -3.0])
    """Group means fall by 1: (-3, 7, -4), (-1, 4, -3), (-3, 5, -2)."""
    assert torch.equal(consensus_advantage(up), torch.tensor([[-1.0, 4.0, -2.0]]))
    assert torch.equal(advantages(up, "penultimate"), torch.tensor([[-3.0, 5.0, -3.0]]))


@pytest.mark.parametrize("kind", ["consensus", "penultimate"])
def test_identical_heads_always_agree(kind: AdvantageKind) -> None:
    values = random_values(1).expand(4, -1, -1)
    torch.testing.assert_close(advantages(values, kind), group_advantage(values))


def test_two_opposed_heads_never_agree() -> None:
    values = random_values(1)
    assert not consensus_advantage(torch.cat([values, -values])).any()


def test_one_head_agrees_with_itself() -> None:
    values = random_values(1)
    assert torch.equal(consensus_advantage(values), group_advantage(values))


def test_consensus_never_exceeds_any_head_and_keeps_the_sign() -> None:
    values = random_values(3)
    each, agreed = values - values.mean(dim=2, keepdim=True), consensus_advantage(values)
    assert (agreed.abs() <= each.abs().min(dim=0).values + 1e-6).all()
    assert (agreed * each >= 0).all()
    share = float((agreed != 0).float().mean())
    assert share == pytest.approx(0.25, abs=0.12)  # three coins agree with probability 1/4; 112 draws


@pytest.mark.parametrize("kind", KINDS)
def test_a_constant_for_each_state_and_the_order_of_the_group_do_not_matter(kind: AdvantageKind) -> None:
    values = random_values()
    expected = advantages(values, kind)
    torch.testing.assert_close(advantages(values + torch.arange(7.0)[:, None], kind), expected)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(advantages(values[:, :, order], kind), expected[:, order])

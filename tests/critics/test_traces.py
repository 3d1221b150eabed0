"""Returns over several chunks against the recursion written by hand, and against each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flowrl.critics.traces import trace

DISCOUNT, CHUNKS, ROWS = 0.8, 4, 60


def random_chunks(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rewards, mask, usable (a later chunk needs the earlier ones) and next values, all (C, R)."""
    generator = torch.Generator().manual_seed(seed)
    rewards, values = (torch.randn(CHUNKS, ROWS, generator=generator) for _ in range(2))
    mask = (torch.rand(CHUNKS, ROWS, generator=generator) < 0.8).float()
    usable = (torch.rand(CHUNKS, ROWS, generator=generator) < 0.8).float()
    usable[0] = 1
    for i in range(1, CHUNKS):
        usable[i] *= usable[i - 1] * mask[i - 1]
    return rewards, mask, usable, values


def by_hand(i: int, row: int, parts: tuple[Tensor, Tensor, Tensor, Tensor], decay: float) -> float:
    rewards, mask, usable, values = parts
    onward = float(values[i, row])
    if i + 1 < CHUNKS and usable[i + 1, row]:
        onward = (1 - decay) * onward + decay * by_hand(i + 1, row, parts, decay)
    return float(rewards[i, row]) + DISCOUNT * float(mask[i, row]) * onward


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9, 1.0])
def test_return_equals_the_recursion_by_hand(decay: float) -> None:
    parts = random_chunks()
    rewards, mask, usable, values = parts
    found = trace(rewards, mask, usable, DISCOUNT, decay).returns(values)
    assert found.tolist() == pytest.approx([by_hand(0, row, parts, decay) for row in range(ROWS)], abs=1e-5)


def test_decay_1_is_the_n_step_return() -> None:
    rewards, mask, usable, values = random_chunks()
    found = trace(rewards, mask, usable, DISCOUNT, 1.0).returns(values)
    lengths = usable.sum(dim=0).long()
    assert set(lengths.tolist()) == {1, 2, 3, 4}, "episodes shorter than n must occur"
    for row, length in enumerate(lengths.tolist()):
        summed = sum(DISCOUNT**i * float(rewards[i, row]) for i in range(length))
        last = length - 1
        bootstrap = DISCOUNT**length * float(mask[last, row] * values[last, row])
        assert float(found[row]) == pytest.approx(summed + bootstrap, abs=1e-5)


def test_decay_0_and_a_single_chunk_are_td() -> None:
    rewards, mask, usable, values = random_chunks()
    expected = rewards[0] + DISCOUNT * mask[0] * values[0]
    for decay in (0.0, 0.5, 1.0):
        single = trace(rewards[:1], mask[:1], usable[:1], DISCOUNT, decay)
        assert torch.equal(single.returns(values[:1]), expected)
    assert torch.equal(trace(rewards, mask, usable, DISCOUNT, 0.0).returns(values), expected)


def test_an_n_step_return_bootstraps_from_one_chunk_a_row() -> None:
    rewards, mask, usable, _ = random_chunks()
    weights = trace(rewards, mask, usable, DISCOUNT, 1.0).weights
    assert int((weights != 0).sum(dim=0).max()) == 1


def test_values_where_nothing_is_present_do_not_matter() -> None:
    rewards, mask, usable, values = random_chunks()
    found = trace(rewards, mask, usable, DISCOUNT, 0.7).returns(values)
    wild = 1e6 * (1 - usable)
    changed = trace(rewards + wild, mask, usable, DISCOUNT, 0.7).returns(values + wild)
    assert torch.equal(found, changed)

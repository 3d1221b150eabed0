"""The penalties of LQL: their definition as loops, zero at Q*, the direction of their gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flowrl.critics.hinges import hinges

HEADS, CHUNKS, ROWS, DISCOUNT = 2, 5, 30, 0.9


def random_chunks(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Q (M, L, B), then V, rewards, mask, usable (L, B)."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(HEADS, CHUNKS, ROWS, generator=generator)
    v, rewards = (torch.randn(CHUNKS, ROWS, generator=generator) for _ in range(2))
    mask = (torch.rand(CHUNKS, ROWS, generator=generator) < 0.85).float()
    usable = (torch.rand(CHUNKS, ROWS, generator=generator) < 0.9).float()
    for i in range(1, CHUNKS):
        usable[i] *= usable[i - 1] * mask[i - 1]
    return q, v, rewards, mask, usable


def by_hand(q: Tensor, v: Tensor, rewards: Tensor, mask: Tensor, usable: Tensor) -> tuple[float, float, int]:
    """Sums over heads and valid pairs, and the number of pairs, as the source writes them."""
    lower = upper = 0.0
    pairs = 0
    for b in range(ROWS):
        for i in range(CHUNKS):
            for j in range(i + 1, CHUNKS):
                if not usable[j, b]:
                    continue
                pairs += 1
                between = sum(DISCOUNT ** (k - i) * float(rewards[k, b]) for k in range(i, j))
                end = float(rewards[j, b] + DISCOUNT * mask[j, b] * v[j, b])
                for m in range(HEADS):
                    low = between + DISCOUNT ** (j - i) * end - float(q[m, i, b])
                    rest = (between - float(rewards[i, b])) / DISCOUNT
                    high = rest + DISCOUNT ** (j - i - 1) * float(q[m, j, b]) - float(v[i, b])
                    lower += max(low, 0.0) ** 2
                    upper += max(high, 0.0) ** 2
    return lower, upper, pairs


def test_penalties_equal_their_definition() -> None:
    parts = random_chunks()
    lower, upper, pairs = hinges(*parts, DISCOUNT)
    low, high, count = by_hand(*parts)
    assert 0 < count < ROWS * CHUNKS * (CHUNKS - 1) / 2
    assert pairs == count
    assert float(lower) == pytest.approx(low / HEADS / count, rel=1e-5)
    assert float(upper) == pytest.approx(high / HEADS / count, rel=1e-5)


def test_one_chunk_has_no_pairs_and_no_penalty() -> None:
    q, *rest = random_chunks()
    lower, upper, pairs = hinges(q[:, :1], *(part[:1] for part in rest), DISCOUNT)
    assert (float(lower), float(upper), pairs) == (0.0, 0.0, 0.0)


def test_lower_pulls_earlier_values_up_and_upper_pushes_later_ones_down() -> None:
    q, *rest = random_chunks()
    q = q.requires_grad_(True)
    lower, upper, _ = hinges(q, *rest, DISCOUNT)
    (up,) = torch.autograd.grad(lower, q, retain_graph=True)
    (down,) = torch.autograd.grad(upper, q)
    assert (up <= 0).all()
    assert (up[:, :-1] < 0).any()
    assert not up[:, -1].any()
    assert (down >= 0).all()
    assert (down[:, 1:] > 0).any()
    assert not down[:, 0].any()


def optimal_values(reward: Tensor, after: Tensor, ends: Tensor) -> Tensor:
    """Q* (S, A) of a deterministic decision process by value iteration."""
    q = torch.zeros_like(reward)
    for _ in range(400):
        q = reward + DISCOUNT * (1 - ends) * q.max(dim=1).values[after]
    return q


def test_all_penalties_are_zero_at_the_optimum_of_a_deterministic_process() -> None:
    generator = torch.Generator().manual_seed(0)
    states, actions = 7, 3
    reward = torch.randn(states, actions, generator=generator, dtype=torch.float64)
    after = torch.randint(states, (states, actions), generator=generator)
    ends = (torch.rand(states, actions, generator=generator) < 0.15).double()
    best = optimal_values(reward, after, ends)
    state = torch.randint(states, (ROWS,), generator=generator)
    usable = torch.ones(ROWS, dtype=torch.float64)
    columns: list[list[Tensor]] = [[], [], [], [], []]
    for _ in range(CHUNKS):
        action = torch.randint(actions, (ROWS,), generator=generator)
        following, mask = after[state, action], 1 - ends[state, action]
        row = (best[state, action], best.max(dim=1).values[following], reward[state, action], mask, usable)
        for column, value in zip(columns, row, strict=True):
            column.append(value)
        state, usable = following, usable * mask
    q, *rest = (torch.stack(column) for column in columns)
    lower, upper, pairs = hinges(q[None], *rest, DISCOUNT)
    assert pairs > ROWS
    assert float(lower) < 1e-20
    assert float(upper) < 1e-20
    assert float(hinges(q[None] - 1, *rest, DISCOUNT)[0]) > 0.1
    assert float(hinges(q[None] + 1, *rest, DISCOUNT)[1]) > 0.1

"""Chunk targets and losses: fixed points on a chain of states, expectiles, what a configuration refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flowrl.config.merge import load
from flowrl.critics.targets import CriticConfig, bootstrap_values, td_loss
from flowrl.critics.traces import trace
from flowrl.errors import ConfigError

DISCOUNT, CHUNK = 0.9, 3


def running(rewards: list[float], discount: float) -> float:
    return sum(discount**i * reward for i, reward in enumerate(rewards))


class Chain:
    """N states in a row; every step moves one on. State n has n steps left; reward -1 on every step.

    Rows of chunk transitions: one for each start with at least one step left. A chunk that reaches past
    the end straddles it, so that its last step is not valid.
    """

    def __init__(self, length: int, last_reward: float = -1.0, truncated: bool = False) -> None:
        self.left = torch.arange(1, length + 1)
        steps = [min(int(left), CHUNK) for left in self.left]
        rewards = [
            [last_reward if left - i == 1 else -1.0 for i in range(count)]
            for left, count in zip(self.left.tolist(), steps, strict=True)
        ]
        self.reward = torch.tensor([running(r, DISCOUNT) for r in rewards])
        ends = self.left <= CHUNK
        self.mask = torch.ones(length) if truncated else 1 - ends.float()
        self.valid = (self.left >= CHUNK).float()
        self.next = (self.left - CHUNK).clamp(min=0)

    def target(self, table: torch.Tensor, chunks: int = 1, decay: float = 1.0) -> torch.Tensor:
        """The return of every row over ``chunks`` consecutive ones, for values by steps left."""
        starts = [(self.left - i * CHUNK).clamp(min=1) - 1 for i in range(chunks)]
        rewards, mask = (torch.stack([part[s] for s in starts]) for part in (self.reward, self.mask))
        usable = torch.stack([(self.left - i * CHUNK >= CHUNK).float() for i in range(chunks)])
        values = table[torch.stack([self.next[s] for s in starts])]
        return trace(rewards, mask, usable, DISCOUNT**CHUNK, decay).returns(values)

    def solve(self, sweeps: int = 200, chunks: int = 1, decay: float = 1.0) -> torch.Tensor:
        """Tabular critic by gradient descent on `td_loss`, index = steps left."""
        table = torch.zeros(1, len(self.left) + 1, requires_grad=True)
        for _ in range(sweeps):
            target = self.target(table.detach()[0], chunks, decay)
            (slope,) = torch.autograd.grad(td_loss(table[:, self.left], target, self.valid), table)
            with torch.no_grad():
                table -= 0.5 * len(self.left) * slope
        return table.detach()[0]


def value(steps: int) -> float:
    return -(1 - DISCOUNT**steps) / (1 - DISCOUNT)


def test_chunk_td_has_the_closed_form_fixed_point_on_a_chain() -> None:
    """Starts a multiple of H from the end; others bootstrap from states that only straddling chunks reach."""
    solved = Chain(15).solve()
    for left in (3, 6, 9, 12, 15):
        assert float(solved[left]) == pytest.approx(value(left), abs=1e-4)
    assert float(solved[9]) == pytest.approx(
        -(1 - DISCOUNT**CHUNK) / (1 - DISCOUNT) + DISCOUNT**CHUNK * value(9 - CHUNK), abs=1e-4
    )


@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0])
def test_returns_over_several_chunks_have_the_same_fixed_point(decay: float) -> None:
    solved = Chain(15).solve(chunks=3, decay=decay)
    for left in (3, 6, 9, 12, 15):
        assert float(solved[left]) == pytest.approx(value(left), abs=1e-4)
    assert solved[[1, 2]].tolist() == [0.0, 0.0]


def test_longer_returns_carry_the_end_faster() -> None:
    """From zero, one sweep of n chunks is right up to n chunks from the end, and no further."""
    for chunks in (1, 2, 4):
        found = Chain(15).target(torch.zeros(16), chunks)
        right = [left for left in (3, 6, 9, 12, 15) if abs(float(found[left - 1]) - value(left)) < 1e-4]
        assert right == [3, 6, 9, 12, 15][:chunks]


def test_a_free_success_step_shortens_the_value_by_one_step() -> None:
    solved = Chain(12, last_reward=0.0).solve()
    for left in (3, 6, 9, 12):
        assert float(solved[left]) == pytest.approx(value(left - 1), abs=1e-4)


def test_straddling_chunks_have_no_weight() -> None:
    chain = Chain(9)
    solved = chain.solve()
    assert solved[[1, 2]].tolist() == [0.0, 0.0]
    values = torch.zeros(4, 9, requires_grad=True)
    (slope,) = torch.autograd.grad(td_loss(values, torch.full((9,), 1e6), chain.valid), values)
    assert not slope[:, :2].any()
    assert slope[:, 2:].all()


def test_truncation_keeps_the_bootstrap() -> None:
    """Every state equivalent (one entry of the table), the episode cut off, not ended: -1 / (1 - gamma)."""
    chain = Chain(9, truncated=True)
    for chunks in (1, 3):
        level = 0.0
        for _ in range(400):
            level = float(chain.target(torch.full((10,), level), chunks)[-1])
        assert level == pytest.approx(-1 / (1 - DISCOUNT), abs=1e-3)


def test_termination_removes_the_bootstrap_and_bounds_apply_to_it_alone() -> None:
    reward, mask, usable = torch.tensor([[-2.0, -2.0]]), torch.tensor([[0.0, 1.0]]), torch.ones(1, 2)
    returns = trace(reward, mask, usable, DISCOUNT**CHUNK, 1.0)
    heads = torch.full((4, 2), 50.0)
    for config, bootstrap in ((CriticConfig(), 50.0), (CriticConfig(target_low=-10.0, target_high=0.0), 0.0)):
        values = bootstrap_values(heads, 1, config, "min", torch.Generator())
        assert returns.returns(values).tolist() == pytest.approx([-2.0, -2.0 + DISCOUNT**CHUNK * bootstrap])


def test_bonus_is_added_after_heads_and_before_samples_are_reduced() -> None:
    """Three samples of two chunks of one row: N = 6, samples outermost."""
    heads = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]])
    bonus = torch.tensor([10.0, 0.0, 0.0, 0.0, 0.0, -10.0])
    config = CriticConfig(next_samples=3, next_reduce="median")
    found = bootstrap_values(heads, 2, config, "mean", torch.Generator(), bonus)
    assert found.tolist() == [[6.0], [3.0]]  # of 12, 4, 6 and of 3, 5, -3


def test_td_loss_is_a_mean_over_heads_and_rows() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert float(td_loss(values, torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0]))) == pytest.approx(5.0)
    assert float(td_loss(values, torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]))) == pytest.approx(2.5)


@pytest.mark.parametrize(("tau", "chance", "expected"), [(0.8, 0.5, 0.8), (0.8, 0.2, 0.5), (0.5, 0.3, 0.3)])
def test_expectile_of_a_two_point_target(tau: float, chance: float, expected: float) -> None:
    """1 with the chance p, else 0: ``tau p / (tau p + (1 - tau) (1 - p))``."""
    ones = round(10 * chance)
    target = torch.tensor([1.0] * ones + [0.0] * (10 - ones))
    q = torch.zeros(1, 1, requires_grad=True)
    for _ in range(500):
        (slope,) = torch.autograd.grad(td_loss(q.expand(1, 10), target, torch.ones(10), tau), q)
        with torch.no_grad():
            q -= 0.5 * slope
    assert float(q.detach()) == pytest.approx(expected, abs=1e-4)


def test_expectile_one_half_is_td_of_half_weight() -> None:
    values, target, weight = torch.randn(3, 20), torch.randn(20), torch.rand(20)
    half = td_loss(values, target, weight, 0.5)
    torch.testing.assert_close(half, td_loss(values, target, weight) / 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"heads": 0}, "heads is 0"),
        ({"backup_chunks": 0}, "backup_chunks is 0"),
        ({"next_samples": 0}, "next_samples is 0"),
        ({"trace": 1.1}, "from 0 to 1"),
        ({"expectile": 1.0}, "between 0 and 1"),
        ({"hinge": -1.0}, "hinge is -1"),
        ({"hinge": 1.0, "backup_chunks": 2}, "set one"),
        ({"next_reduce": "trimmed", "next_samples": 3}, "at least 4"),
        ({"head": "c51"}, "needs a range"),
        ({"head": "hl_gauss", "value_low": 1.0, "value_high": 1.0}, "needs a range"),
        ({"head": "c51", "value_low": 0.0, "value_high": 1.0, "atoms": 1}, "at least 2"),
        ({"head": "c51", "value_low": 0.0, "value_high": 1.0, "trace": 0.5}, "set trace to 1"),
        ({"head": "c51", "value_low": 0.0, "value_high": 1.0, "expectile": 0.8}, "set head to scalar"),
        ({"head": "hl_gauss", "value_low": 0.0, "value_high": 1.0, "expectile": 0.8}, "set head to scalar"),
        ({"head": "hl_gauss", "value_low": 0.0, "value_high": 1.0, "smoothing": 0.0}, "positive"),
        ({"lora_rank": 0}, "from 1 to width"),
        ({"lora_rank": 9, "width": 8}, "from 1 to width, 8"),
        ({"lora_rank": 4, "depth": 1}, "raise depth to 2"),
    ],
)
def test_what_has_no_meaning_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CriticConfig(**values)
    with pytest.raises(ConfigError, match=message):
        load(CriticConfig, values)


def test_config_builds_what_it_says() -> None:
    critic = CriticConfig(heads=4, width=8, depth=2, layer_norm=False).build(3, 2)
    assert critic(torch.randn(5, 3), torch.randn(5, 2)).shape == (4, 5)
    assert [tuple(w.shape) for w in critic.weights] == [(4, 5, 8), (4, 8, 8), (4, 8, 1)]
    assert not critic.gains

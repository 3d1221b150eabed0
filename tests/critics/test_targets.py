"""Head aggregation and chunk targets: the fixed points of chunk TD on a chain of states."""

from __future__ import annotations

import pytest
import torch

from flowrl.critics.targets import CriticConfig, aggregate, chunk_target, td_loss

HEADS = torch.tensor([[1.0], [2.0], [3.0]])
DISCOUNT, CHUNK = 0.9, 3


@pytest.mark.parametrize(("kind", "value"), [("mean", 2.0), ("min", 1.0), ("mean_minus_std", 1.5918)])
def test_heads_1_2_3_aggregate_to_known_values(kind: str, value: float) -> None:
    assert float(aggregate(HEADS, kind, 0.5)) == pytest.approx(value, abs=5e-5)  # type: ignore[arg-type]


def test_two_random_heads_have_the_expected_minimum() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = [float(aggregate(HEADS, "subsample_min2", generator=generator)) for _ in range(6000)]
    assert set(draws) == {1.0, 2.0}
    assert sum(draws) / len(draws) == pytest.approx(4 / 3, abs=0.02)


def test_two_random_heads_are_shared_over_the_batch() -> None:
    values = HEADS.expand(3, 50)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        assert len(aggregate(values, "subsample_min2", generator=generator).unique()) == 1


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

    def solve(self, sweeps: int = 200) -> torch.Tensor:
        """Tabular critic by gradient descent on `td_loss` towards `chunk_target`, index = steps left."""
        table = torch.zeros(1, len(self.left) + 1, requires_grad=True)
        for _ in range(sweeps):
            target = chunk_target(self.reward, self.mask, table.detach()[0, self.next], DISCOUNT, CHUNK)
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
    value = torch.zeros(1)
    for _ in range(400):
        value = chunk_target(
            torch.tensor([running([-1.0] * CHUNK, DISCOUNT)]), torch.ones(1), value, DISCOUNT, CHUNK
        )
    assert float(value) == pytest.approx(-1 / (1 - DISCOUNT), abs=1e-3)
    assert Chain(9, truncated=True).mask.all()


def test_termination_removes_the_bootstrap_and_bounds_apply_to_it_alone() -> None:
    reward, mask = torch.tensor([-2.0, -2.0]), torch.tensor([0.0, 1.0])
    free = chunk_target(reward, mask, torch.tensor([50.0, 50.0]), DISCOUNT, CHUNK)
    assert free.tolist() == pytest.approx([-2.0, -2.0 + DISCOUNT**CHUNK * 50])
    bounded = chunk_target(reward, mask, torch.tensor([50.0, 50.0]), DISCOUNT, CHUNK, -10, 0)
    assert bounded.tolist() == [-2.0, -2.0]


def test_td_loss_is_a_mean_over_heads_and_rows() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert float(td_loss(values, torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0]))) == pytest.approx(5.0)
    assert float(td_loss(values, torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]))) == pytest.approx(2.5)


def test_config_builds_what_it_says() -> None:
    critic = CriticConfig(heads=4, width=8, depth=2, layer_norm=False).build(3, 2)
    assert critic(torch.randn(5, 3), torch.randn(5, 2)).shape == (4, 5)
    assert [tuple(w.shape) for w in critic.weights] == [(4, 5, 8), (4, 8, 8), (4, 8, 1)]
    assert not critic.gains

"""The ring holds the newest steps and nothing else, and its batches say what may be bootstrapped."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flowrl.errors import DataError
from flowrl.scratch.replay import RingReplay
from flowrl.scratch.vector import VectorStep

COUNT, STATE, ACTION = 3, 2, 1


def ring(slots: int = 4, batch_size: int = 512, seed: int = 0, scale: float = 1.0) -> RingReplay:
    return RingReplay(slots, COUNT, STATE, ACTION, batch_size=batch_size, reward_scale=scale, seed=seed)


def numbered(i: int) -> tuple[np.ndarray, torch.Tensor, VectorStep]:
    """Step i: environment j has number 10 i + j in every array; j = 1 terminates, j = 2 is cut."""
    number = 10 * i + np.arange(COUNT, dtype=np.float32)
    state = np.repeat(number[:, None], STATE, axis=1)
    ends = [np.arange(COUNT) == j for j in (1, 2)]
    step = VectorStep(state + 0.5, -number, ends[0], ends[1], state + 100)
    return state, torch.from_numpy(number[:, None].copy()), step


def numbers(replay: RingReplay) -> set[float]:
    return set(replay.batch().observation.state[:, 0].tolist())


def test_the_ring_holds_what_a_list_would_hold() -> None:
    replay, listed = ring(slots=4), list[float]()
    with pytest.raises(DataError, match=r"empty"):
        replay.batch()
    for i in range(11):
        replay.add(*numbered(i))
        listed = (listed + [10.0 * i + j for j in range(COUNT)])[-4 * COUNT :]
        assert len(replay) == len(listed)
        # 512 draws miss one of at most 12 rows with probability below 12 (11/12)^512 < 1e-18.
        assert numbers(replay) == set(listed)


def test_the_parts_of_a_row_belong_together() -> None:
    replay = ring(scale=2.0)
    for i in range(6):
        replay.add(*numbered(i))
    batch = replay.batch()
    number = batch.observation.state[:, 0]
    assert torch.equal(batch.observation.state[:, 1], number)
    assert torch.equal(batch.action[:, 0, 0], number)
    assert torch.equal(batch.rewards[:, 0], -2 * number)
    assert torch.equal(batch.next_observation.state[:, 0], number + 0.5)
    copy = number.remainder(10)
    assert torch.equal(batch.mask[:, 0], (copy != 1).float())
    assert batch.action.shape == (512, 1, ACTION)
    assert (batch.valid == 1).all()


def test_every_row_is_drawn_equally_often() -> None:
    replay = ring(slots=4, batch_size=12_000)
    for i in range(4):
        replay.add(*numbered(i))
    counts = torch.bincount(replay.batch().row, minlength=12)
    # Chi-squared with 11 degrees of freedom exceeds 31.3 with probability 0.001.
    assert float(((counts - 1000).square() / 1000).sum()) < 31.3


def test_draws_follow_the_seed_and_resume() -> None:
    one, same, other = ring(seed=1), ring(seed=1), ring(seed=2)
    for replay in (one, same, other):
        for i in range(7):
            replay.add(*numbered(i))
    assert torch.equal(one.batch().row, same.batch().row)
    assert not torch.equal(same.batch().row, other.batch().row)
    resumed = ring(seed=9)
    resumed.load_state_dict(one.state_dict())
    for replay in (one, resumed):
        replay.add(*numbered(7))
    left, right = one.batch(), resumed.batch()
    for name in ("action", "rewards", "mask"):
        assert torch.equal(getattr(left, name), getattr(right, name))
    assert len(resumed) == 4 * COUNT


def test_a_ring_half_full_resumes() -> None:
    one, resumed = ring(), ring()
    one.add(*numbered(0))
    resumed.load_state_dict(one.state_dict())
    resumed.add(*numbered(1))
    assert numbers(resumed) == {0, 1, 2, 10, 11, 12}


def test_a_ring_of_another_size_is_refused() -> None:
    one = ring(slots=4)
    for i in range(9):
        one.add(*numbered(i))
    with pytest.raises(DataError, match=r"holds 4 steps of 3 environments; this one has room for 5 of 3"):
        ring(slots=5).load_state_dict(one.state_dict())


def test_what_a_ring_does_not_have_is_refused() -> None:
    replay = ring()
    replay.add(*numbered(0))
    with pytest.raises(DataError, match=r"one source"):
        replay.batch("successes")
    with pytest.raises(DataError, match=r"at least one slot"):
        ring(slots=0)

"""Vector environments: specs, restarts at the true end of an episode, seeds, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from flowrl.errors import DataError, UsageError
from sim import vector

pytest.importorskip("envpool")


def constant(env: vector.EnvPoolVector, value: float = 0.5) -> np.ndarray:
    return np.full((env.count, env.interface.action.size), value, np.float32)


@pytest.mark.parametrize("name", ["half_cheetah", "hopper", "h1_joystick", "humanoid"])
def test_a_task_says_what_it_does(name: str) -> None:
    env = vector.make(name, 3)
    spec = env.interface
    first = env.reset([1, 2, 3])
    assert first.shape == (3, spec.state_size)
    assert first.dtype == np.float32
    step = env.step(constant(env, 0.0))
    for part in (step.successor, step.observation, step.reward):
        assert part.dtype == np.float32
        assert np.isfinite(part).all()
    assert not (step.terminated & step.truncated).any()
    assert spec.settings["simulator"] == "envpool"
    env.close()


def test_joysticks_show_the_policys_part_of_the_observation() -> None:
    """48 values: the noisy state of the Go1, not its 123 privileged ones."""
    assert vector.make("go1_joystick", 1).interface.state_size == 48


def test_a_cut_episode_shows_its_last_state_and_restarts_at_once() -> None:
    """Episodes of 5 steps against one of 10 steps from the same seed and actions."""
    short, long = (vector.make("half_cheetah", 2, max_steps=steps) for steps in (5, 10))
    for env in (short, long):
        env.reset([7, 8])
    ends = list[int]()
    for i in range(1, 5 + 5 + 1):
        cut, whole = (env.step(constant(env)) for env in (short, long))
        if i <= 5:
            assert np.array_equal(cut.successor, whole.successor)
        if cut.truncated.all():
            ends.append(i)
            assert not np.array_equal(cut.observation, cut.successor)
            # A start: small positions, small speeds; the last state of a driven episode has large ones.
            assert np.abs(cut.observation).max() < 0.6 < np.abs(cut.successor).max()
        else:
            assert np.array_equal(cut.observation, cut.successor)
        assert not cut.terminated.any()
        assert (cut.reward != 0).all()
    assert ends == [5, 10]


def test_every_step_is_a_transition_when_copies_end_at_different_times() -> None:
    """A fallen hopper restarts alone; no step is lost, so no reward is 0 (each step alive earns about 1)."""
    env = vector.make("hopper", 8)
    env.reset(range(8))
    rng = np.random.default_rng(0)
    ended, former = 0, None
    for _ in range(150):
        step = env.step(rng.uniform(-1, 1, (8, 3)).astype(np.float32))
        ended += int(step.terminated.sum())
        if former is not None and former.any():
            # The copies that had just restarted stand near the start: height 1.25 within a step's fall.
            assert np.abs(step.successor[former, 0] - 1.25).max() < 0.02
            assert (step.reward[former] > 0.5).all()
        assert np.array_equal(step.observation[~step.ended], step.successor[~step.ended])
        former = step.ended
    assert ended > 20


def test_seeds_decide_everything_that_follows() -> None:
    env = vector.make("hopper", 2)
    runs = list[np.ndarray]()
    for seeds in ([3, 4], [3, 4], [4, 3]):
        states = [env.reset(seeds)]
        states += [env.step(constant(env)).observation for _ in range(60)]
        runs.append(np.stack(states))
    assert np.array_equal(runs[0], runs[1])
    assert np.array_equal(runs[0][:, ::-1], runs[2])


def test_actions_outside_the_bounds_are_clipped_to_them() -> None:
    env = vector.make("humanoid", 1)
    states = list[np.ndarray]()
    for value in (0.4, 3.0):
        env.reset([0])
        states.append(env.step(constant(env, value)).successor)
    assert np.array_equal(*states)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'go1_joystick'"):
        vector.make("go1_joystik", 1)
    with pytest.raises(UsageError, match=r"no setting 'steps'; its settings are max_steps, threads"):
        vector.make("hopper", 1, steps=3)
    with pytest.raises(UsageError, match=r"both must be at least 1"):
        vector.make("hopper", 0)
    env = vector.make("hopper", 2)
    with pytest.raises(UsageError, match=r"before reset"):
        env.step(constant(env))
    with pytest.raises(UsageError, match=r"2 copies, got 3 seeds"):
        env.reset([1, 2, 3])
    env.reset([1, 2])
    with pytest.raises(DataError, match=r"shape \(2, 3\), got \(3, 2\)"):
        env.step(np.zeros((3, 2), np.float32))
    with pytest.raises(DataError, match=r"not finite"):
        env.step(constant(env, np.nan))


def test_names_are_described() -> None:
    assert all("package envpool" in vector.describe(name) for name in vector.names())

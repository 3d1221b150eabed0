"""What is particular to robosuite: decimation, state access, and human demonstrations."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from flowrl.errors import DataError, SpecMismatch
from flowrl.spec import require_match
from sim.base import Observations, SimEnv
from sim.registry import make

HUMAN_LIFT = Path(__file__).parents[1] / "data" / "lift.hdf5"


@pytest.fixture(scope="module")
def lift() -> SimEnv:
    return make("lift")


@pytest.fixture(scope="module")
def benchmark_lift() -> SimEnv:
    return make("lift", decimation=1)


def human_episodes() -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    with h5py.File(HUMAN_LIFT) as file:
        data: Any = file["data"]
        return [(data[key]["states"][:], data[key]["actions"][:]) for key in sorted(data)]


def equal(left: Observations, right: Observations) -> bool:
    return all(np.array_equal(left[key], right[key]) for key in left.keys() | right.keys())


def test_decimation_is_part_of_the_spec(lift: SimEnv, benchmark_lift: SimEnv) -> None:
    assert lift.interface.settings["control_decimation"] == 5
    require_match(lift.interface, make("lift").interface, "environment", "data")
    with pytest.raises(SpecMismatch, match=r"control_decimation: 5 against 1"):
        require_match(lift.interface, benchmark_lift.interface, "environment", "data")


def test_no_decimation_means_robosuites_own_control() -> None:
    assert make("lift", decimation=None).interface.settings["control_decimation"] == 1


def test_undecimated_physics_is_robosuites_own_bit_for_bit(benchmark_lift: SimEnv) -> None:
    actions = np.random.default_rng(0).uniform(-1, 1, (8, 7)).astype(np.float32)
    benchmark_lift.reset(seed=4)
    for action in actions:
        benchmark_lift.step(action)
    ours = benchmark_lift.get_state()
    benchmark_lift.reset(seed=4)
    simulator = benchmark_lift.simulator
    for action in actions:
        simulator.step(action.astype(np.float64))
    np.testing.assert_array_equal(simulator.sim.get_state().flatten(), ours)


def test_decimation_changes_the_motion_only_slightly(lift: SimEnv, benchmark_lift: SimEnv) -> None:
    hands: list[NDArray[np.float32]] = []
    for env in (lift, benchmark_lift):
        env.reset(seed=0)
        for _ in range(10):
            observation, *_rest = env.step(np.array([0.5, 0.5, -0.5, 0, 0, 0, -1], np.float32))
        hands.append(observation["observation.state"][:3])
    gap = float(np.abs(hands[0] - hands[1]).max())
    assert 0 < gap < 0.01


def test_two_environments_and_any_history_give_the_same_episode(lift: SimEnv) -> None:
    def episode(env: SimEnv) -> tuple[Observations, NDArray[np.float64]]:
        env.reset(seed=21)
        generator = np.random.default_rng(2)
        for _ in range(20):
            observation, *_rest = env.step(generator.uniform(-1, 1, 7).astype(np.float32))
        return observation, env.get_state()

    observation, state = episode(make("lift"))
    # A history with contact, a closed gripper, a restored state and a changed global generator.
    lift.reset(seed=1)
    for _ in range(40):
        lift.step(np.array([0, 0, -1, 0.3, 0, 0, 1], np.float32))
    lift.set_state(state)
    np.random.seed(99)
    before = np.random.get_state()[1].copy()
    again, state_again = episode(lift)
    assert equal(observation, again)
    np.testing.assert_array_equal(state, state_again)
    np.testing.assert_array_equal(np.random.get_state()[1], before)


@pytest.mark.parametrize("name", ["lift", "can", "square", "transport", "handover"])
def test_set_state_recovers_the_observation_of_a_step(name: str) -> None:
    env = make(name)
    env.reset(seed=8)
    size = env.interface.action.size
    for _ in range(6):
        live, *_rest = env.step(np.full(size, 0.5, np.float32))
    state = env.get_state()
    env.reset(seed=9)
    assert equal(env.set_state(state), live)
    np.testing.assert_array_equal(env.get_state(), state)


def test_what_follows_a_restored_state_depends_on_it_alone(lift: SimEnv) -> None:
    lift.reset(seed=3)
    for _ in range(5):
        lift.step(np.array([1, 0, -1, 0, 0, 0, 1], np.float32))
    state = lift.get_state()

    def continuation() -> NDArray[np.float64]:
        lift.set_state(state)
        for _ in range(5):
            lift.step(np.array([0, 1, 0, 0, 0, 0, 1], np.float32))
        return lift.get_state()

    first = continuation()
    lift.reset(seed=77)
    lift.step(np.ones(7, np.float32))
    np.testing.assert_array_equal(continuation(), first)


def test_a_restored_state_has_a_full_step_budget() -> None:
    env = make("lift", max_steps=2)
    env.reset(seed=0)
    env.step(np.zeros(7, np.float32))
    env.set_state(env.get_state())
    assert [env.step(np.zeros(7, np.float32))[3] for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("state", "message"),
    [(np.zeros(50), r"shape \(32,\), got \(50,\)"), (np.full(32, np.nan), "non-finite")],
)
def test_a_state_that_does_not_fit_is_refused(lift: SimEnv, state: NDArray[np.float64], message: str) -> None:
    with pytest.raises(DataError, match=message):
        lift.set_state(state)


def test_human_demonstrations_end_in_success_and_start_without(benchmark_lift: SimEnv) -> None:
    episodes = human_episodes()
    assert [len(states) for states, _ in episodes] == [len(actions) for _, actions in episodes]
    assert sum(len(states) for states, _ in episodes) == 1384
    for states, _actions in episodes:
        benchmark_lift.set_state(states[0])
        assert not benchmark_lift.simulator._check_success()
        observation = benchmark_lift.set_state(states[-1])
        assert benchmark_lift.simulator._check_success()
        cube_height = observation["observation.environment_state"][2]
        # Positions start after the time; the cube's are the last seven.
        np.testing.assert_allclose(cube_height, states[-1][1:17][-5], atol=1e-6)


@pytest.mark.slow
def test_human_actions_replayed_open_loop_mostly_succeed() -> None:
    """They reach 3.75, so they are clipped; the robosuite they were recorded in was older."""
    env = make("lift", decimation=1, max_steps=600)
    successes = 0
    for states, actions in human_episodes():
        assert 1 < np.abs(actions).max() <= 3.75 + 1e-6
        env.set_state(states[0])
        # any() stops at the success, which ends the episode.
        successes += any(env.step(action.astype(np.float32))[4]["success"] for action in actions)
    assert successes >= 2


def test_making_a_robosuite_task_is_silent_and_leaves_the_environment_alone() -> None:
    code = (
        "import os\n"
        "from sim.registry import make\n"
        "make('lift').reset(seed=0)\n"
        "assert 'MUJOCO_GL' not in os.environ\n"
        "import logging\n"
        "logging.getLogger('robosuite_logs').warning('a real warning')\n"
    )
    variables = {key: value for key, value in os.environ.items() if key != "MUJOCO_GL"}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=variables
    )
    assert ran.stdout == ""
    assert "a real warning" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1, ran.stderr

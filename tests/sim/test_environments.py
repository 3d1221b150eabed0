"""Every registered environment keeps the promises of `SimEnv`."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from flowrl.errors import DataError, MissingExtra, UsageError
from sim import gymnasium_env
from sim.base import Observations, SimEnv
from sim.registry import describe, make, names

STATE_SIZES = {
    "lift": (9, 10),
    "can": (9, 14),
    "square": (9, 14),
    "transport": (18, 41),
    "handover": (18, 16),
    "cube_single": (19, 9),
    "cube_double": (19, 18),
    "scene": (19, 21),
    "puzzle_3x3": (19, 36),
    "pusht": (2, 3),
    "fetch_push": (10, 18),
    "fetch_pick_and_place": (10, 18),
    "metaworld_push": (8, 31),
}
ACTION_SIZES = {"lift": 7, "can": 7, "square": 7, "transport": 14, "handover": 14, "pusht": 2}
ACTION_SIZES |= {"cube_single": 5, "cube_double": 5, "scene": 5, "puzzle_3x3": 5}
ACTION_SIZES |= {"fetch_push": 4, "fetch_pick_and_place": 4, "metaworld_push": 4}


def random_actions(env: SimEnv, steps: int, seed: int) -> NDArray[np.float32]:
    low, high = np.asarray(env.interface.action.low), np.asarray(env.interface.action.high)
    size = (steps, env.interface.action.size)
    return np.random.default_rng(seed).uniform(low, high, size).astype(np.float32)


def roll(env: SimEnv, seed: int | None, actions: NDArray[np.float32]) -> NDArray[np.float32]:
    """All observations of an episode, flat, (L + 1, S)."""
    observation, _info = env.reset(seed=seed)
    rows = [flat(observation)]
    for action in actions:
        observation, _reward, terminated, truncated, _info = env.step(action)
        rows.append(flat(observation))
        if terminated or truncated:
            break
    return np.stack(rows)


def flat(observation: Observations) -> NDArray[np.float32]:
    return np.concatenate(list(observation.values()))


@pytest.fixture(scope="module", params=sorted(STATE_SIZES))
def env(request: pytest.FixtureRequest) -> Iterator[SimEnv]:
    made = make(request.param)
    yield made
    made.close()


def test_the_registry_has_exactly_the_tested_environments() -> None:
    assert names() == sorted(STATE_SIZES)


def test_observations_match_the_interface(env: SimEnv) -> None:
    observation, info = env.reset(seed=0)
    assert not info["success"]
    stepped, *_rest = env.step(random_actions(env, 1, 0)[0])
    for values in (observation, stepped):
        assert list(values) == [feature.name for feature in env.interface.observation]
        for feature in env.interface.observation:
            assert values[feature.name].shape == feature.shape
            assert values[feature.name].dtype == np.float32
            assert np.isfinite(values[feature.name]).all()


def test_the_interface_names_every_dimension_once(env: SimEnv) -> None:
    sizes = tuple(feature.size for feature in env.interface.observation)
    assert sizes == STATE_SIZES[env.name]
    assert env.interface.action.size == ACTION_SIZES[env.name]
    labels = [name for feature in env.interface.observation for name in feature.names]
    assert len(set(labels)) == len(labels) == env.interface.state_size
    assert all(feature.unit for feature in env.interface.observation)
    assert env.interface.chunk is None
    assert env.interface.normalisation is None
    assert {"simulator", "task"} <= set(env.interface.settings)


def test_no_dimension_is_stuck_at_zero_before_the_first_step(env: SimEnv) -> None:
    """An object's pose must be there after reset; a relative pose read too early would be all zeros."""
    observation, _info = env.reset(seed=1)
    blocks = {
        label.rsplit("_", 1)[0] for f in env.interface.observation for label in f.names if "_to_" in label
    }
    values = dict(
        zip((n for f in env.interface.observation for n in f.names), flat(observation), strict=True)
    )
    for block in blocks:
        assert any(values[name] != 0 for name in values if name.startswith(block)), block


def test_an_episode_depends_on_its_seed_and_actions_alone(env: SimEnv) -> None:
    actions = random_actions(env, 15, 7)
    first = roll(env, 11, actions)
    roll(env, 5, random_actions(env, 25, 3))
    env.reset()
    np.testing.assert_array_equal(roll(env, 11, actions), first)
    assert not np.array_equal(roll(env, 12, actions)[0], first[0])


def test_reset_without_a_seed_continues_the_generator_and_reports_the_seed(env: SimEnv) -> None:
    def starts() -> list[tuple[int, NDArray[np.float32]]]:
        env.reset(seed=3)
        pairs = [env.reset() for _ in range(2)]
        return [(info["seed"], flat(observation)) for observation, info in pairs]

    first, again = starts(), starts()
    assert [seed for seed, _ in first] == [seed for seed, _ in again]
    assert first[0][0] != first[1][0]
    seed, start = first[1]
    np.testing.assert_array_equal(flat(env.reset(seed=seed)[0]), start)


def test_gymnasiums_checker_passes(env: SimEnv) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Unbounded observations and asymmetric action ranges are advice, not rules.
        for advice in (".*infinity.*", ".*symmetric and normalized.*", ".*render.*"):
            warnings.filterwarnings("ignore", message=advice)
        check_env(env, skip_render_check=True)


def test_an_episode_is_truncated_at_the_step_limit() -> None:
    env = make("pusht", max_steps=3)
    env.reset(seed=0)
    flags = [env.step(np.array([256.0, 256.0], np.float32))[2:4] for _ in range(3)]
    assert flags == [(False, False), (False, False), (False, True)]
    with pytest.raises(UsageError, match="call reset first"):
        env.step(np.array([256.0, 256.0], np.float32))


def test_a_success_ends_the_episode_with_reward_one() -> None:
    env = make("pusht")
    env.reset(seed=0)
    simulator = env.simulator
    # The angle first: setting it moves the block's origin, because it turns about the centre of mass.
    simulator.block.angle = float(simulator.goal_pose[2])
    simulator.block.position = tuple(float(value) for value in simulator.goal_pose[:2])
    simulator.agent.position = (100.0, 100.0)
    _observation, reward, terminated, truncated, info = env.step(np.array([100.0, 100.0], np.float32))
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)


@pytest.mark.parametrize(
    ("action", "message"),
    [(np.zeros(3), r"shape \(2,\), got \(3,\)"), (np.array([np.nan, 0.0]), "not finite in target_x")],
)
def test_a_malformed_action_is_refused(action: NDArray[np.float32], message: str) -> None:
    env = make("pusht")
    env.reset(seed=0)
    with pytest.raises(DataError, match=message):
        env.step(action)


def test_actions_outside_the_bounds_are_clipped_to_them() -> None:
    env = make("lift")
    wild, clipped = np.array([[9, -9, 2, 0, 0, 0, 5]]), np.array([[1, -1, 1, 0, 0, 0, 1]])
    np.testing.assert_array_equal(
        roll(env, 0, wild.astype(np.float32)), roll(env, 0, clipped.astype(np.float32))
    )


def test_an_unknown_environment_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'square'"):
        make("sqare")


def test_an_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'decimation'"):
        make("lift", decimations=5)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("lift", {"decimation": 0}), ("cube_single", {"task_id": 6}), ("pusht", {"max_steps": 0})],
)
def test_a_setting_out_of_range_is_refused_by_name(name: str, settings: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings))):
        make(name, **settings)


def test_describe_states_package_and_defaults() -> None:
    line = describe("lift")
    assert "robosuite" in line
    assert "decimation=5" in line
    assert "max_steps=100" in line
    assert "\n" not in line


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])

    monkeypatch.setattr(gymnasium_env.importlib, "import_module", absent)
    with pytest.raises(MissingExtra, match=r"flowrl\[sim\]"):
        make("pusht")


def test_importing_the_registry_loads_no_simulator() -> None:
    code = (
        "import sys, sim.registry, sim.experts, sim.rendering; "
        "print([m for m in ('mujoco', 'robosuite', 'ogbench', 'gym_pusht', 'gymnasium_robotics', 'envpool')"
        " if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"

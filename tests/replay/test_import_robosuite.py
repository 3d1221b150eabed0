"""Importing the real human files through robosuite, and the command that does it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from flowrl.cli import import_ as command
from flowrl.cli import import_hdf5 as simulation
from flowrl.errors import DataError, FlowRLError, Interrupted, SpecMismatch, UsageError
from flowrl.policies.observation import flat_state
from flowrl.replay.importers import hdf5
from flowrl.replay.importers.hdf5 import ImportOptions, import_hdf5
from flowrl.replay.importers.recording import facts_of
from flowrl.replay.importers.target import Target
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import Outcome
from flowrl.replay.verify import verify

pytest.importorskip("robosuite")

DATA = Path(__file__).parents[1] / "data"
LIFT, HANDOVER = DATA / "lift.hdf5", DATA / "handover.hdf5"


@pytest.fixture(scope="module")
def env() -> Iterator[Any]:
    from sim import registry

    made = registry.make("lift", decimation=None, max_steps=1000)
    yield made
    made.close()


@pytest.fixture(scope="module")
def target(env: Any) -> Target:
    replayer = simulation.EnvironmentReplayer(env)
    return Target("lift", env.interface, replayer, facts_of(simulation._arguments(env)))


@pytest.fixture(scope="module")
def lift(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A replay with the human Lift file, clipped."""
    replay = tmp_path_factory.mktemp("import") / "lift"
    report = import_hdf5(LIFT, replay, "human", target, ImportOptions(actions="clip"))
    assert report.warnings == (), "robosuite 1.4's controller is the registry's"
    return replay


def recorded(name: str, key: str) -> np.ndarray:
    with h5py.File(LIFT) as file:
        return file[f"data/{name}/{key}"][()]


def test_counts_match_the_file_and_all_demonstrations_succeed(lift: Path) -> None:
    reader = ReplayReader(lift)
    assert (reader.episodes, reader.rows) == (3, 1384)
    for index, name in enumerate(("demo_1", "demo_2", "demo_3")):
        episode = reader.episode(index)
        assert len(episode.action) == len(recorded(name, "actions"))
        assert episode.outcome is Outcome.SUCCESS
        # People held still for ten steps after the environment called it solved.
        assert int(episode.reward.argmax()) == len(episode.action) - 12
        assert episode.reward.sum() == 1
        np.testing.assert_array_equal(
            episode.action, recorded(name, "actions").astype(np.float32).clip(-1, 1)
        )
    assert verify(lift).ok


def test_all_final_states_are_successful(env: Any) -> None:
    replayer = simulation.EnvironmentReplayer(env)
    for name in ("demo_1", "demo_2", "demo_3"):
        replayer.set_state(recorded(name, "states")[-1])
        assert replayer.success(), name


def test_a_row_is_what_the_environment_shows_in_its_state(lift: Path, env: Any) -> None:
    episode = ReplayReader(lift).episode(1)
    states = recorded("demo_2", "states")
    for row in range(0, len(states), 50):
        np.testing.assert_array_equal(
            episode.state[row], flat_state(env.interface, env.set_state(states[row]))
        )


def test_refuse_lists_the_dimensions_with_their_extremes(target: Target, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        import_hdf5(LIFT, tmp_path / "r", "human", target)
    message = str(caught.value)
    assert "3 of 7 action dimensions" in message
    for axis in "xyz":
        assert re.search(rf"eef_delta_{axis} +-3.75 .. 3.75, allowed -1 .. 1, \d.\d% of steps", message)
    assert "eef_delta_rx" not in message
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_two_of_three_replay_open_loop(lift: Path, env: Any) -> None:
    reader = ReplayReader(lift)
    successes = 0
    for index, name in enumerate(("demo_1", "demo_2", "demo_3")):
        env.set_state(recorded(name, "states")[0])
        for action in reader.episode(index).action:
            if env.step(action)[2]:
                successes += 1
                break
    assert successes == 2


def test_another_task_is_refused_before_anything_is_written(target: Target, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="actions have 14 dimensions, environment 'lift' has 7"):
        import_hdf5(HANDOVER, tmp_path / "r", "human", target)
    renamed = tmp_path / "other.hdf5"
    renamed.write_bytes(LIFT.read_bytes())
    with h5py.File(renamed, "a") as file:
        file["data"].attrs["env_info"] = file["data"].attrs["env_info"].replace("Lift", "Stack")
    with pytest.raises(SpecMismatch, match="recorded in 'Stack', environment 'lift' is 'Lift'"):
        import_hdf5(renamed, tmp_path / "r", "human", target, ImportOptions(actions="clip"))
    assert not (tmp_path / "r").exists()


def test_robomimic_observations_of_real_states_need_no_simulator(
    target: Target, env: Any, tmp_path: Path
) -> None:
    states, actions = recorded("demo_3", "states")[-30:], recorded("demo_3", "actions")[-30:].clip(-1, 1)
    seen = [env.set_state(state) for state in states]
    robot = np.stack([each["observation.state"] for each in seen])
    solved = [simulation.EnvironmentReplayer(env).success() for state in states if env.set_state(state)]
    source = tmp_path / "low_dim.hdf5"
    with h5py.File(source, "w") as file:
        demo = file.create_group("data/demo_0")
        file["data"].attrs["env_args"] = '{"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20}}'
        for key, span in (
            ("robot0_eef_pos", slice(0, 3)),
            ("robot0_eef_quat", slice(3, 7)),
            ("robot0_gripper_qpos", slice(7, 9)),
        ):
            demo[f"obs/{key}"] = robot[:, span]
        demo["obs/object"] = np.stack([each["observation.environment_state"] for each in seen])
        demo["obs/robot0_joint_pos"] = states[:, 1:8]
        demo["actions"], demo["states"] = actions, states
        demo["rewards"] = np.array([*solved[1:], solved[-1]], float)
    simulated = import_hdf5(source, tmp_path / "a", "human", target, ImportOptions(observations="states"))
    alone = Target("lift", env.interface)
    read = import_hdf5(source, tmp_path / "b", "human", alone)
    assert (simulated.observations, read.observations) == ("states", "file")
    assert (simulated.successes, read.successes) == (1, 1)
    assert import_hdf5(source, tmp_path / "c", "human", target).observations == "file", "they agree"
    assert [d.what for d in read.dropped] == ["observation robot0_joint_pos"]
    with_sim, without = (ReplayReader(tmp_path / name).episode(0) for name in "ab")
    np.testing.assert_array_equal(with_sim.state, without.state)
    np.testing.assert_array_equal(with_sim.reward, without.reward)


# The command.


def invoke(*arguments: object) -> tuple[int, str]:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    command.register(app)
    result = CliRunner().invoke(app, ["import", *map(str, arguments)], env={"COLUMNS": "160"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture
def prepared(target: Target, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The command gets the module's environment; returns what it asked for."""
    asked: list[tuple[str, dict[str, Any]]] = []

    def make(name: str, settings: dict[str, Any]) -> Target:
        asked.append((name, settings))
        return target

    monkeypatch.setattr(simulation, "make_target", make)
    return asked


def test_the_command_imports_and_shows_what_it_did(
    prepared: list[tuple[str, dict[str, Any]]], tmp_path: Path
) -> None:
    options = ("--set", "decimation=none", "--set", "max_steps=300", "--actions", "clip", "--limit", 1)
    code, output = invoke(LIFT, "--to", tmp_path / "r", *options, "--until-success")
    assert code == 0
    assert prepared == [("lift", {"decimation": None, "max_steps": 300})], "named by the file"
    for word in (
        "demo_1: 471 steps, success",
        "eef_delta_x",
        "3.75",
        "--until-success",
        "flowrl replay info",
    ):
        assert word in output
    assert ReplayReader(tmp_path / "r").streams.keys() == {"lift"}


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((HANDOVER, "--env", "lift"), UsageError, "'TwoArmHandover', not in --env lift; use --env handover"),
        ((LIFT, "--env", "can"), UsageError, "'Lift', not in --env can; use --env lift"),
        ((LIFT, "--env", "lifft"), UsageError, "unknown environment 'lifft'; did you mean 'lift'"),
        ((LIFT, "--set", "decimation"), UsageError, "expected key=value"),
        ((DATA / "sqam.npz",), UsageError, "sqam.npz is not an HDF5 file.*Supported are"),
    ],
)
def test_the_command_refuses_before_it_builds_anything(
    arguments: tuple[object, ...], error: type[FlowRLError], match: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=match):
        invoke(*arguments, "--to", tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_task_that_is_no_environment_is_named_with_those_that_are(tmp_path: Path) -> None:
    source = tmp_path / "wipe.hdf5"
    with h5py.File(source, "w") as file:
        file["data/demo_0/actions"] = np.zeros((2, 6))
        file["data"].attrs["env"] = "Wipe"
    with pytest.raises(UsageError, match=r"'Wipe', which is not among .*lift \(robosuite Lift\)"):
        invoke(source, "--to", tmp_path / "r")


def test_an_interrupt_says_that_nothing_was_left(
    prepared: list[tuple[str, dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hdf5, "replay_states", interrupt)
    with pytest.raises(Interrupted, match=r"nothing of lift\.hdf5 was left"):
        invoke(LIFT, "--to", tmp_path / "r", "--actions", "clip")
    assert not (tmp_path / "r").exists()

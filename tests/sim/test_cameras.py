"""Cameras of simulated tasks: frames by name, part of the observation, recorded as the policy saw them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flowrl.errors import UsageError
from flowrl.replay.frames import FrameCodec
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import Kind, Outcome, OutcomeBy, Step
from flowrl.replay.writer import StreamWriter
from sim.base import SimEnv, Views
from sim.experts import expert_for, run_expert
from sim.registry import make
from tests.sim.test_rendering import needs_a_backend

FRONT, WRIST = "observation.images.agentview", "observation.images.robot0_eye_in_hand"


@pytest.fixture(scope="module")
def lift() -> Iterator[SimEnv]:
    env = make("lift", cameras="agentview, robot0_eye_in_hand", image_size=32, object_state=False)
    yield env
    env.close()


def test_settings_become_features_by_name(lift: SimEnv) -> None:
    assert [(feature.name, feature.shape, feature.dtype) for feature in lift.interface.observation] == [
        ("observation.state", (9,), "float32"),
        (FRONT, (3, 32, 32), "uint8"),
        (WRIST, (3, 32, 32), "uint8"),
    ]
    assert "shadows" not in lift.interface.settings
    assert lift.instruction == "lift the cube"
    assert Views(True, ("a",)).settings() == {"shadows": True}


@needs_a_backend
def test_an_observation_holds_what_each_camera_sees(lift: SimEnv) -> None:
    observation, _ = lift.reset(seed=3)
    assert set(observation) == {feature.name for feature in lift.interface.observation}
    assert all(observation[name].flags.c_contiguous for name in (FRONT, WRIST))
    for name, camera in ((FRONT, "agentview"), (WRIST, "robot0_eye_in_hand")):
        drawn = lift.render_frame(32, 32, camera).transpose(2, 0, 1)
        assert (observation[name] == drawn).all()
    assert (observation[FRONT] != observation[WRIST]).any()
    again, _ = lift.reset(seed=3)
    assert all((again[name] == observation[name]).all() for name in observation)
    moved = lift.step(np.array([0, 0, -1, 0, 0, 0, -1], np.float32))[0]
    assert (moved[FRONT] != observation[FRONT]).any()
    assert lift.observation_space.contains(moved)


@needs_a_backend
def test_a_recorded_state_shows_the_recorded_frames(lift: SimEnv) -> None:
    observation, _ = lift.reset(seed=4)
    state = lift.get_state()
    lift.reset(seed=5)
    again = lift.set_state(state)
    assert np.abs(again[FRONT].astype(int) - observation[FRONT]).mean() < 1


@needs_a_backend
def test_an_expert_sees_the_objects_that_the_policy_does_not(lift: SimEnv) -> None:
    demonstration = run_expert(lift, expert_for("lift"), 0.0, 1, np.random.default_rng(0))
    assert demonstration.success
    assert set(demonstration.observations[0]) == {"observation.state", FRONT, WRIST}


@needs_a_backend
def test_frames_go_through_the_replay(lift: SimEnv, tmp_path: Path) -> None:
    observation, _ = lift.reset(seed=6)
    codec = FrameCodec("png")
    with StreamWriter.create(tmp_path, "w0", lift.interface, Kind.POLICY, codec=codec) as writer:
        writer.begin_episode()
        writer.append(Step(observation, np.zeros(7, np.float32), 0.0))
        writer.close_episode(Outcome.UNKNOWN, OutcomeBy.NONE, observation)
    frames = ReplayReader(tmp_path).frames
    for name in (FRONT, WRIST):
        assert (frames.pixels(name, [0]).numpy()[0] == observation[name]).all()


@needs_a_backend
def test_an_unknown_camera_is_named_when_an_episode_starts() -> None:
    env = make("lift", cameras="agentvieww")
    with pytest.raises(UsageError, match=r"no camera 'agentvieww'; did you mean 'agentview'"):
        env.reset(seed=0)
    env.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cameras": "agentview,agentview"}, "name each of them once"),
        ({"cameras": "agentview", "image_size": 0}, "at least 1 pixel"),
    ],
)
def test_views_that_make_no_sense_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make("lift", **settings)

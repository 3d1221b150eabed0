"""Policies that see, valued from logged frames: the right frame at each row, few at a time, known values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from flowrl.acting import Actor
from flowrl.ope import observations
from flowrl.ope.data import EpisodeSubset, LoggedData, split
from flowrl.ope.fqe import FQE, FQEConfig
from flowrl.ope.wpdis import Decisions
from flowrl.policies.image_transformer import FlowImageTransformer
from flowrl.policies.interface import ChunkPolicy, Context
from flowrl.policies.observation import Observation
from flowrl.replay.frames import FrameCodec
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import Kind, Outcome, OutcomeBy, Step
from flowrl.replay.writer import StreamWriter
from flowrl.spec import Feature, Spec
from tests.helpers import identity_spec
from tests.replay.streams import ONLY_BY_HAND

CAMERA = Feature("observation.images.front", (3, 8, 8), "uint8")
STEPS, DISCOUNT = 2, 0.9


def seeing_spec() -> Spec:
    spec = identity_spec(1, 1, 1)
    return replace(spec, observation=(*spec.observation, CAMERA))


class Looking(ChunkPolicy):
    """Actions ``gain * b + noise / 10`` where b is 1 for a bright frame, -1 for a dark one.

    Features are b and the state; F = 2.
    """

    kind = "looking"

    def __init__(self, gain: float) -> None:
        super().__init__(seeing_spec())
        self.gain = gain
        self.largest = 0

    def encode(self, observation: Observation) -> Context:
        frames = observation.images[CAMERA.name]
        self.largest = max(self.largest, len(frames))
        bright = (frames.float().mean(dim=(1, 2, 3)) > 127).float()[:, None] * 2 - 1
        return Context(torch.cat([bright, self.normalised_state(observation.state)], dim=1))

    def sample(self, context: Context, noise: Tensor) -> Tensor:
        return self.gain * context.features[:, :1] + 0.1 * noise

    @property
    def feature_size(self) -> int:
        return 2

    def config(self) -> dict[str, Any]:
        return {"gain": self.gain}


def observation(bright: bool, step: int) -> dict[str, NDArray[Any]]:
    frame = np.full(CAMERA.shape, 200 if bright else 50, np.uint8)
    return {"observation.state": np.full(1, step, np.float32), CAMERA.name: frame}


def write(replay: Path, episodes: int) -> None:
    """Two steps, each bright or dark by chance; the reward is the action's sign times b of its frame, if 1.

    States are the step's number, so that without the right frame a policy's action says nothing about the reward.
    """
    random = np.random.default_rng(0)
    spec, codec = seeing_spec().interface(), FrameCodec("png")
    with StreamWriter.create(replay, "worker-0", spec, Kind.POLICY, ONLY_BY_HAND, codec) as writer:
        for episode in range(episodes):
            writer.begin_episode(seed=episode, task=f"task {episode}")
            for step in range(STEPS):
                bright, action = random.random() < 0.5, random.uniform(-1, 1, 1).astype(np.float32)
                reward = float((action[0] > 0) == bright)
                done = step == STEPS - 1
                writer.append(
                    Step(observation(bright, step), action, reward, terminated=done, policy_version=0)
                )
            writer.close_episode(Outcome.UNKNOWN, OutcomeBy.NONE, observation(random.random() < 0.5, STEPS))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> LoggedData:
    replay = tmp_path_factory.mktemp("seen")
    write(replay, 300)
    return split(ReplayReader(replay), 0.2, DISCOUNT, "raw", 0)


def test_blocks_hold_the_frames_states_and_tasks_of_their_rows(
    data: LoggedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, reader = data.held_out, data.held_out.observations(np.zeros(1, np.int64)).reader
    rows = np.array([3, -1, 0, -4, 7])
    monkeypatch.setattr(observations, "FRAME_BYTES", 2 * CAMERA.size + 1)
    blocks = list(part.observations(rows).blocks())
    assert [len(block) for block in blocks] == [2, 2, 1]
    places = part.observations(rows).rows
    frames = torch.cat([block.images[CAMERA.name] for block in blocks])
    assert torch.equal(frames, reader.frames.pixels(CAMERA.name, places))
    tasks = [task for block in blocks for task in block.tasks]
    assert tasks == [part.tasks[episode] for episode in (1, 0, 0, 3, 3)]
    states = torch.cat([block.state for block in blocks])
    assert states[:, 0].tolist() == [1, 2, 0, 2, 1]


def test_values_of_policies_that_look_are_known(data: LoggedData) -> None:
    """A policy that follows the frame earns 1 at each of two steps, 1.9; one that acts against it nothing.

    Blind to frames both would earn half. The fits are short: 0.15 of the range of 1.9 is allowed.
    """
    config = FQEConfig(updates=250, seeds=1, batch_size=64, width=32)
    policies = Looking(0.5), Looking(-0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observations, "FRAME_BYTES", 50 * CAMERA.size)
        found = [FQE(Actor(policy), data, config).run() for policy in policies]
    assert [values.estimate for values in found] == pytest.approx([1 + DISCOUNT, 0.0], abs=0.15 * 1.9)
    assert all(policy.largest == 50 for policy in policies)
    assert found[0].td_error < data.returns().std()


def test_densities_of_a_flow_that_sees_do_not_depend_on_the_blocks(
    data: LoggedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    policy = FlowImageTransformer(seeing_spec(), width=8, depth=1, queries=1, vision_depth=0, flow_steps=2)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    reader = data.held_out.observations(np.zeros(1, np.int64)).reader
    decisions = Decisions.of(EpisodeSubset(reader, np.arange(6), reader.reward), 1, DISCOUNT)
    whole = decisions.densities(policy)
    assert whole.log_prob.shape == (6 * STEPS,)
    assert whole.missing == 0
    frames = torch.cat([block.images[CAMERA.name] for block in decisions.observations.blocks()])
    dark = frames.flatten(1).float().mean(dim=1) < 127
    assert 0 < int(dark.sum()) < len(dark)
    monkeypatch.setattr(observations, "FRAME_BYTES", CAMERA.size)
    torch.testing.assert_close(decisions.densities(policy).log_prob, whole.log_prob)

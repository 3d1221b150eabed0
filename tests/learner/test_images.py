"""A run of a policy that sees: frames from environment to replay to learner, resumable to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl.errors import Interrupted, SpecMismatch
from flowrl.learner.config import RunConfig
from flowrl.learner.drivers import Simulation
from flowrl.learner.loop import create_run, finetune
from flowrl.learner.pretraining import clone
from flowrl.learner.run import Run
from flowrl.policies.io import load_policy
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import Kind, Outcome, OutcomeBy, Source, Step
from flowrl.replay.verify import verify
from flowrl.replay.writer import StreamWriter
from tests.learner.conftest import settings, weights
from tests.learner.test_interleaved import assert_equal, interrupt_at
from tests.reach import ReachEnv, SeeingReachEnv, expert_action

POLICY = {
    "kind": "flow_image_transformer",
    "width": 16,
    "depth": 1,
    "queries": 2,
    "vision_depth": 1,
    "shift": 1,
    "flow_steps": 3,
}
SEEING = Simulation(make=SeeingReachEnv, command=(), description={"name": "reach", "settings": {}})


def seeing(**changes: object) -> RunConfig:
    small = {"policy": POLICY, "pretrain": {"steps": 20, "batch_size": 16}, "budget": {"updates": 12}}
    return settings(**{**small, **changes})


@pytest.fixture(scope="module")
def prepared_with_frames(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root, env = tmp_path_factory.mktemp("seeing"), SeeingReachEnv()
    with StreamWriter.create(root / "replay", "demonstrations", env.interface, Kind.DEMONSTRATION) as writer:
        for seed in range(3):
            observation, _ = env.reset(seed=seed)
            writer.begin_episode(seed=seed, task=env.instruction)
            ended = False
            while not ended:
                before, action = observation, expert_action(env.position)
                observation, reward, terminated, truncated, _ = env.step(action)
                ended = terminated or truncated
                writer.append(Step(before, action, reward, terminated, truncated, source=Source.SCRIPTED))
            writer.close_episode(Outcome.SUCCESS, OutcomeBy.ENVIRONMENT, observation)
    clone(seeing(), root / "replay", root / "base")
    return root / "replay", root / "base"


def new_run(prepared: tuple[Path, Path], config: RunConfig, runs: Path) -> Run:
    replay, base = prepared
    return create_run(config, runs, base, [replay / "demonstrations"])


def test_frames_reach_the_learner_and_a_resume_is_bit_equal(
    prepared_with_frames: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = seeing(checkpoint_every=4)
    whole = new_run(prepared_with_frames, config, tmp_path)
    result = finetune(whole, config, SEEING)
    assert result.updates == 12
    assert result.changed
    assert verify(whole.replay).ok
    reader = ReplayReader(whole.replay)
    assert "worker-0" in reader.streams
    assert reader.frames.cached_bytes > 0
    assert set(reader.tasks) == {"reach the goal"}

    halted = new_run(prepared_with_frames, config, tmp_path)
    interrupt_at(monkeypatch, 7)
    with pytest.raises(Interrupted, match="resume"):
        finetune(halted, config, SEEING)
    monkeypatch.undo()
    finetune(halted, config, SEEING)
    assert_equal(weights(halted), weights(whole))


def test_by_default_fine_tuning_leaves_the_encoder(
    prepared_with_frames: tuple[Path, Path], tmp_path: Path
) -> None:
    for what, same in (("expert", True), ("all", False)):
        config = seeing(trainable=what, warm_up={"env_steps": 30, "updates": 2}, budget={"updates": 3})
        run = new_run(prepared_with_frames, config, tmp_path)
        finetune(run, config, SEEING)
        base, tuned = load_policy(run.base).state_dict(), load_policy(run.policy).state_dict()
        vision = [name for name in base if name.startswith("vision.")]
        assert all(bool((base[name] == tuned[name]).all()) for name in vision) is same
        assert any(not bool((base[name] == tuned[name]).all()) for name in base if name not in vision)


def test_an_environment_without_the_camera_is_refused_by_its_name(
    prepared_with_frames: tuple[Path, Path], tmp_path: Path
) -> None:
    run = new_run(prepared_with_frames, seeing(), tmp_path)
    blind = Simulation(make=ReachEnv, command=(), description={"name": "reach", "settings": {}})
    with pytest.raises(SpecMismatch, match=r"observation\.images\.top"):
        finetune(run, seeing(), blind)

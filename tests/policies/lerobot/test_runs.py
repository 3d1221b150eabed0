"""A run from a LeRobot checkpoint that sees and is told what to do, on the reach task with a camera."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("lerobot")

import torch

from flowrl.cli.adopt import training_memory
from flowrl.errors import ResourceError, SpecMismatch
from flowrl.learner.config import RunConfig
from flowrl.learner.loop import create_run, finetune
from flowrl.policies.io import load_flow_policy, save_policy
from flowrl.policies.lerobot import memory
from flowrl.policies.lerobot.adopt import adopt
from flowrl.policies.lerobot.config import AdoptConfig
from flowrl.policies.observation import stack
from flowrl.preflight import check
from flowrl.replay.reader import ReplayReader
from flowrl.spec import Spec
from tests.learner.conftest import settings
from tests.learner.test_images import SEEING
from tests.learner.test_images import prepared_with_frames as prepared_with_frames
from tests.policies.lerobot import backbones
from tests.policies.lerobot.tiny import CASES, Case, Lerobot, noise, write
from tests.reach import SeeingReachEnv

TOP = "observation.images.top"


class Reaching(Case):
    """A policy for the reach task."""

    @property
    def interface(self) -> Spec:
        return SeeingReachEnv.interface


CASE = Reaching("smolvla", {**CASES["smolvla"].settings, "n_action_steps": 3}, (TOP,), frame=(16, 16))


@pytest.fixture(scope="module")
def smolvla(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("reaching")
    places = {"clip": backbones.clip(place), "smolvlm": backbones.smolvlm(place)}
    write(CASE, place / "smolvla", places)
    return place / "smolvla"


def config(**changes: object) -> RunConfig:
    small: dict[str, object] = {
        "budget": {"updates": 4},
        "warm_up": {"env_steps": 20, "updates": 2},
        "sampling": {"batch_size": 8},
        "evaluation": {"episodes": 1, "periodic_episodes": 0},
        "checkpoint_every": 2,
    }
    return settings(**{**small, **changes})


QF3 = {"kind": "qf3", "critic": {"heads": 2, "width": 16, "depth": 1}, "evaluate_by": "ode"}


@pytest.mark.parametrize(
    "changes", [{}, {"algorithm": QF3}, {"trainable": "lora", "precision": "bfloat16"}], ids=str
)
def test_smolvla_goes_the_way_of_every_policy(
    changes: dict[str, object],
    smolvla: Path,
    prepared_with_frames: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    """Adopt, check, fine-tune; the tuned directory acts the same here and in LeRobot alone."""
    replay, _ = prepared_with_frames
    policy = adopt(f"lerobot:{smolvla}", SeeingReachEnv.interface, AdoptConfig(flow_steps=2))
    assert not check(policy, ReplayReader(replay), SeeingReachEnv.interface).at("error")
    save_policy(policy, tmp_path / "base")
    chosen = config(**changes)
    run = create_run(chosen, tmp_path / "runs", tmp_path / "base", [replay / "demonstrations"])
    assert finetune(run, chosen, SEEING).changed

    tuned, alone = load_flow_policy(run.policy), Lerobot.read(CASE, run.policy)
    env = SeeingReachEnv()
    seen = stack(env.interface, [env.reset(seed=seed)[0] for seed in range(3)], [env.instruction] * 3)
    drawn = noise(CASE)
    with torch.no_grad():
        ours = tuned.raw_action(tuned.sample(tuned.encode(seen), drawn))
    theirs = alone.actions(seen, drawn.view(3, -1, CASE.padded))[:, :3]
    assert torch.allclose(ours, theirs.clamp(-1, 1), atol=1e-5)
    encoder = [n for n in tuned.state_dict() if n.startswith("native.model.vlm_with_expert.vlm.")]
    base = load_flow_policy(run.base).state_dict()
    assert all(torch.equal(base[name], tuned.state_dict()[name]) for name in encoder)


@pytest.mark.parametrize("trainable", ["all", "expert", "lora", "head"])
def test_a_device_that_is_too_small_is_named_before_anything_is_loaded(
    trainable: str, smolvla: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = config(trainable=trainable)
    needed = training_memory(smolvla, chosen)
    assert needed is not None
    policy = adopt(str(smolvla), SeeingReachEnv.interface)
    if trainable == "lora":
        policy.add_lora(chosen.lora)
    policy.train_only(trainable)  # type: ignore[arg-type]
    learning = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    never = sum(p.numel() for part in policy.never_trained for p in part.parameters())
    assert needed.trained == learning + (never if trainable == "all" else 0)
    monkeypatch.setattr(memory, "free_memory", lambda device: needed.total - 1)
    with pytest.raises(ResourceError, match=r"cpu has 0\.\d+ GB free, training needs more: .* parameters"):
        training_memory(smolvla, chosen)


def test_a_swapped_camera_is_refused_by_name_and_a_renamed_one_is_taken(smolvla: Path) -> None:
    spec = SeeingReachEnv.interface
    other = replace(
        spec, observation=(spec.observation[0], replace(spec.observation[1], name="observation.images.side"))
    )
    with pytest.raises(SpecMismatch, match=rf"camera '{TOP}' is missing; the spec has .*side.*rename"):
        adopt(str(smolvla), other)
    renamed = adopt(str(smolvla), other, AdoptConfig(rename={"observation.images.side": TOP}))
    assert "observation.images.side" in renamed.inputs

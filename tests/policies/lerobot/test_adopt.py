"""What may be changed when a checkpoint is taken over, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lerobot")

import safetensors.torch
import torch

from flowrl.errors import CheckpointError, ConfigError, DataError, SpecMismatch, UsageError
from flowrl.policies.io import create_policy
from flowrl.policies.lerobot.adopt import adopt, fresh
from flowrl.policies.lerobot.config import AdoptConfig
from flowrl.spec import Chunking, Feature, Spec
from tests.policies.lerobot.conftest import Adopted, Checkpoints
from tests.policies.lerobot.tiny import (
    CASES,
    FRONT,
    HORIZON,
    STATE,
    VLAS,
    WRIST,
    noise,
    observation,
    statistics,
)

TOP = "observation.images.top"
BEFORE = "policy_preprocessor.json"


def with_features(name: str, change: Callable[[Feature], Feature | None]) -> Spec:
    """A case's interface, every feature changed or left out."""
    interface = CASES[name].interface
    changed = tuple(after for f in interface.observation if (after := change(f)) is not None)
    return replace(interface, observation=changed)


def renamed(feature: Feature) -> Feature:
    return replace(feature, name=TOP) if feature.name == FRONT else feature


@pytest.fixture
def copied(checkpoint: Checkpoints, tmp_path: Path) -> Checkpoints:
    """A copy of a case's checkpoint, to be damaged."""

    def made(name: str) -> Path:
        return Path(shutil.copytree(checkpoint(name), tmp_path / name))

    return made


def edit(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def steps_of(path: Path, kind: str) -> dict[str, Any]:
    return next(step for step in json.loads(path.read_text())["steps"] if step["registry_name"] == kind)


# What may be changed


def test_a_feature_renamed_is_the_same_feature(checkpoint: Checkpoints, adopted: Adopted) -> None:
    policy = adopt(
        str(checkpoint("smolvla")), with_features("smolvla", renamed), AdoptConfig(rename={TOP: FRONT})
    )
    seen = observation(CASES["smolvla"])
    elsewhere = replace(seen, images={TOP: seen.images[FRONT], WRIST: seen.images[WRIST]})
    expected = adopted("smolvla")
    x, t = noise(CASES["smolvla"]), torch.full((3, 1), 0.25)
    with torch.no_grad():
        velocities = [p.velocity(p.encode(o), x, t) for p, o in ((policy, elsewhere), (expected, seen))]
    assert torch.equal(*velocities)


@pytest.mark.parametrize("name", VLAS)
def test_a_camera_left_out_is_as_one_that_lerobot_misses(
    name: str, checkpoint: Checkpoints, alone: Any
) -> None:
    """A camera that is missing in LeRobot's batch is either left out or masked."""
    one = with_features(name, lambda f: None if f.name == WRIST else f)
    policy = adopt(str(checkpoint(name)), one, AdoptConfig(without=[WRIST]))
    case, lerobot = CASES[name], alone(name)
    batch = lerobot.batch(observation(case))
    del batch[WRIST]
    start = noise(case)
    with torch.no_grad():
        found = policy.sample(policy.encode(observation(case)), start).view(-1, HORIZON, case.padded)
        expected = lerobot.native.predict_action_chunk(batch, noise=start.view_as(found))
    assert torch.allclose(found[..., :2], expected, atol=1e-5)


@pytest.mark.parametrize("name", ["diffusion_states_past", "dit_flow_past", "smolvla", "pi05"])
def test_steps_and_chunk_can_be_chosen(name: str, checkpoint: Checkpoints) -> None:
    settings = AdoptConfig(flow_steps=2, chunk=3, executed=2)
    policy = adopt(str(checkpoint(name)), CASES[name].interface, settings)
    past = CASES[name].past
    assert policy.chunk == Chunking(3, 2, past, HORIZON - 3 - past)
    assert policy.flow_steps == 2
    stored = json.loads(policy.companions()["config.json"])
    assert stored["n_action_steps"] == 3
    assert stored[policy.steps_field] == 2


def test_a_fresh_policy_takes_lerobots_settings() -> None:
    case = CASES["diffusion_states"]
    policy = fresh("diffusion", case.interface, case.settings, statistics(case), executed=2)
    assert policy.chunk == Chunking(4, 2, 0, 4)
    context = policy.encode(observation(case))
    assert policy.sample(context, noise(case)).shape == (3, policy.flat_size)
    with pytest.raises(ConfigError, match=r"LeRobot's diffusion does not accept these settings"):
        fresh("diffusion", case.interface, {"wings": 2}, statistics(case))


def test_pi0s_weights_become_float32(copied: Checkpoints) -> None:
    """Also from a file that names them as openpi does, without the embedding that is the output layer's twin."""
    place = copied("pi0")
    weights = safetensors.torch.load_file(place / "model.safetensors")
    head = "paligemma_with_expert.paligemma.lm_head.weight"
    embedding = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
    older = {name.removeprefix("model."): value.bfloat16() for name, value in weights.items()}
    del older[embedding]
    safetensors.torch.save_file(older, place / "model.safetensors")
    edit(place / "config.json", lambda content: content.update(dtype="bfloat16", gradient_checkpointing=True))
    policy = adopt(str(place), CASES["pi0"].interface)
    state = policy.native.state_dict()
    assert all(value.dtype == torch.float32 for value in policy.parameters())
    assert torch.equal(state[f"model.{embedding}"], older[head].float())
    assert json.loads(policy.companions()["config.json"])["dtype"] == "float32"


# What is refused


def test_a_missing_camera_is_named_with_what_there_is(checkpoint: Checkpoints) -> None:
    message = (
        r"camera 'observation.images.front' is missing; the spec has observation.images.top, "
        r"observation.images.wrist; if .*rename"
    )
    with pytest.raises(SpecMismatch, match=message):
        adopt(str(checkpoint("smolvla")), with_features("smolvla", renamed))


def test_another_size_of_state_or_frame_is_refused(checkpoint: Checkpoints) -> None:
    def swapped(feature: Feature) -> Feature:
        sizes = {"observation.state": (3,), "observation.environment_state": (STATE,), FRONT: (3, 36, 40)}
        return replace(feature, shape=sizes[feature.name])

    with pytest.raises(
        SpecMismatch, match=r"(?s)'observation.state' has shape \(3,\).*\(4,\).*environment_state"
    ):
        adopt(str(checkpoint("diffusion_states")), with_features("diffusion_states", swapped))
    with pytest.raises(SpecMismatch, match=r"frames of the policy's size"):
        adopt(str(checkpoint("diffusion_images")), with_features("diffusion_images", swapped))


def test_another_chunk_than_the_checkpoints_is_refused(adopted: Adopted, checkpoint: Checkpoints) -> None:
    policy = adopted("dit_flow_past")
    spec = replace(policy.spec, chunk=Chunking(4, 4))
    with pytest.raises(DataError, match=r"0 \+ 4 \+ 0 steps .*the checkpoint generates 1 \+ 4 \+ 3"):
        create_policy(policy.kind, spec, policy.config())
    for name in ("dit_flow_past", "smolvla"):
        with pytest.raises(ConfigError, match=r"chunk of 9 actions is longer than what the checkpoint"):
            adopt(str(checkpoint(name)), CASES[name].interface, AdoptConfig(chunk=9))


def test_missing_statistics_are_refused(copied: Checkpoints) -> None:
    place = copied("diffusion_states")
    state = place / steps_of(place / "policy_postprocessor.json", "unnormalizer_processor")["state_file"]
    held = safetensors.torch.load_file(state)
    del held["action.min"]
    safetensors.torch.save_file(held, state)
    with pytest.raises(CheckpointError, match=r"policy_postprocessor: no statistics min of 'action'"):
        adopt(str(place), CASES["diffusion_states"].interface)


def test_code_in_a_pipeline_is_not_run(copied: Checkpoints) -> None:
    place = copied("diffusion_states")
    edit(place / BEFORE, lambda content: content["steps"].append({"class": "os.system", "config": {}}))
    with pytest.raises(CheckpointError, match=r"'os.system', which is code outside LeRobot's registry"):
        adopt(str(place), CASES["diffusion_states"].interface)


def test_relative_actions_are_refused(copied: Checkpoints) -> None:
    place = copied("pi0")

    def enable(content: Any) -> None:
        for step in content["steps"]:
            if step["registry_name"].startswith("relative_actions"):
                step["config"]["enabled"] = True

    edit(place / BEFORE, enable)
    with pytest.raises(CheckpointError, match=r"makes actions relative to the state"):
        adopt(str(place), CASES["pi0"].interface)


def test_smolvla_for_alohas_old_units_is_refused(copied: Checkpoints) -> None:
    place = copied("smolvla")
    edit(place / "config.json", lambda content: content.update(adapt_to_pi_aloha=True))
    with pytest.raises(ConfigError, match=r"adapt_to_pi_aloha"):
        adopt(str(place), CASES["smolvla"].interface)


@pytest.mark.parametrize("name", ["diffusion_states", "pi0"])
def test_damaged_weights_are_refused(name: str, copied: Checkpoints) -> None:
    path = copied(name) / "model.safetensors"
    weights = safetensors.torch.load_file(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model.safetensors"):
        adopt(str(path.parent), CASES[name].interface)
    weights.pop(sorted(weights)[-1])
    safetensors.torch.save_file(weights, path)
    with pytest.raises(CheckpointError, match=r"lacks \['model|lacks \['diffusion"):
        adopt(str(path.parent), CASES[name].interface)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", BEFORE])
def test_a_missing_file_is_named(file: str, copied: Checkpoints) -> None:
    place = copied("diffusion_states")
    (place / file).unlink()
    with pytest.raises(CheckpointError, match=file):
        adopt(str(place), CASES["diffusion_states"].interface)


def test_the_directory_above_is_recognised(copied: Checkpoints, tmp_path: Path) -> None:
    copied("diffusion_states").rename(tmp_path / "pretrained_model")
    with pytest.raises(CheckpointError, match=r"did you mean .*pretrained_model\?"):
        adopt(str(tmp_path), CASES["diffusion_states"].interface)


def test_an_unknown_type_names_those_that_are_known(copied: Checkpoints) -> None:
    place = copied("diffusion_states")
    edit(place / "config.json", lambda content: content.update(type="act"))
    with pytest.raises(UsageError, match=r"'act' has no adapter; there are: diffusion, .*smolvla"):
        adopt(str(place), CASES["diffusion_states"].interface)


def test_a_fixed_network_keeps_its_cameras(checkpoint: Checkpoints) -> None:
    case = CASES["dit_flow"].interface
    with pytest.raises(ConfigError, match=r"multi_task_dit has a fixed number of cameras"):
        adopt(str(checkpoint("dit_flow")), case, AdoptConfig(without=[FRONT]))
    with pytest.raises(ConfigError, match=r"no camera 'observation.images.top'; it has .*front"):
        adopt(str(checkpoint("smolvla")), case, AdoptConfig(without=[TOP]))
    with pytest.raises(ConfigError, match=r"at least one camera"):
        adopt(str(checkpoint("smolvla")), case, AdoptConfig(without=[FRONT, WRIST]))


def test_a_backbone_that_is_not_there_is_named(copied: Checkpoints) -> None:
    place = copied("dit_flow")
    edit(place / "config.json", lambda content: content.update(vision_encoder_name="nobody/clip-of-nowhere"))
    with pytest.raises(ConfigError, match=r"(?s)cannot build a policy of type 'multi_task_dit'.*nobody/clip"):
        adopt(str(place), CASES["dit_flow"].interface)


def test_an_observation_without_the_steps_before_is_refused(adopted: Adopted) -> None:
    seen = replace(observation(CASES["dit_flow_past"]), past=())
    with pytest.raises(DataError, match=r"sees 1 earlier observations, it was given 0"):
        adopted("dit_flow_past").encode(seen)

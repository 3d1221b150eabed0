"""LeRobot's checkpoints in miniature, and LeRobot alone running them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flowrl.policies.observation import Observation
from flowrl.spec import ActionSpec, Feature, Spec
from tests.policies.lerobot import backbones

STATE, SURROUNDINGS, ACTION = 4, 3, 2
HORIZON, CHUNK, STEPS = 8, 4, 4
FRONT, WRIST = "observation.images.front", "observation.images.wrist"
LOW, HIGH = (-3.0, -4.0), (3.0, 4.0)
TASKS = ("lift the cube", "push", "open the drawer slowly")


@dataclass(frozen=True)
class Case:
    """A policy of LeRobot's with settings that make it small."""

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    cameras: tuple[str, ...] = (FRONT,)
    past: int = 0
    frame: tuple[int, int] = (backbones.IMAGE, backbones.IMAGE)

    @property
    def windowed(self) -> bool:
        """Whether LeRobot's batch has an axis of observations."""
        return self.kind in ("diffusion", "multi_task_dit")

    @property
    def padded(self) -> int:
        """P, the size of an action inside the network."""
        return ACTION if self.windowed else 5

    @property
    def interface(self) -> Spec:
        """The environment's side."""
        features = [Feature("observation.state", (STATE,))]
        if not self.cameras:
            features.append(Feature("observation.environment_state", (SURROUNDINGS,)))
        features += [Feature(name, (3, *self.frame), "uint8") for name in self.cameras]
        return Spec(tuple(features), ActionSpec(("x", "y"), LOW, HIGH), 20.0)


_UNET = {"horizon": HORIZON, "n_action_steps": CHUNK, "down_dims": (8, 16), "n_groups": 4, "kernel_size": 3}
_UNET |= {
    "diffusion_step_embed_dim": 8,
    "noise_scheduler_type": "DDIM",
    "num_train_timesteps": 20,
    "num_inference_steps": STEPS,
}
_UNET |= {"pretrained_backbone_weights": None, "spatial_softmax_num_keypoints": 4}
_DIT = {"horizon": HORIZON, "n_action_steps": CHUNK, "hidden_dim": 16, "num_layers": 2, "num_heads": 2}
_DIT |= {"timestep_embed_dim": 8, "image_crop_shape": None, "tokenizer_max_length": 24}
_DIFFUSION = {"objective": "diffusion", "noise_scheduler_type": "DDIM", "num_train_timesteps": 20}
_DIFFUSION |= {"num_inference_steps": STEPS}
_FLOW = {"objective": "flow_matching", "num_integration_steps": STEPS}
_VLA = {"chunk_size": HORIZON, "n_action_steps": CHUNK, "max_state_dim": 6, "max_action_dim": 5}
_SMOL = {**_VLA, "num_steps": STEPS, "num_vlm_layers": 2, "resize_imgs_with_padding": (32, 32)}
_SMOL |= {"load_vlm_weights": False, "tokenizer_max_length": 32}
_PI = {**_VLA, "num_inference_steps": STEPS, "image_resolution": (32, 32)}
_WIDE: dict[str, Any] = {"cameras": (FRONT, WRIST), "frame": (24, 32)}

CASES = {
    "diffusion_states": Case("diffusion", {**_UNET, "n_obs_steps": 1}, cameras=()),
    "diffusion_states_past": Case("diffusion", {**_UNET, "n_obs_steps": 2}, cameras=(), past=1),
    "diffusion_images": Case(
        "diffusion", {**_UNET, "n_obs_steps": 1, "crop_shape": (34, 34)}, frame=(36, 36)
    ),
    "diffusion_images_past": Case(
        "diffusion",
        {**_UNET, "n_obs_steps": 2, "crop_shape": None},
        cameras=(FRONT, WRIST),
        past=1,
        frame=(34, 34),
    ),
    "dit_flow": Case("multi_task_dit", {**_DIT, **_FLOW, "n_obs_steps": 1, "sigma_min": 0.05}),
    "dit_flow_past": Case("multi_task_dit", {**_DIT, **_FLOW, "n_obs_steps": 2}, past=1),
    "dit_diffusion": Case("multi_task_dit", {**_DIT, **_DIFFUSION, "n_obs_steps": 2}, past=1),
    "smolvla": Case("smolvla", _SMOL, **_WIDE),
    "pi0": Case("pi0", {**_PI, "tokenizer_max_length": 32}, **_WIDE),
    "pi05": Case("pi05", {**_PI, "tokenizer_max_length": 80}, **_WIDE),
}
ADAPTERS = ["diffusion_images_past", "dit_flow_past", "dit_diffusion", "smolvla", "pi0", "pi05"]
"""One case for each adapter."""
VLAS = ["smolvla", "pi0", "pi05"]


@dataclass(frozen=True)
class Lerobot:
    """LeRobot's policy and processors, as LeRobot alone has them."""

    case: Case
    native: Any
    before: Any
    after: Any

    @classmethod
    def read(cls, case: Case, directory: Path) -> Lerobot:
        from lerobot.policies.factory import get_policy_class, make_pre_post_processors

        native = get_policy_class(case.kind).from_pretrained(directory).eval()
        return cls(case, native, *make_pre_post_processors(native.config, pretrained_path=str(directory)))

    def batch(self, observation: Observation, raw: Tensor | None = None) -> dict[str, Any]:
        """The model's batch, with actions if ``raw`` ones are given."""
        steps = (*observation.past, observation)
        given: dict[str, Any] = {
            name: _stack([s.images[name].float() / 255 for s in steps], self.case)
            for name in self.case.cameras
        }
        state = _stack([s.state for s in steps], self.case)
        given["observation.state"] = state[..., :STATE]
        if not self.case.cameras:
            given["observation.environment_state"] = state[..., STATE:]
        actions = {} if raw is None else {"action": raw}
        return self.before({**given, **actions, "task": list(observation.tasks)})

    def normalised(self, observation: Observation, noise: Tensor) -> Tensor:
        """Its sample from noise (B, horizon, P): the chunk's normalised actions (B, H, A)."""
        batch = self.batch(observation)
        with torch.no_grad():
            if self.case.kind != "multi_task_dit":
                return self.native.predict_action_chunk(batch, noise=noise)[:, :CHUNK]
            # It takes no noise, but draws it first of all.
            with _drawing(noise):
                return self.native._generate_actions(self.native._prepare_batch(batch))

    def actions(self, observation: Observation, noise: Tensor) -> Tensor:
        """As `normalised`, raw."""
        return self.after(self.normalised(observation, noise))


class _drawing:
    """Within it, ``torch.randn`` gives what is wanted."""

    def __init__(self, noise: Tensor) -> None:
        self._noise, self._original = noise, torch.randn

    def __enter__(self) -> None:
        torch.randn = lambda *_, **__: self._noise

    def __exit__(self, *_: object) -> None:
        torch.randn = self._original


def write(case: Case, directory: Path, places: Mapping[str, Path]) -> None:
    """A checkpoint as LeRobot saves it, with weights by formula."""
    from lerobot.configs import FeatureType, PolicyFeature, PreTrainedConfig
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors

    types = {"observation.state": FeatureType.STATE, "observation.environment_state": FeatureType.ENV}
    inputs = {
        f.name: PolicyFeature(types.get(f.name, FeatureType.VISUAL), f.shape)
        for f in case.interface.observation
    }
    local: dict[str, Any] = {
        "multi_task_dit": {key: str(places["clip"]) for key in ("vision_encoder_name", "text_encoder_name")},
        "smolvla": {"vlm_model_name": str(places["smolvlm"])},
    }.get(case.kind, {})
    policy = get_policy_class(case.kind)
    config = PreTrainedConfig.get_choice_class(case.kind)(
        input_features=inputs,
        output_features={"action": PolicyFeature(FeatureType.ACTION, (ACTION,))},
        device="cpu",
        **case.settings,
        **local,
    )
    native = policy(config)
    fill(native)
    processors = make_pre_post_processors(config, dataset_stats=statistics(case))
    for part in (native, *processors):
        part.save_pretrained(directory)


def statistics(case: Case) -> dict[str, dict[str, Tensor]]:
    """Unequal in every dimension."""

    def spread(size: int) -> dict[str, Tensor]:
        step = torch.arange(size) / size
        bounds = {"min": -1 - step, "max": 1 + 2 * step, "q01": -0.9 - step, "q99": 0.9 + 2 * step}
        return {**bounds, "mean": 0.1 + step, "std": 0.5 + step}

    colours = {
        name: torch.tensor(values).view(3, 1, 1)
        for name, values in {
            "mean": (0.4, 0.5, 0.6),
            "std": (0.2, 0.25, 0.3),
            "min": (0.0, 0.0, 0.0),
            "max": (1.0, 1.0, 1.0),
        }.items()
    }
    names = {f.name: f for f in case.interface.observation}
    return {"action": spread(ACTION)} | {
        name: colours if feature.is_image else spread(feature.size) for name, feature in names.items()
    }


def fill(network: torch.nn.Module) -> None:
    """Weights by numpy's PCG64, so that they depend on names and shapes alone."""
    draws = np.random.Generator(np.random.PCG64(0))
    with torch.no_grad():
        for _, weight in sorted(network.named_parameters()):
            uniform = torch.from_numpy(draws.random(weight.shape) * 2 - 1).float()
            if weight.dim() > 1:
                weight.copy_(1.5 * uniform / weight[0].numel() ** 0.5)
            else:
                weight.copy_(0.2 * uniform + float((weight == 1).all()))


def observation(case: Case, rows: int = 3, seed: int = 1) -> Observation:
    """Random observations with the steps before."""
    draws = np.random.Generator(np.random.PCG64(seed))
    size = case.interface.state_size

    def step() -> Observation:
        state = torch.from_numpy(draws.random((rows, size)) * 2 - 1).float()
        frames = {
            name: torch.from_numpy((draws.random((rows, 3, *case.frame)) * 256).astype(np.uint8))
            for name in case.cameras
        }
        return Observation(state, frames, tuple(TASKS[row % len(TASKS)] for row in range(rows)))

    past = tuple(step() for _ in range(case.past))
    now = step()
    return Observation(now.state, now.images, now.tasks, past)


def noise(case: Case, rows: int = 3, seed: int = 2) -> Tensor:
    """(B, D), standard normal from uniform numbers, whose stream numpy keeps."""
    draws = np.random.Generator(np.random.PCG64(seed))
    u, v = draws.random((2, rows, HORIZON * case.padded))
    return torch.from_numpy(np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v)).float()


def raw_chunk(rows: int = 3, seed: int = 3) -> Tensor:
    """Raw actions inside the bounds, (B, horizon, A)."""
    draws = np.random.Generator(np.random.PCG64(seed))
    return torch.from_numpy(draws.random((rows, HORIZON, ACTION)) * 2 - 1).float() * torch.tensor(HIGH)


def _stack(steps: Sequence[Tensor], case: Case) -> Tensor:
    return torch.stack(list(steps), dim=1) if case.windowed else steps[-1]

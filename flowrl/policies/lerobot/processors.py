"""A checkpoint's own pre- and postprocessor: raw observations in, the model's batch out; actions both ways.

LeRobot keeps what happens around the network (names, statistics, tokens) in two pipelines stored beside
the weights. They are used as they are, so that what is trained here is what LeRobot will run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import safetensors.torch
import torch
from torch import Tensor

from flowrl.errors import CheckpointError
from flowrl.policies.lerobot.library import Json, lerobot

PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor", "policy_postprocessor"
_SCALE_FLOOR = 1e-8


class Processors:
    """The two pipelines of a policy. They never change, so copies of a policy share them.

    Args:
        description: as `to_json` returns it: the two configurations and their statistics.

    Attributes:
        action_scale, action_offset: (A,) float32; ``raw = scale * normalised + offset``.
        renamed: the model's name of a feature by the name under which it is given.

    Raises CheckpointError for a pipeline that cannot be built, holds code, lacks statistics, or makes actions
    relative to the state.
    """

    def __init__(self, description: Mapping[str, Any]) -> None:
        self._description = description
        self._by_device: dict[str, Any] = {}
        for name in (PREPROCESSOR, POSTPROCESSOR):
            _require_known_steps(name, description[name])
        self._before = _build(description, PREPROCESSOR)
        self._after = _build(description, POSTPROCESSOR)
        self._by_device["cpu"] = self._before
        self.renamed = _renamed(description[PREPROCESSOR])
        _require_statistics(description)
        size = _action_size(description[POSTPROCESSOR])
        self.action_offset = self._raw(torch.zeros(1, size))
        self.action_scale = self._raw(torch.ones(1, size)) - self.action_offset
        self.action_scale = self.action_scale.clamp(min=_SCALE_FLOOR)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    @classmethod
    def fresh(cls, config: Any, statistics: Mapping[str, Mapping[str, Any]]) -> Processors:
        """Those LeRobot makes for a new policy, given statistics by feature and name."""
        before, after = lerobot("policies.factory").make_pre_post_processors(
            config, dataset_stats={name: dict(values) for name, values in statistics.items()}
        )
        description: Json = {"states": {}}
        for name, pipeline in ((PREPROCESSOR, before), (POSTPROCESSOR, after)):
            description[name] = pipeline.get_config()
            description["states"][name] = _to_lists(pipeline.state_dict())
        return cls(description)

    @classmethod
    def read(cls, directory: Path, renamed: Mapping[str, str]) -> Processors:
        """Those of a checkpoint's directory, with further names mapped to the model's.

        Raises CheckpointError naming the file that is missing or damaged.
        """
        description: Json = {"states": {}}
        for name in (PREPROCESSOR, POSTPROCESSOR):
            description[name], description["states"][name] = _read_pipeline(directory, name)
        for step in description[PREPROCESSOR]["steps"]:
            if step.get("registry_name") == "rename_observations_processor":
                step["config"] = {"rename_map": {**step["config"].get("rename_map", {}), **renamed}}
        return cls(description)

    def to_json(self) -> Json:
        """Everything needed to build them again; float32 statistics survive exactly."""
        return dict(self._description)

    def files(self) -> dict[str, bytes]:
        """The files by which LeRobot loads them, by name."""
        with tempfile.TemporaryDirectory() as directory:
            for name, pipeline in ((PREPROCESSOR, self._before), (POSTPROCESSOR, self._after)):
                pipeline.save_pretrained(directory, config_filename=f"{name}.json")
            return {path.name: path.read_bytes() for path in sorted(Path(directory).iterdir())}

    def observed(self, features: Mapping[str, Tensor], tasks: Sequence[str]) -> dict[str, Any]:
        """The model's batch for B rows: ``features`` by name, each (B, ...), and B instructions."""
        device = next(iter(features.values())).device
        if str(device) not in self._by_device:
            self._by_device[str(device)] = _build(self._description, PREPROCESSOR, device)
        return self._by_device[str(device)]({**features, "task": list(tasks)})

    def statistics(self) -> dict[str, dict[str, Tensor]]:
        """The normaliser's statistics by feature and name, float32."""
        found: dict[str, dict[str, Tensor]] = {}
        for tensors in self._description["states"][PREPROCESSOR].values():
            for key, value in tensors.items():
                feature, _, name = key.rpartition(".")
                found.setdefault(feature, {})[name] = torch.tensor(value, dtype=torch.float32)
        return found

    def _raw(self, normalised: Tensor) -> Tensor:
        return self._after(normalised).reshape(-1).float()


def _build(description: Mapping[str, Any], name: str, device: torch.device | str = "cpu") -> Any:
    """One pipeline, computing on ``device``; instructions are padded to one length, which masks undo."""
    converters = lerobot("processor.converters")
    pipeline = lerobot("processor").PolicyProcessorPipeline
    known = {step["registry_name"] for step in description[name]["steps"]}
    changes = {
        "device_processor": {"device": str(device)},
        "normalizer_processor": {"device": str(device)},
        "unnormalizer_processor": {"device": str(device)},
        "tokenizer_processor": {"padding": "max_length"},
    }
    directions = {
        PREPROCESSOR: (converters.batch_to_transition, converters.transition_to_batch),
        POSTPROCESSOR: (converters.policy_action_to_transition, converters.transition_to_policy_action),
    }
    to_transition, to_output = directions[name]
    try:
        return pipeline.from_config(
            description[name],
            state_dict=_to_tensors(description["states"][name]),
            overrides={step: change for step, change in changes.items() if step in known},
            to_transition=to_transition,
            to_output=to_output,
        )
    except (ImportError, KeyError, OSError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"LeRobot cannot build the checkpoint's {name}: {error}. If it looks for a tokenizer on the hub, "
            "download that once while online, or name a local directory in its configuration"
        ) from error


def _read_pipeline(directory: Path, name: str) -> tuple[Json, Json]:
    import json

    path = directory / f"{name}.json"
    if not path.is_file():
        raise CheckpointError(
            f"{path} is missing: the checkpoint carries no statistics of its own (LeRobot before 0.4 kept them in "
            "the weights). Convert it with LeRobot's migrate_policy_normalization script, then load the result"
        )
    try:
        config: Json = json.loads(path.read_text(encoding="utf-8"))
        states = {
            file.removesuffix(".safetensors"): safetensors.torch.load_file(directory / file)
            for file in (step.get("state_file") for step in config["steps"])
            if file
        }
    except Exception as error:
        raise CheckpointError(
            f"{path}, or a file it names, is damaged ({error}); copy the checkpoint again"
        ) from error
    return config, _to_lists(states)


def _steps(config: Mapping[str, Any], kind: str) -> Iterator[Mapping[str, Any]]:
    return (step["config"] for step in config["steps"] if step.get("registry_name") == kind)


def _require_known_steps(name: str, config: Mapping[str, Any]) -> None:
    """Steps by LeRobot's registry only: one named by its import path would run whatever code that is."""
    for step in config["steps"]:
        if "registry_name" not in step:
            raise CheckpointError(
                f"{name} has the step {step.get('class')!r}, which is code outside LeRobot's registry; it is not run. "
                "Save the checkpoint without it"
            )
        relative = step["registry_name"].startswith(("relative_actions", "absolute_actions"))
        if relative and step["config"].get("enabled", True):
            raise CheckpointError(
                f"{name} makes actions relative to the state ({step['registry_name']}); critics would compare "
                "actions that mean different motions. Such checkpoints are not supported"
            )


def _renamed(config: Mapping[str, Any]) -> dict[str, str]:
    names: dict[str, str] = {}
    for step in _steps(config, "rename_observations_processor"):
        names |= step.get("rename_map", {})
    return names


def _action_size(config: Mapping[str, Any]) -> int:
    for step in _steps(config, "unnormalizer_processor"):
        return int(step["features"]["action"]["shape"][0])
    raise CheckpointError(f"{POSTPROCESSOR} has no unnormalizer_processor, so its actions have no known unit")


def _require_statistics(description: Mapping[str, Any]) -> None:
    """LeRobot passes a feature without statistics through as it is; here that is an error."""
    needed = {"MEAN_STD": ("mean", "std"), "MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99")}
    needed["QUANTILE10"] = ("q10", "q90")
    for pipeline, kind in ((PREPROCESSOR, "normalizer_processor"), (POSTPROCESSOR, "unnormalizer_processor")):
        held = {key for tensors in description["states"][pipeline].values() for key in tensors}
        for step in _steps(description[pipeline], kind):
            for feature, entry in step["features"].items():
                mode = step["norm_map"].get(entry["type"], "IDENTITY")
                lacking = [s for s in needed.get(mode, ()) if f"{feature}.{s}" not in held]
                if lacking:
                    raise CheckpointError(
                        f"{pipeline}: no statistics {', '.join(lacking)} of {feature!r}, which {mode} needs; the "
                        "policy would see raw values. Save the checkpoint with its training data's statistics"
                    )


def _to_lists(states: Mapping[str, Mapping[str, Tensor]]) -> Json:
    return {file: {key: value.tolist() for key, value in held.items()} for file, held in states.items()}


def _to_tensors(states: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Tensor]]:
    return {
        file: {key: torch.tensor(value, dtype=torch.float32) for key, value in held.items()}
        for file, held in states.items()
    }

"""A policy on disk: a directory with ``policy.json`` and ``weights.safetensors``.

A policy of LeRobot's has its weights in ``model.safetensors`` and LeRobot's own files beside them, so that
LeRobot reads the same directory.

``policy.json`` holds the format version, the kind, the constructor's settings, the spec with its
normalisation, the lineage and the SHA-256 of the weights. It is all that running a policy needs.
The directory is written aside, flushed and renamed, so a reader sees a whole policy or none.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import inspect
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from flowrl.checkpoint.disk import Disk
from flowrl.errors import CheckpointError, ConfigError, DataError, UsageError
from flowrl.policies.interface import WEIGHTS_FILE as WEIGHTS_FILE
from flowrl.policies.interface import ChunkPolicy, FlowPolicy
from flowrl.spec import Spec

FORMAT_VERSION = 1
POLICY_FILE = "policy.json"

KINDS: dict[str, str] = {
    "deterministic_mlp": "flowrl.policies.deterministic:DeterministicMLP",
    "diffusion_mlp": "flowrl.policies.diffusion:DiffusionMLP",
    "edited": "flowrl.policies.edited:EditedPolicy",
    "flow_image_transformer": "flowrl.policies.image_transformer:FlowImageTransformer",
    "flow_mlp": "flowrl.policies.mlp:FlowMLP",
    "flow_transformer": "flowrl.policies.transformer:FlowTransformer",
    "gaussian": "flowrl.policies.gaussian:GaussianPolicy",
    "lerobot_diffusion": "flowrl.policies.lerobot.diffusion:LeRobotDiffusion",
    "lerobot_multi_task_dit_diffusion": "flowrl.policies.lerobot.multi_task_dit:MultiTaskDiTDiffusion",
    "lerobot_multi_task_dit_flow_matching": "flowrl.policies.lerobot.multi_task_dit:MultiTaskDiTFlow",
    "lerobot_pi0": "flowrl.policies.lerobot.pi0:Pi0",
    "lerobot_pi05": "flowrl.policies.lerobot.pi05:Pi05",
    "lerobot_smolvla": "flowrl.policies.lerobot.smolvla:SmolVLA",
    "one_step": "flowrl.policies.one_step:OneStepPolicy",
    "steered": "flowrl.policies.steered:SteeredPolicy",
}
"""Every kind of policy and the class behind it, imported when first used. A new policy is a line here."""


def create_policy(kind: str, spec: Spec, settings: Mapping[str, Any] | None = None) -> ChunkPolicy:
    """A fresh policy of ``kind`` with the settings of its constructor.

    Raises ConfigError for an unknown kind or setting (with the nearest valid one), DataError for a
    spec without chunking or normalisation.
    """
    cls = policy_class(kind)
    known = [name for name in inspect.signature(cls).parameters if name != "spec"]
    for key in settings or {}:
        if key not in known:
            raise ConfigError(f"policy {kind!r} has no setting {key!r}; {_nearest(key, known)}")
    return cls(spec, **(settings or {}))


def policy_class(kind: str) -> type[ChunkPolicy]:
    """The class of a kind. Raises ConfigError for an unknown one, with the nearest that exists."""
    if kind not in KINDS:
        raise ConfigError(f"unknown policy kind {kind!r}; {_nearest(kind, KINDS)}")
    module, _, name = KINDS[kind].partition(":")
    return cast(type[ChunkPolicy], getattr(importlib.import_module(module), name))


def create_flow_policy(kind: str, spec: Spec, settings: Mapping[str, Any] | None = None) -> FlowPolicy:
    """`create_policy` for a kind that has a velocity. Raises UsageError for one that has not."""
    return _require_flow(create_policy(kind, spec, settings), "it")


def save_policy(
    policy: ChunkPolicy,
    directory: str | Path,
    lineage: Mapping[str, Any] | None = None,
    *,
    durable: bool = True,
) -> None:
    """Write a policy directory, replacing a policy that is already there.

    ``lineage`` says where the policy comes from (run, step, parents) as JSON values. ``durable`` waits
    for the medium; leave it off inside a checkpoint, which syncs all it holds. Raises CheckpointError
    when the place is taken by something other than a policy, or the disk refuses.
    """
    disk = Disk(durable)
    target = Path(directory)
    if target.exists() and not (target / POLICY_FILE).is_file():
        raise CheckpointError(
            f"{target} exists and is no policy (it has no {POLICY_FILE}); choose another directory"
        )
    weights = {name: value.detach().cpu().contiguous() for name, value in policy.stored_tensors().items()}
    files = {policy.weights_file: safetensors.torch.save(weights)} | policy.companions()
    description = {
        "format": FORMAT_VERSION,
        "kind": policy.kind,
        "config": policy.config(),
        "spec": policy.spec.to_json(),
        "lineage": dict(lineage or {}),
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    text = json.dumps(description, indent=2, allow_nan=False) + "\n"
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.writing-{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        for name, data in files.items():
            disk.write(aside / name, data)
        disk.write(aside / POLICY_FILE, text.encode())
        disk.sync(aside)
        _swap(aside, target, disk)
    except OSError as error:
        raise CheckpointError(
            f"policy {target} cannot be written ({error.strerror}); what was there before is kept. "
            "Check permissions and free disk space, then save again"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def load_policy(directory: str | Path, device: torch.device | str = "cpu") -> ChunkPolicy:
    """Read a policy directory and verify its weights.

    Raises CheckpointError naming the file, what is wrong with it and what to do.
    """
    place = Path(directory)
    description = read_description(place)
    policy = _build(place / POLICY_FILE, description)
    file = policy.weights_file
    weights = _read_weights(place / file, description["sha256"].get(file))
    _require_same_tensors(place / file, weights, policy.stored_tensors())
    policy.load_stored(weights)
    return policy.to(device).eval()


def load_flow_policy(directory: str | Path, device: torch.device | str = "cpu") -> FlowPolicy:
    """Read a policy that has a velocity: what fine-tuning starts from.

    Raises CheckpointError as `load_policy` does, and UsageError for a policy without a velocity.
    """
    return _require_flow(load_policy(directory, device), str(directory))


def read_description(directory: str | Path) -> dict[str, Any]:
    """The content of ``policy.json``, checked for completeness; the weights are not read.

    Raises CheckpointError when it is missing, damaged or of a newer format.
    """
    path = Path(directory) / POLICY_FILE
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error.strerror}); expected a policy directory with "
            f"{POLICY_FILE} and its weights"
        ) from error
    except ValueError as error:
        raise CheckpointError(
            f"{path}: is no valid JSON ({error}); restore or save the policy again"
        ) from error
    version = description.get("format") if isinstance(description, dict) else None
    if not isinstance(version, int):
        raise CheckpointError(f"{path}: states no format version; it is not a policy of flowrl")
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: format {version} is newer than {FORMAT_VERSION}, the newest known here; upgrade flowrl"
        )
    missing = {"kind", "config", "spec", "lineage", "sha256"} - set(description)
    if missing:
        raise CheckpointError(f"{path}: lacks {', '.join(sorted(missing))}; restore or save the policy again")
    return description


def _require_flow(policy: ChunkPolicy, name: str) -> FlowPolicy:
    if isinstance(policy, FlowPolicy):
        return policy
    raise UsageError(
        f"{name} is a policy of kind {policy.kind!r}, which has no velocity to fine-tune; start from the flow "
        "or diffusion policy that it was made from"
    )


def _build(path: Path, description: Mapping[str, Any]) -> ChunkPolicy:
    try:
        return create_policy(description["kind"], Spec.from_json(description["spec"]), description["config"])
    except (ConfigError, DataError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: {error}; it was damaged, or written by a version of flowrl that knows more"
        ) from error


def _read_weights(path: Path, expected: str | None) -> dict[str, Tensor]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error.strerror}); copy the whole policy directory again"
        ) from error
    found = hashlib.sha256(data).hexdigest()
    if found != expected:
        raise CheckpointError(
            f"{path}: SHA-256 is {found[:12]}..., {POLICY_FILE} says {str(expected)[:12]}... "
            f"({len(data)} bytes read); the file is truncated or damaged: copy it again, or take an "
            f"earlier checkpoint"
        )
    try:
        return safetensors.torch.load(data)
    except SafetensorError as error:
        raise CheckpointError(f"{path}: is no safetensors file ({error}); save the policy again") from error


def _require_same_tensors(path: Path, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """The stored tensors must be the policy's by name, shape and dtype."""
    for name in sorted(found.keys() | expected.keys()):
        sides = [
            f"{tuple(side[name].shape)} {side[name].dtype}" if name in side else "nothing"
            for side in (found, expected)
        ]
        if sides[0] != sides[1]:
            raise CheckpointError(
                f"{path}: tensor {name!r} is {sides[0]}, the settings in {POLICY_FILE} make it {sides[1]}; "
                f"the two files do not belong together"
            )


def _swap(aside: Path, target: Path, disk: Disk) -> None:
    """Rename ``aside`` to ``target``; an old policy is moved away first and removed last."""
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    try:
        aside.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    disk.sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _nearest(name: str, known: Mapping[str, str] | list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1, 0.0)
    return f"the nearest is {near[0]!r} (known: {', '.join(known)})" if near else "there are none"

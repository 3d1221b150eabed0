"""From a LeRobot checkpoint, or from nothing, to a policy of flowrl's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from flowrl.errors import CheckpointError, ConfigError, DataError, UsageError
from flowrl.policies.io import KINDS, create_policy, policy_class
from flowrl.policies.lerobot import features
from flowrl.policies.lerobot.base import LeRobotPolicy
from flowrl.policies.lerobot.config import AdoptConfig
from flowrl.policies.lerobot.library import config_from_json, config_to_json, lerobot, new_config
from flowrl.policies.lerobot.processors import Processors
from flowrl.spec import Spec

WEIGHTS, CONFIG = "model.safetensors", "config.json"
PREFIX = "lerobot:"
"""How a path or a hub id of a LeRobot checkpoint is written on the command line."""


@dataclass(frozen=True)
class Checkpoint:
    """A LeRobot checkpoint on disk. `find` makes one.

    Attributes:
        directory: where it lies.
        kind: LeRobot's own name of the policy.
        config: content of ``config.json``.
    """

    directory: Path
    kind: str
    config: Mapping[str, Any]

    @classmethod
    def find(cls, source: str) -> Checkpoint:
        """A directory, or a repository of the hub, with or without the prefix ``lerobot:``.

        Raises CheckpointError when it is no LeRobot checkpoint or cannot be fetched, UsageError for a kind of
        policy that has no adapter.
        """
        import json

        source = source.removeprefix(PREFIX)
        directory = Path(source)
        directory = directory if directory.exists() else _fetched(source)
        for name in (CONFIG, WEIGHTS):
            if not (directory / name).is_file():
                inner = directory / "pretrained_model"
                hint = f"; did you mean {inner}?" if (inner / name).is_file() else ""
                raise CheckpointError(f"{directory} is no LeRobot checkpoint: {name} is missing{hint}")
        try:
            config = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
            kind = str(config["type"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{directory / CONFIG}: is no configuration of LeRobot's ({error!r})"
            ) from error
        _adapter(kind, config)
        return cls(directory, kind, config)

    @property
    def adapter(self) -> type[LeRobotPolicy]:
        """The class that runs it."""
        return _adapter(self.kind, self.config)


def adopt(source: str, interface: Spec, settings: AdoptConfig | None = None) -> LeRobotPolicy:
    """A LeRobot checkpoint as a policy for the environment or robot of ``interface``.

    Raises:
        CheckpointError: it cannot be read; the message names the file.
        SpecMismatch: a feature is missing or has another shape.
        ConfigError: a setting does not fit the checkpoint.
    """
    settings = settings or AdoptConfig()
    found = Checkpoint.find(source)
    cls = _adapter(found.kind, found.config)
    config = config_from_json(found.config)
    _leave_out(config, settings.without)
    if settings.chunk is not None:
        config.n_action_steps = settings.chunk
    cls.settle(config, settings.flow_steps)
    processors = Processors.read(found.directory, settings.rename)
    features.matched(config, interface, processors.renamed)
    chunking = _chunking(cls, config, settings.executed)
    spec = replace(interface, chunk=chunking, normalisation=features.normalisation(processors, interface))
    stated = config_to_json(config) | {"device": found.config.get("device")}
    policy = create_policy(cls.kind, spec, {"checkpoint": stated, "processors": processors.to_json()})
    _load(cast(LeRobotPolicy, policy), found.directory / WEIGHTS)
    return cast(LeRobotPolicy, policy).eval()


def fresh(
    kind: str,
    interface: Spec,
    settings: Mapping[str, Any],
    statistics: Mapping[str, Mapping[str, Any]],
    executed: int | None = None,
) -> LeRobotPolicy:
    """An untrained policy of LeRobot's ``kind`` with LeRobot's own ``settings``; weights from torch's generator.

    ``statistics`` are those of the data by feature and name (mean, std, min, max, ...). Raises ConfigError when
    LeRobot does not accept the settings.
    """
    lerobot("policies")
    types, feature = lerobot("configs").FeatureType, lerobot("configs").PolicyFeature
    inputs = {
        f.name: feature(_feature_type(types, f.name, f.is_image), f.shape) for f in interface.observation
    }
    outputs = {"action": feature(types.ACTION, (interface.action.size,))}
    config = new_config(kind, {**settings, "input_features": inputs, "output_features": outputs})
    stated = config_to_json(config)
    cls = _adapter(kind, stated)
    cls.settle(config, None)
    processors = Processors.fresh(config, statistics)
    spec = replace(
        interface,
        chunk=_chunking(cls, config, executed),
        normalisation=features.normalisation(processors, interface),
    )
    stated = config_to_json(config) | {"device": None}
    return cast(
        LeRobotPolicy,
        create_policy(cls.kind, spec, {"checkpoint": stated, "processors": processors.to_json()}),
    )


def _adapter(kind: str, config: Mapping[str, Any]) -> type[LeRobotPolicy]:
    names = [f"lerobot_{kind}", f"lerobot_{kind}_{config.get('objective', '')}"]
    for name in names:
        if name in KINDS:
            return cast(type[LeRobotPolicy], policy_class(name))
    known = ", ".join(name.removeprefix("lerobot_") for name in KINDS if name.startswith("lerobot_"))
    raise UsageError(f"LeRobot's policy {kind!r} has no adapter; there are: {known}")


def _chunking(cls: type[LeRobotPolicy], config: Any, executed: int | None) -> Any:
    try:
        chunking = cls.chunking(config)
    except DataError as error:
        raise ConfigError(
            f"a chunk of {config.n_action_steps} actions is longer than what the checkpoint generates ({error})"
        ) from error
    return chunking if executed is None else replace(chunking, executed=executed)


def _leave_out(config: Any, cameras: Sequence[str]) -> None:
    for camera in cameras:
        if camera not in config.image_features:
            known = ", ".join(config.image_features) or "none"
            raise ConfigError(f"without: the checkpoint has no camera {camera!r}; it has {known}")
        if config.type not in ("smolvla", "pi0", "pi05"):
            raise ConfigError(f"without: the network of {config.type} has a fixed number of cameras")
        del config.input_features[camera]


def _load(policy: LeRobotPolicy, path: Path) -> None:
    """The checkpoint's weights into the adapter's module, strictly by name and shape."""
    try:
        missing, unexpected = policy.load_checkpoint(path)
    except Exception as error:
        raise CheckpointError(
            f"{path}: does not fit the network that config.json describes: {error}"
        ) from error
    if missing or unexpected:
        raise CheckpointError(
            f"{path}: lacks {sorted(missing)[:3]} and holds {sorted(unexpected)[:3]} too many, against config.json"
        )


def _fetched(repository: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=["*.json", "*.safetensors"]))
    except Exception as error:
        raise CheckpointError(
            f"{repository!r} is neither a directory nor a repository that the hub gives ({error}); name a local "
            "directory, or fetch it once while online"
        ) from error


def _feature_type(types: Any, name: str, image: bool) -> Any:
    if image:
        return types.VISUAL
    return types.ENV if name == "observation.environment_state" else types.STATE

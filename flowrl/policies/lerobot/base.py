"""What every policy of LeRobot's has in common here: names, units, padding, copies, files."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, Self, cast, get_args

import safetensors.torch
import torch
from einops import rearrange
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from flowrl.errors import ConfigError, DataError
from flowrl.policies.action_view import ActionView
from flowrl.policies.interface import Context, FlowPolicy, Precision, Trainable
from flowrl.policies.lerobot.library import Json, build, config_from_json, lerobot
from flowrl.policies.lerobot.processors import Processors
from flowrl.policies.lora import LoRAConfig, inject, merged
from flowrl.policies.observation import Observation
from flowrl.spec import Chunking, Spec


class LeRobotPolicy(FlowPolicy):
    """A policy of LeRobot's as a flow policy.

    A flat chunk is everything the network generates, ``horizon * P`` values with P the padded size of an
    action, in the checkpoint's own normalised units. Only the chunk's steps and the action's dimensions are
    executed and seen by critics; bounds are those of the spec's action in these units.

    Args:
        spec: with normalisation, and the chunking that the checkpoint's horizon demands.
        checkpoint: content of LeRobot's ``config.json``.
        processors: as `flowrl.policies.lerobot.processors.Processors.to_json`.

    Raises:
        ConfigError: a setting is not usable.
        CheckpointError: LeRobot cannot build what is described.
        SpecMismatch, DataError: the spec's features or chunking are not the checkpoint's.
    """

    lerobot_type: ClassVar[str]
    """LeRobot's own name of the policy."""
    steps_field: ClassVar[str] = "num_inference_steps"
    """LeRobot's setting for K."""
    encoder_names: ClassVar[tuple[str, ...]] = ()
    """How the names of the encoder's tensors begin in LeRobot's file; see `encoder_parts`."""
    head_names: ClassVar[tuple[str, ...]] = ()
    """The same for the output layers, `head_parts`."""
    sequence: ClassVar[bool] = False
    """Whether the network sees a sequence of observations, (B, n, ...)."""
    weights_file = "model.safetensors"
    native: Any
    """LeRobot's module."""

    def __init__(
        self,
        spec: Spec,
        *,
        checkpoint: Mapping[str, Any],
        processors: Mapping[str, Any],
    ) -> None:
        native_config = config_from_json(checkpoint)
        super().__init__(spec, int(getattr(native_config, self.steps_field)))
        self._config: Json = {"checkpoint": dict(checkpoint), "processors": dict(processors)}
        self.precision: Precision = "float32"
        self.activation_checkpointing = False
        self.processors = Processors(processors)
        self._adapters: list[nn.Parameter] = []
        self.inputs = input_names(native_config, spec, self.processors.renamed)
        self._require_chunking(native_config)
        self.native = build(native_config)
        self.padded_action = self.padded_action_size(native_config)
        self.register_buffer("action_scale", self.processors.action_scale, persistent=False)
        self.register_buffer("action_offset", self.processors.action_offset, persistent=False)
        low, high = (self._normalised(torch.tensor(bound)) for bound in (spec.action.low, spec.action.high))
        chunk, size = self.chunk, spec.action.size
        executed = range(chunk.past, chunk.past + chunk.length)
        self._view: dict[str, list[Any]] = {
            "columns": [step * self.padded_action + i for step in executed for i in range(size)],
            "low": low.tolist() * chunk.length,
            "high": high.tolist() * chunk.length,
        }
        full_low, full_high = (
            torch.full((chunk.horizon, self.padded_action), sign * torch.inf) for sign in (-1, 1)
        )
        full_low[:, :size], full_high[:, :size] = low, high
        self.register_buffer("flat_low", full_low.flatten(), persistent=False)
        self.register_buffer("flat_high", full_high.flatten(), persistent=False)
        self.complete()
        # LeRobot's own flags of what learns (train_expert_only, ...) say how it was trained there.
        self.train_only("all")

    def complete(self) -> None:
        """Make what an adapter needs beside the network; nothing by default."""

    # What an adapter says about its network

    @classmethod
    @abstractmethod
    def chunking(cls, config: Any) -> Chunking:
        """The chunking of LeRobot's ``config``, all of the chunk executed."""

    @classmethod
    def settle(cls, config: Any, flow_steps: int | None) -> None:
        """Change LeRobot's ``config`` so that LeRobot samples as flowrl does, in ``flow_steps`` if given."""
        if flow_steps is not None:
            setattr(config, cls.steps_field, flow_steps)

    @staticmethod
    def padded_action_size(config: Any) -> int:
        """P, what an action is padded to."""
        return int(config.output_features["action"].shape[0])

    @abstractmethod
    def encode_batch(self, batch: Mapping[str, Any]) -> Context:
        """Encode LeRobot's batch, made by the checkpoint's preprocessor."""

    @abstractmethod
    def flow(self, context: Context, x: Tensor, t: Tensor) -> Tensor:
        """The velocity at x (B, horizon, P), flow time t (B,) from 0 (noise) to 1: (B, horizon, P)."""

    def training_time(self, t: Tensor) -> Tensor:
        """Flow times, distributed as in the checkpoint's training, from uniform ones (B, 1): (B, 1)."""
        return t

    @property
    def sigma_min(self) -> float:
        """Share of the noise that the checkpoint's path still holds at flow time 1."""
        return 0.0

    # Observations

    def encode(self, observation: Observation) -> Context:
        """Raw observations to a context. Raises DataError when one lacks the steps before."""
        if len(observation.past) != self.chunk.past:
            raise DataError(
                f"the policy sees {self.chunk.past} earlier observations, it was given {len(observation.past)}"
            )
        features: dict[str, Tensor] = {}
        steps = (*observation.past, observation)
        for name in self.inputs:
            values = [self._feature(step, name) for step in steps]
            features[name] = torch.stack(values, dim=1) if self.sequence else values[-1]
        tasks = observation.tasks or ("",) * len(observation)
        batch = self.processors.observed(features, tasks)
        with self._computing():
            if self.activation_checkpointing and self.learns_encoder and torch.is_grad_enabled():
                context = cast(Context, checkpoint(self.encode_batch, batch, use_reentrant=False))
            else:
                context = self.encode_batch(batch)
        return Context(context.features.float(), context.cache)

    def _feature(self, observation: Observation, name: str) -> Tensor:
        if name in observation.images:
            return observation.images[name].float() / 255
        start = 0
        for feature in self.spec.state_features:
            if feature.name == name:
                return observation.state[:, start : start + feature.size]
            start += feature.size
        raise DataError(f"observation has no feature {name!r}")

    # Actions

    @property
    def flat_size(self) -> int:
        """D = horizon * P, all that the network generates."""
        return self.chunk.horizon * self.padded_action

    @property
    def action_view(self) -> ActionView:
        """The chunk's steps and the action's dimensions, within the spec's bounds."""
        return ActionView(**self._view).to(self.device)

    def clip(self, flat: Tensor) -> Tensor:
        """Flat chunks (B, D) with the action's dimensions inside their bounds."""
        return flat.clamp(self.get_buffer("flat_low"), self.get_buffer("flat_high"))

    def flat_action(self, raw: Tensor) -> Tensor:
        """Raw actions (B, horizon, A) to normalised flat chunks (B, D), padded with zeros."""
        normalised = self._normalised(raw)
        padding = self.padded_action - normalised.shape[-1]
        return rearrange(nn.functional.pad(normalised, (0, padding)), "b h a -> b (h a)")

    def raw_action(self, flat: Tensor) -> Tensor:
        """The chunk's steps of flat chunks (B, D), clipped to the bounds, raw: (B, H, A)."""
        generated = rearrange(self.clip(flat), "b (h a) -> b h a", a=self.padded_action)
        past, length = self.chunk.past, self.chunk.length
        proposed = generated[:, past : past + length, : self.spec.action.size]
        return proposed * self.get_buffer("action_scale") + self.get_buffer("action_offset")

    def _normalised(self, raw: Tensor) -> Tensor:
        return (raw - self.get_buffer("action_offset")) / self.get_buffer("action_scale")

    # The network

    def velocity(self, context: Context, x: Tensor, t: Tensor) -> Tensor:
        """The velocity at x (B, D) and flow time t (B, 1): (B, D)."""
        return self._evaluated(self.flow, context, x, t)

    def _evaluated(self, network: Any, context: Context, x: Tensor, t: Tensor) -> Tensor:
        """``network(context, x, t)`` on generated steps, in the chosen precision, perhaps recomputed later."""
        steps = rearrange(x, "b (h a) -> b h a", a=self.padded_action)
        with self._computing():
            if self.activation_checkpointing and torch.is_grad_enabled():
                out = cast(Tensor, checkpoint(network, context, steps, t.squeeze(1), use_reentrant=False))
            else:
                out = network(context, steps, t.squeeze(1))
        return rearrange(out.float(), "b h a -> b (h a)")

    def _computing(self) -> AbstractContextManager[Any]:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def imitation_loss(
        self, context: Context, action: Tensor, noise: Tensor, t: Tensor, weight: Tensor | None = None
    ) -> Tensor:
        """Flow matching at the checkpoint's own distribution of times, over the action's own dimensions.

        The path ends at ``action + sigma_min noise`` (arXiv 2210.02747, section 4.1). Shapes as in
        `FlowPolicy.imitation_loss`.
        """
        t = self.training_time(t)
        used = 1 - self.sigma_min
        x = (1 - used * t) * noise + t * action
        error = rearrange(
            self.velocity(context, x, t) - (action - used * noise), "b (h a) -> b h a", a=self.padded_action
        )
        per_row = error[..., : self.spec.action.size].square().mean(dim=(1, 2))
        return (per_row if weight is None else per_row * weight).mean()

    # Copies and files

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy that shares what does not learn: an encoder of billions of weights is in memory once."""
        memo |= {id(part): part for part in self.never_trained}
        if self.trainable != "all" and not self.learns_encoder:
            memo |= {id(part): part for part in self.encoder_parts}
        copy = self.__class__.__new__(self.__class__)
        memo[id(self)] = copy
        vars(copy).update({name: deepcopy(value, memo) for name, value in vars(self).items()})
        return copy

    def stored_tensors(self) -> dict[str, Tensor]:
        """The network's tensors by LeRobot's names, each once where several names share one."""
        held: set[tuple[int, int]] = set()
        kept: dict[str, Tensor] = {}
        tensors = merged(self.native)
        for name in sorted(tensors):
            place = (tensors[name].data_ptr(), tensors[name].numel())
            if place not in held or tensors[name].numel() == 0:
                kept[name] = tensors[name]
            held.add(place)
        return kept

    def load_checkpoint(self, path: Path) -> tuple[Collection[str], Collection[str]]:
        """Take over the weights of a file that LeRobot wrote, by name and shape.

        Returns the names that the file lacks and those that it holds beyond the network's.
        """
        return safetensors.torch.load_model(self.native, path, strict=False)

    def load_stored(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the tensors of LeRobot's file."""
        self.native.load_state_dict(dict(tensors), strict=False)

    def companions(self) -> dict[str, bytes]:
        """LeRobot's ``config.json`` and processors."""
        text = json.dumps(self._config["checkpoint"], indent=4) + "\n"
        return {"config.json": text.encode()} | self.processors.files()

    def config(self) -> dict[str, Any]:
        """Constructor arguments beyond the spec, as JSON values."""
        return dict(self._config)

    def compute_in(self, precision: Precision, activation_checkpointing: bool) -> Self:
        """``bfloat16`` computes under autocast. ``activation_checkpointing`` computes the network again in the
        backward pass instead of keeping what is between its layers: less memory, a third more time.
        """
        if precision not in get_args(Precision):
            raise ConfigError(f"precision is {precision!r}; expected one of {', '.join(get_args(Precision))}")
        self.precision = precision
        self.activation_checkpointing = activation_checkpointing
        return self

    def add_lora(self, config: LoRAConfig) -> Self:
        """Adapters in the modules that ``config.targets`` names, or in LeRobot's own choice for the policy."""
        self._adapters = inject(self.native, config, config.targets or self.lora_targets())
        return self

    @classmethod
    def lora_targets(cls) -> str:
        """Which modules get adapters unless the user says otherwise: LeRobot's own choice."""
        native = lerobot("policies.factory").get_policy_class(cls.lerobot_type)
        return str(native._get_default_peft_targets(None)["target_modules"])

    def train_only(self, what: Trainable) -> Self:
        """As in `ChunkPolicy`; what LeRobot never trains stays as it is."""
        if what == "lora" and self._adapters:
            self.requires_grad_(False)
            self.trainable = what
            for adapter in self._adapters:
                adapter.requires_grad_(True)
        else:
            super().train_only(what)
        for part in self.never_trained:
            part.requires_grad_(False)
        return self

    @property
    def learns_encoder(self) -> bool:
        """Whether the encoder learns, by its own weights or by adapters inside it."""
        if self.trainable == "lora":
            inside = {id(each) for part in self.encoder_parts for each in part.parameters()}
            return any(id(adapter) in inside for adapter in self._adapters)
        return super().learns_encoder

    @property
    def never_trained(self) -> list[nn.Module]:
        """Parts that LeRobot evaluates without gradient whatever is asked for, or not at all; copies share them."""
        return []

    def _require_chunking(self, native_config: Any) -> None:
        found, needed = self.chunk, self.chunking(native_config)
        if (found.length, found.past, found.ahead) != (needed.length, needed.past, needed.ahead):
            raise DataError(
                f"the spec's chunk is {found.past} + {found.length} + {found.ahead} steps (past, chunk, ahead); "
                f"the checkpoint generates {needed.past} + {needed.length} + {needed.ahead}"
            )


def input_names(native_config: Any, spec: Spec, renamed: Mapping[str, str]) -> list[str]:
    """The spec's names of the features that the model takes, in the model's order.

    Raises SpecMismatch naming what is missing or has another shape (see
    `flowrl.policies.lerobot.features`).
    """
    from flowrl.policies.lerobot.features import matched

    return list(matched(native_config, spec, renamed).values())

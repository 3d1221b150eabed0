"""What LeRobot's vision-language-action models have in common: a prefix encoded once, an expert that reads it.

The prefix (images, instruction, and what else a model puts there) goes through the language model once; its
keys and values are what the action expert attends to in every evaluation of the velocity. LeRobot's time runs
from 1 (noise) to 0 (action) and its velocity is ``noise - action``: both are turned round here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from flowrl.errors import ConfigError
from flowrl.policies.interface import Context
from flowrl.policies.lerobot.base import LeRobotPolicy
from flowrl.policies.lerobot.library import lerobot
from flowrl.policies.lerobot.times import beta_quantile
from flowrl.policies.observation import Observation
from flowrl.spec import Chunking

Layers = tuple[tuple[Tensor, Tensor], ...]
"""Keys and values of every layer, each (B, heads, L, size of a head), for a prefix of L tokens."""


@dataclass(frozen=True)
class Prefix:
    """An encoded prefix of L tokens.

    Attributes:
        hidden: the language model's last hidden states, (B, L, W).
        present: (B, L), false where a token is padding or a camera is missing.
        layers: keys and values.
        state: what the expert sees beside the prefix, (B, S), if anything.
    """

    hidden: Tensor
    present: Tensor
    layers: Layers
    state: Tensor | None = None


class VisionLanguageAction(LeRobotPolicy):
    """A vision-language model with an action expert.

    Critics see the normalised state and the mean of the prefix' last hidden states, without gradient. The
    velocity's cache is (present, layers, state) of `Prefix`.
    """

    head_names = ("model.action_out_proj.",)

    @abstractmethod
    def trained_at(self) -> tuple[float, float, float, float]:
        """LeRobot's training times, 1 being noise: ``offset + scale Beta(alpha, beta)``; alpha, beta, scale, offset."""

    @abstractmethod
    def encode_prefix(self, batch: Mapping[str, Any]) -> Prefix:
        """LeRobot's batch through the language model."""

    @abstractmethod
    def denoise(self, prefix: Any, present: Tensor, state: Tensor | None, x: Tensor, time: Tensor) -> Tensor:
        """LeRobot's velocity (B, horizon, P) at its time (B,), with a cache of transformers' for the prefix."""

    @property
    @abstractmethod
    def language(self) -> Any:
        """The vision-language model, one of transformers'."""

    @classmethod
    def chunking(cls, config: Any) -> Chunking:
        """The chunk is executed from its first step on; what is generated beyond it is not proposed."""
        length = config.n_action_steps
        return Chunking(length, length, 0, config.chunk_size - length)

    @classmethod
    def settle(cls, config: Any, flow_steps: int | None) -> None:
        """Without real-time chunking, which changes the velocity by what was executed before.

        Raises ConfigError when no camera is left.
        """
        super().settle(config, flow_steps)
        config.rtc_config = None
        if not config.image_features:
            raise ConfigError(f"a policy of type {config.type} sees at least one camera; none is left")

    @staticmethod
    def padded_action_size(config: Any) -> int:
        """P, the number that LeRobot pads every action to."""
        return int(config.max_action_dim)

    @property
    def feature_size(self) -> int:
        """S and W, the size of the language model's hidden states."""
        return self.spec.state_size + int(self.language.config.text_config.hidden_size)

    @property
    def encoder_parts(self) -> list[nn.Module]:
        """The vision-language model."""
        return [self.language]

    @property
    def never_trained(self) -> list[nn.Module]:
        """The language model's output layer, unless it is its embedding, too: no word is ever read."""
        output = self.language.lm_head
        return [] if output.weight is self.language.get_input_embeddings().weight else [output]

    @property
    def head_parts(self) -> list[nn.Module]:
        """The projection to actions."""
        return [self.native.model.action_out_proj]

    def encode(self, observation: Observation) -> Context:
        """Raw observations to a context, see the class."""
        context = super().encode(observation)
        state = self.normalised_state(observation.state)
        return replace(context, features=torch.cat([state, context.features], dim=1))

    def encode_batch(self, batch: Mapping[str, Any]) -> Context:
        """The prefix' mean hidden state (B, W) and the cache."""
        prefix = self.encode_prefix(batch)
        weight = prefix.present.unsqueeze(-1).float()
        mean = (prefix.hidden.float() * weight).sum(dim=1) / weight.sum(dim=1)
        return Context(mean.detach(), (prefix.present, prefix.layers, prefix.state))

    def flow(self, context: Context, x: Tensor, t: Tensor) -> Tensor:
        """The velocity at x (B, horizon, P) and flow time t (B,): (B, horizon, P)."""
        present, layers, state = cast("tuple[Tensor, Layers, Tensor | None]", context.cache)
        return -self.denoise(as_cache(layers), present, state, x, 1 - t)

    def training_time(self, t: Tensor) -> Tensor:
        """``1 - time`` with LeRobot's training time: (B, 1)."""
        alpha, beta, scale, offset = self.trained_at()
        # Where u is distributed as Beta(alpha, beta), 1 - u is as Beta(beta, alpha).
        return 1 - offset - scale + scale * beta_quantile(t, beta, alpha)

    def attention(self, present: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Which tokens see which (B, L, L), and their positions (B, L), which padding does not advance."""
        mask = lerobot("policies.common.vla_utils").make_att_2d_masks(present, blocks)
        return mask, present.cumsum(dim=1) - 1


def as_cache(layers: Layers) -> Any:
    """Keys and values as transformers' cache, made anew for every evaluation: the expert appends to it.

    The tensors themselves are neither copied nor changed.
    """
    from transformers.cache_utils import DynamicCache, DynamicLayer

    cache = DynamicCache()
    for keys, values in layers:
        layer = DynamicLayer()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache


def as_layers(cache: Any) -> Layers:
    """Keys and values of transformers' cache."""
    return tuple((layer.keys, layer.values) for layer in cache.layers)

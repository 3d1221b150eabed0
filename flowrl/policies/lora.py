"""Low-rank adapters (LoRA, arXiv 2106.09685) inside a network, by peft; merged whenever weights are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from flowrl.config import configclass
from flowrl.errors import ConfigError, MissingExtra


@configclass
class LoRAConfig:
    """Low-rank adapters: ``W + (alpha / rank) B A`` learns in the place of W; B starts at zero."""

    rank: int = 8
    """Rank of the change to a weight matrix."""
    alpha: float = 16.0
    """Scale of the change, divided by the rank."""
    targets: str | None = None
    """A regular expression that the whole name of a module must match; None takes the policy's own choice."""

    def __post_init__(self) -> None:
        if self.rank < 1 or self.alpha <= 0:
            raise ValueError(f"rank {self.rank} and alpha {self.alpha:g} must be positive")


def inject(network: nn.Module, config: LoRAConfig, targets: str) -> list[nn.Parameter]:
    """Put adapters into the modules whose names match ``targets``, in place; returns their parameters.

    The network computes what it did before: the adapters start at zero. The first factor is drawn from torch's
    generator. Raises ConfigError when nothing matches or a module has no adapter, MissingExtra without peft.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise MissingExtra("peft", "vla") from error
    settings = LoraConfig(r=config.rank, lora_alpha=cast(Any, config.alpha), target_modules=targets)
    try:
        inject_adapter_in_model(settings, network)
    except ValueError as error:
        raise ConfigError(f"lora.targets {targets!r}: {error}") from error
    return [parameter for name, parameter in network.named_parameters() if "lora_" in name]


def layers(network: nn.Module) -> Mapping[str, nn.Module]:
    """The modules that hold adapters, by name; empty without LoRA."""
    return {
        name: module
        for name, module in network.named_modules()
        if hasattr(module, "lora_A") and hasattr(module, "get_delta_weight")
    }


def merged(network: nn.Module) -> dict[str, Tensor]:
    """The network's state by the names it has without adapters, their changes added to the weights."""
    adapted = layers(network)
    state: dict[str, Tensor] = {}
    for name, value in network.state_dict().items():
        module, inner = _adapted(name, adapted)
        if module is None:
            state[name] = value
        elif inner.startswith("base_layer."):
            outer = name.replace(".base_layer.", ".")
            state[outer] = value + _change(module) if inner == "base_layer.weight" else value
    return state


def _adapted(name: str, adapted: Mapping[str, nn.Module]) -> tuple[nn.Module | None, str]:
    for prefix, module in adapted.items():
        if name.startswith(prefix + "."):
            return module, name.removeprefix(prefix + ".")
    return None, name


@torch.no_grad()
def _change(module: Any) -> Tensor:
    names: Sequence[str] = list(module.lora_A)
    return sum((module.get_delta_weight(name) for name in names), torch.zeros(()))

"""How much memory training a checkpoint takes, from the header of its weights: before anything is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from safetensors import safe_open

from flowrl.errors import ResourceError
from flowrl.policies.interface import Trainable

FLOAT = 4
"""Bytes of a weight: LeRobot's checkpoints are trained in float32 whatever precision computes."""
MOMENTS = 2
"""Numbers that Adam keeps for each trained weight."""


@dataclass(frozen=True)
class Estimate:
    """Bytes of weights, gradients and optimiser; activations, critics and data come on top.

    Attributes:
        parameters: weights of the checkpoint.
        encoder: those of the encoder.
        trained: those that learn, or those of the adapters.
        copies: how often an algorithm holds the policy. What is frozen in the encoder is shared by all.
    """

    parameters: int
    encoder: int
    trained: int
    copies: int
    shared: int

    @property
    def weights(self) -> int:
        """Bytes of all copies."""
        return FLOAT * (self.shared + self.copies * (self.parameters - self.shared))

    @property
    def training(self) -> int:
        """Bytes of gradients and of the optimiser's state."""
        return FLOAT * (1 + MOMENTS) * self.trained

    @property
    def total(self) -> int:
        """Bytes in all."""
        return self.weights + self.training

    def __str__(self) -> str:
        return (
            f"{_short(self.parameters)} parameters, {_short(self.encoder)} of them the encoder, "
            f"{_short(self.trained)} trained; {self.weights / 1e9:.2f} GB of weights ({self.copies} copies), "
            f"{self.training / 1e9:.2f} GB of gradients and optimiser, {self.total / 1e9:.2f} GB before activations"
        )


def shapes(weights: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor in a safetensors file, from its header."""
    with safe_open(weights, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def adapter_size(found: Mapping[str, tuple[int, ...]], targets: str, rank: int) -> int:
    """Weights of the adapters that LoRA of this rank puts into modules whose whole name matches ``targets``."""
    matching = [
        shape
        for name, shape in found.items()
        if len(shape) > 1 and name.endswith(".weight") and re.fullmatch(targets, name.removesuffix(".weight"))
    ]
    return sum(rank * (prod(shape[1:]) + shape[0]) for shape in matching)


def estimate(
    found: Mapping[str, tuple[int, ...]],
    encoder: tuple[str, ...],
    head: tuple[str, ...],
    trainable: Trainable,
    copies: int,
    adapters: int = 0,
) -> Estimate:
    """The estimate for tensors of these shapes; ``encoder`` and ``head`` are beginnings of names.

    ``adapters`` is the number of weights that LoRA adds, which learn alone under ``lora``.
    """
    total, inside, last = (_count(found, names) for names in (("",), encoder, head))
    trained = {"all": total, "expert": total - inside, "head": last, "lora": adapters}[trainable]
    return Estimate(total, inside, trained, copies, 0 if trainable == "all" else inside)


def _count(found: Mapping[str, tuple[int, ...]], beginnings: tuple[str, ...]) -> int:
    return sum(prod(shape) for name, shape in found.items() if name.startswith(beginnings))


def require_memory(needed: Estimate, free: int, device: str) -> None:
    """Raise ResourceError, with the numbers and what would need less, when ``free`` bytes are too few."""
    if needed.total > free:
        raise ResourceError(
            f"{device} has {free / 1e9:.2f} GB free, training needs more: {needed}. Train less of it "
            "(trainable=expert, lora or head), an algorithm with fewer copies (imitation, qc), or use a larger device"
        )


def free_memory(device: str) -> int:
    """Bytes that may still be taken on a torch device: of the CUDA device, or of this machine."""
    import torch

    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    import psutil

    return int(psutil.virtual_memory().available)


def _short(count: int) -> str:
    return f"{count / 1e6:,.1f} M" if count < 1e9 else f"{count / 1e9:,.2f} B"

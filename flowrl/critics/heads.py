"""What the last layer of a critic stands for: a value, or a distribution over fixed atoms with its mean."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal, override

import torch
from torch import Tensor, nn

HeadKind = Literal["scalar", "c51", "hl_gauss"]
"""``scalar``: one number, squared error. ``c51``: a categorical distribution of returns (arXiv
1707.06887). ``hl_gauss``: a histogram whose mean is the value, trained by classification (arXiv
2403.03950)."""


class Head(nn.Module, ABC):
    """Reads values off the last layer's outputs, ``size`` numbers for each critic and row."""

    size: int

    @abstractmethod
    def values(self, logits: Tensor) -> Tensor:
        """Expected values (...) of outputs (..., size)."""


class ScalarHead(Head):
    """The output is the value."""

    size = 1

    @override
    def values(self, logits: Tensor) -> Tensor:
        return logits.squeeze(-1)


class CategoricalHead(Head):
    """Logits of Z atoms; the value is the mean of their softmax."""

    def __init__(self, atoms: Tensor) -> None:
        super().__init__()
        self.size = len(atoms)
        self.atoms = nn.Buffer(atoms, persistent=False)

    @override
    def values(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=-1) @ self.atoms


class C51Head(CategoricalHead):
    """Z atoms from ``low`` to ``high``, both included."""

    def __init__(self, atoms: int, low: float, high: float) -> None:
        super().__init__(torch.linspace(low, high, atoms))


class HLGaussHead(CategoricalHead):
    """Z bins that cover ``low`` to ``high``; the atoms are their centres.

    ``smoothing`` is the standard deviation of a target's Gaussian, in bin widths.
    """

    def __init__(self, atoms: int, low: float, high: float, smoothing: float) -> None:
        edges = torch.linspace(low, high, atoms + 1)
        super().__init__((edges[1:] + edges[:-1]) / 2)
        self.edges = nn.Buffer(edges, persistent=False)
        self.sigma = smoothing * (high - low) / atoms

    def histogram(self, target: Tensor) -> Tensor:
        """The mass of N(target, sigma^2) in each bin, for targets (R,): (R, Z), rows sum to 1.

        Targets are clipped to the range. Within some sigmas of its ends the part of the Gaussian that
        falls outside is lost and the rest scaled up, which pulls the mean inwards.
        """
        inside = target.clamp(self.edges[0], self.edges[-1])[:, None]
        below = torch.erf((self.edges - inside) / (math.sqrt(2) * self.sigma))
        return below.diff(dim=1) / (below[:, -1:] - below[:, :1])


def make_head(kind: HeadKind, atoms: int, low: float | None, high: float | None, smoothing: float) -> Head:
    """The head that a configuration describes; a distribution needs its range ``low`` to ``high``."""
    if kind == "scalar":
        return ScalarHead()
    assert low is not None
    assert high is not None
    return C51Head(atoms, low, high) if kind == "c51" else HLGaussHead(atoms, low, high, smoothing)

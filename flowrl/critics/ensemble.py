"""An ensemble of critics over action chunks, evaluated as one batched matrix product per layer."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flowrl import activations
from flowrl.activations import Activation
from flowrl.critics.encoder import CriticEncoder, Viewer
from flowrl.critics.heads import HeadKind, make_head
from flowrl.policies.action_view import ActionView
from flowrl.training import polyak_


class CriticEnsemble(Viewer):
    """M independent critics ``Q_m(features, action chunk)`` with stacked weights.

    Every hidden layer is linear, activation, LayerNorm over its width (arXiv 2610.10437, code).

    Args:
        input_size: F + E, features and what is seen of a flat chunk, concatenated.
        heads: M.
        width, depth: hidden layers.
        activation: of the hidden layers; the authors' is GELU in its tanh form.
        layer_norm: normalise after each hidden layer, with a learned gain and bias per head.
        head, atoms, value_low, value_high, smoothing: what the last layer stands for, see
            `flowrl.critics.heads`; a distribution needs its range.
        lora_rank: r, or None. The layers between hidden layers become ``x W + b + x A B`` with W frozen at
            its random start and A (width, r), B (r, width) trained (arXiv 2604.18978).
        action: settings of the `flowrl.policies.action_view.ActionView` through which chunks are seen; None
            clips them to [-1, 1].
        encoder: settings of the `flowrl.critics.encoder.CriticEncoder` whose output the features are, shared by
            the heads; None where they are the policy's.
    """

    def __init__(
        self,
        input_size: int,
        *,
        heads: int = 10,
        width: int = 512,
        depth: int = 4,
        layer_norm: bool = True,
        activation: Activation = "gelu_tanh",
        head: HeadKind = "scalar",
        atoms: int = 101,
        value_low: float | None = None,
        value_high: float | None = None,
        smoothing: float = 0.75,
        lora_rank: int | None = None,
        action: Mapping[str, Any] | None = None,
        encoder: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.view = ActionView(**(action or {}))
        self._activate = activations.module(activation)
        self._config: dict[str, Any] = {
            "input_size": input_size,
            "heads": heads,
            "width": width,
            "depth": depth,
            "layer_norm": layer_norm,
            "activation": activation,
            "head": head,
            "atoms": atoms,
            "value_low": value_low,
            "value_high": value_high,
            "smoothing": smoothing,
            "lora_rank": lora_rank,
            "action": dict(self.view.config()),
            "encoder": None if encoder is None else dict(encoder),
        }
        self.head = make_head(head, atoms, value_low, value_high, smoothing)
        sizes = [input_size, *[width] * depth, self.head.size]
        self.heads = heads
        self.weights = nn.ParameterList(_glorot(heads, i, o) for i, o in pairwise(sizes))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(heads, 1, o)) for o in sizes[1:])
        hidden = depth if layer_norm else 0
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(heads, 1, width)) for _ in range(hidden))
        self.shifts = nn.ParameterList(nn.Parameter(torch.zeros(heads, 1, width)) for _ in range(hidden))
        self.down, self.up = nn.ParameterList(), nn.ParameterList()
        if lora_rank is not None:
            self._freeze(heads, width, lora_rank)
        if encoder is not None:
            self.encoder = CriticEncoder(**encoder)

    def config(self) -> dict[str, Any]:
        """Constructor arguments, as JSON values."""
        return dict(self._config)

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        """Values (M, B) of features (B, F) and flat normalised chunks (B, D), seen through the view."""
        return self.head.values(self.logits(features, action))

    def logits(self, features: Tensor, action: Tensor) -> Tensor:
        """Outputs of the last layer (M, B, head.size), of which `forward` takes the mean."""
        x = torch.cat([features, self.view(action)], dim=-1).unsqueeze(0).expand(self.heads, -1, -1)
        last = len(self.weights) - 1
        for layer in range(last):
            x = self._activate(self._linear(layer, x))
            if self.gains:
                x = F.layer_norm(x, x.shape[-1:], eps=1e-6)
                x = torch.addcmul(self.shifts[layer], x, self.gains[layer])
        return self._linear(last, x)

    def merged(self, layer: int) -> Tensor:
        """The weight by which a layer acts, (M, in, out): W, with A B added where the layer is low-rank."""
        weight = self.weights[layer]
        return weight + self.down[layer - 1] @ self.up[layer - 1] if self._adapted(layer) else weight

    @torch.no_grad()
    def track_(self, online: CriticEnsemble, rate: float) -> None:
        """Move towards ``online`` by the Polyak ``rate``, in place.

        Low-rank layers average the weights by which they act, into W, and set B to zero: the product of
        averaged factors would be another average.
        """
        layers = [layer for layer in range(len(self.weights)) if self._adapted(layer)]
        merged = [torch.lerp(self.merged(layer), online.merged(layer), rate) for layer in layers]
        polyak_(self, online, rate)
        for layer, weight in zip(layers, merged, strict=True):
            self.weights[layer].copy_(weight)
            self.up[layer - 1].zero_()

    def _linear(self, layer: int, x: Tensor) -> Tensor:
        out = torch.baddbmm(self.biases[layer], x, self.weights[layer])
        return (
            torch.baddbmm(out, x @ self.down[layer - 1], self.up[layer - 1]) if self._adapted(layer) else out
        )

    def _adapted(self, layer: int) -> bool:
        return 0 < layer <= len(self.up)

    def _freeze(self, heads: int, width: int, rank: int) -> None:
        """Freeze the weights between hidden layers and give each its factors, normal with std r^-1/2."""
        for weight in self.weights[1:-1]:
            weight.requires_grad_(False)
            self.down.append(nn.Parameter(torch.randn(heads, width, rank) * rank**-0.5))
            self.up.append(nn.Parameter(torch.randn(heads, rank, width) * rank**-0.5))


def action_gradient(critic: CriticEnsemble, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """``grad_a mean_m Q_m(s, clip(a))`` and the values it was taken from.

    ``action`` (B, D) may lie outside its bounds: the gradient passes through the critic's clip, so it is
    zero in saturated dimensions. Returns ``(gradient (B, D), values (M, B))``, both detached. The critic's own
    parameters receive no gradient.
    """
    point = action.detach().requires_grad_(True)
    # A view, because torch's counters hook a module's inputs and cannot hook a leaf inside autograd.grad.
    values = critic(features.detach(), point.view_as(point))
    (gradient,) = torch.autograd.grad(values.mean(dim=0).sum(), point)
    return gradient, values.detach()


def _glorot(heads: int, fan_in: int, fan_out: int) -> nn.Parameter:
    bound = (6 / (fan_in + fan_out)) ** 0.5
    return nn.Parameter(torch.empty(heads, fan_in, fan_out).uniform_(-bound, bound))

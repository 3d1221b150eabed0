"""An ensemble of critics over action chunks, evaluated as one batched matrix product per layer."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flowrl import activations
from flowrl.activations import Activation


class CriticEnsemble(nn.Module):
    """M independent critics ``Q_m(features, action chunk)`` with stacked weights.

    Every hidden layer is linear, activation, LayerNorm over its width (arXiv 2610.10437, code).

    Args:
        input_size: F + D, features and flat chunk concatenated.
        heads: M.
        width, depth: hidden layers.
        activation: of the hidden layers; the authors' is GELU in its tanh form.
        layer_norm: normalise after each hidden layer, with a learned gain and bias per head.
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
    ) -> None:
        super().__init__()
        self._activate = activations.module(activation)
        self._config: dict[str, int | bool | str] = {
            "input_size": input_size,
            "heads": heads,
            "width": width,
            "depth": depth,
            "layer_norm": layer_norm,
            "activation": activation,
        }
        sizes = [input_size, *[width] * depth, 1]
        self.heads = heads
        self.weights = nn.ParameterList(_glorot(heads, i, o) for i, o in pairwise(sizes))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(heads, 1, o)) for o in sizes[1:])
        hidden = depth if layer_norm else 0
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(heads, 1, width)) for _ in range(hidden))
        self.shifts = nn.ParameterList(nn.Parameter(torch.zeros(heads, 1, width)) for _ in range(hidden))

    def config(self) -> dict[str, int | bool | str]:
        """Constructor arguments, as JSON values."""
        return dict(self._config)

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        """Values (M, B) of features (B, F) and flat normalised chunks (B, D)."""
        x = torch.cat([features, action], dim=-1).unsqueeze(0).expand(self.heads, -1, -1)
        last = len(self.weights) - 1
        for layer in range(last):
            x = self._activate(torch.baddbmm(self.biases[layer], x, self.weights[layer]))
            if self.gains:
                x = F.layer_norm(x, x.shape[-1:], eps=1e-6)
                x = torch.addcmul(self.shifts[layer], x, self.gains[layer])
        return torch.baddbmm(self.biases[last], x, self.weights[last]).squeeze(-1)


def action_gradient(critic: CriticEnsemble, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """``grad_a mean_m Q_m(s, clip(a))`` and the values it was taken from.

    ``action`` (B, D) may lie outside [-1, 1]: the gradient passes through the clip, so it is zero in
    saturated dimensions. Returns ``(gradient (B, D), values (M, B))``, both detached. The critic's own
    parameters receive no gradient.
    """
    point = action.detach().requires_grad_(True)
    values = critic(features.detach(), point.clamp(-1, 1))
    (gradient,) = torch.autograd.grad(values.mean(dim=0).sum(), point)
    return gradient, values.detach()


def _glorot(heads: int, fan_in: int, fan_out: int) -> nn.Parameter:
    bound = (6 / (fan_in + fan_out)) ** 0.5
    return nn.Parameter(torch.empty(heads, fan_in, fan_out).uniform_(-bound, bound))

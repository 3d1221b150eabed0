"""A flow with a small bounded edit of its samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from flowrl.policies.interface import Context, FlowPolicy
from flowrl.policies.wrapped import TanhGaussian, WrappedPolicy
from flowrl.spec import Spec


class EditedPolicy(WrappedPolicy):
    """``action = clip(a + e)``: a sample a of the flow, moved by at most ``bound`` (EXPO, arXiv 2507.07986).

    ``e = bound tanh(...)`` comes from a squashed Gaussian that sees the features and a. Of one noise, 2 D
    numbers, a critic may choose between a and the edited a.

    Args:
        spec: with chunking and normalisation.
        base: the flow policy, or its kind and settings.
        bound: the largest edit of a dimension, in normalised units.
        width, depth: hidden layers of the squashed Gaussian.
    """

    kind = "edited"
    sample_name = "edited ODE sample"
    candidates_per_noise = 2

    def __init__(
        self,
        spec: Spec,
        base: Mapping[str, Any] | FlowPolicy,
        *,
        bound: float = 0.1,
        width: int = 256,
        depth: int = 3,
    ) -> None:
        super().__init__(spec, base)
        self.bound = bound
        self._config: dict[str, Any] = {"bound": bound, "width": width, "depth": depth}
        self.editor = TanhGaussian(
            self.feature_size + self.flat_size, self.flat_size, width=width, depth=depth
        )

    def sample(self, context: Context, noise: Tensor) -> Tensor:
        """One edited action per row from noise (B, 2 D), inside [-1, 1]: (B, D)."""
        first, second = noise.chunk(2, dim=1)
        return self.edit(context, self.base.sample(context, first), second)[0]

    def candidates(self, context: Context, noise: Tensor) -> Tensor:
        """The flow's action and the edited one for each row, in this order: (2 B, D)."""
        first, second = noise.chunk(2, dim=1)
        action = self.clip(self.base.sample(context, first))
        both = torch.stack([action, self.edit(context, action, second)[0]], dim=1)
        return both.flatten(0, 1)

    def edit(self, context: Context, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """``clip(a + e)`` for the flow's actions and noise (B, D), and the log-density (B,) of e / bound."""
        inside = self.clip(action)
        squashed, log_density = self.editor(torch.cat([context.features, inside], dim=1), noise)
        return self.clip(inside + self.bound * squashed), log_density

    @property
    def noise_size(self) -> int:
        """2 D: the flow's noise, then the edit's."""
        return 2 * self.flat_size

    @property
    def sample_detail(self) -> str:
        """That of the flow."""
        return self.base.sample_detail

    def config(self) -> dict[str, Any]:
        """Constructor arguments beyond the spec, as JSON values."""
        return super().config() | self._config

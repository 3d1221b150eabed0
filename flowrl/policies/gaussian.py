"""A squashed Gaussian over whole chunks: the actor of SAC and RLPD."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from flowrl.policies.interface import Context, FlowPolicy
from flowrl.policies.wrapped import TanhGaussian, WrappedPolicy
from flowrl.spec import Spec


class GaussianPolicy(WrappedPolicy):
    """``action = tanh(mean(s) + std(s) xi)``; sees through a flow policy's encoder and uses nothing else of it.

    Zero noise gives the mean (before the tanh, so the median after it).

    Args:
        spec: with chunking and normalisation.
        base: the flow policy, or its kind and settings.
        width, depth: hidden layers.
    """

    kind = "gaussian"
    sample_name = "Gaussian sample"

    def __init__(
        self, spec: Spec, base: Mapping[str, Any] | FlowPolicy, *, width: int = 256, depth: int = 3
    ) -> None:
        super().__init__(spec, base)
        self._config: dict[str, Any] = {"width": width, "depth": depth}
        self.gaussian = TanhGaussian(self.feature_size, self.noise_size, width=width, depth=depth)

    @property
    def noise_size(self) -> int:
        """E, what of a chunk is executed."""
        return self.action_view.size(self.flat_size)

    def sample(self, context: Context, noise: Tensor) -> Tensor:
        """One action per row from noise (B, E), inside the bounds: (B, D)."""
        return self.draw(context.features, noise)[0]

    def draw(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (B, D) from features (B, F) and noise (B, E), and their log-density (B,) in units of bounds."""
        seen, log_density = self.gaussian(features, noise)
        return self.action_view.to(seen.device).restore(seen, self.flat_size), log_density

    def log_prob(self, context: Context, action: Tensor) -> Tensor:
        """Log-density (B,) of flat chunks (B, D), in units of bounds; those at the bounds are taken just inside."""
        return self.gaussian.log_prob(context.features, self.action_view.to(action.device)(action))

    def config(self) -> dict[str, Any]:
        """Constructor arguments beyond the spec, as JSON values."""
        return super().config() | self._config

"""A frozen flow whose noise is chosen by a small policy instead of drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from flowrl.policies.interface import Context, FlowPolicy
from flowrl.policies.wrapped import TanhGaussian, WrappedPolicy
from flowrl.spec import Spec


class SteeredPolicy(WrappedPolicy):
    """``action = ODE(s, w)`` with ``w = magnitude tanh(...)`` from a squashed Gaussian (arXiv 2506.15799).

    At first its w has about the standard deviation 0.9 in every dimension (at magnitude 1.5): the untrained
    policy acts nearly as its base does.

    Args:
        spec: with chunking and normalisation.
        base: the flow policy, or its kind and settings.
        magnitude: b, the bound of w in every dimension.
        width, depth: hidden layers of the squashed Gaussian.
    """

    kind = "steered"
    sample_name = "steered ODE sample"

    def __init__(
        self,
        spec: Spec,
        base: Mapping[str, Any] | FlowPolicy,
        *,
        magnitude: float = 1.5,
        width: int = 256,
        depth: int = 3,
    ) -> None:
        super().__init__(spec, base)
        self.magnitude = magnitude
        self._config: dict[str, Any] = {"magnitude": magnitude, "width": width, "depth": depth}
        self.steering = TanhGaussian(
            self.feature_size, self.flat_size, width=width, depth=depth, log_std_range=(-3.0, 3.0)
        )

    def sample(self, context: Context, noise: Tensor) -> Tensor:
        """One ODE sample per row, unclipped, whose noise is chosen with the help of ``noise`` (B, D): (B, D)."""
        return self.decode(context, self.choose(context, noise)[0])

    def choose(self, context: Context, noise: Tensor) -> tuple[Tensor, Tensor]:
        """u = w / b in (-1, 1)^D by the squashed Gaussian, (B, D), and its log-density (B,)."""
        return self.steering(context.features, noise)

    def decode(self, context: Context, u: Tensor) -> Tensor:
        """The flow's sample, unclipped, from the noise ``w = b u``: (B, D)."""
        return self.base.sample(context, self.magnitude * u)

    @property
    def sample_detail(self) -> str:
        """That of the flow."""
        return self.base.sample_detail

    def config(self) -> dict[str, Any]:
        """Constructor arguments beyond the spec, as JSON values."""
        return super().config() | self._config

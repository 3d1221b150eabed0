"""A flow network that is asked once: noise becomes a chunk by a single step."""

from __future__ import annotations

from torch import Tensor

from flowrl.policies.interface import Context
from flowrl.policies.wrapped import WrappedPolicy


class OneStepPolicy(WrappedPolicy):
    """``action = z + v(s, z, 0)``: the network of a flow policy, evaluated at t = 0 alone.

    With the weights of a trained flow this is its first Euler step taken over the whole time, which ends at
    the mean E[a | s]; fine-tuning turns it into a map of its own (FQL, arXiv 2502.02538).
    """

    kind = "one_step"
    sample_name = "one-step sample"

    def sample(self, context: Context, noise: Tensor) -> Tensor:
        """One action per row from noise (B, D), unclipped: (B, D)."""
        return noise + self.base.velocity(context, noise, noise.new_zeros(len(noise), 1))

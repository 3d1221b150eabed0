"""LeRobot's pi0 (arXiv 2410.24164): the expert sees the state beside the noised actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from flowrl.policies.lerobot.pi import PiPolicy
from flowrl.policies.lerobot.vla import Prefix


class Pi0(PiPolicy):
    """See `PiPolicy`."""

    kind = "lerobot_pi0"
    lerobot_type = "pi0"

    def encode_prefix(self, batch: Mapping[str, Any]) -> Prefix:
        """Images and instruction; the state is kept for the expert, which projects it."""
        return replace(super().encode_prefix(batch), state=self.native.prepare_state(batch))

    def denoise(self, prefix: Any, present: Tensor, state: Tensor | None, x: Tensor, time: Tensor) -> Tensor:
        """The expert's velocity (B, horizon, P)."""
        return self.native.model.denoise_step(
            state=state, prefix_pad_masks=present, past_key_values=prefix, x_t=x, timestep=time
        )

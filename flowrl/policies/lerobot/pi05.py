"""LeRobot's pi0.5 (arXiv 2504.16054): the state is written into the instruction."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from flowrl.policies.lerobot.pi import PiPolicy


class Pi05(PiPolicy):
    """See `PiPolicy`. The preprocessor puts the state, in 256 steps between its quantiles, into the prompt."""

    kind = "lerobot_pi05"
    lerobot_type = "pi05"

    def denoise(self, prefix: Any, present: Tensor, state: Tensor | None, x: Tensor, time: Tensor) -> Tensor:
        """The expert's velocity (B, horizon, P)."""
        return self.native.model.denoise_step(
            prefix_pad_masks=present, past_key_values=prefix, x_t=x, timestep=time
        )

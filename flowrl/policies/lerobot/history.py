"""What LeRobot's policies have in common that see a window of observations and generate actions around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from flowrl.policies.lerobot.base import LeRobotPolicy
from flowrl.spec import Chunking


class WindowPolicy(LeRobotPolicy):
    """A policy whose horizon begins at the first observation that it sees, ``n_obs_steps - 1`` steps back."""

    sequence = True

    @classmethod
    def chunking(cls, config: Any) -> Chunking:
        """The steps before the present one are generated again, those beyond the chunk are not proposed."""
        past, length = config.n_obs_steps - 1, config.n_action_steps
        return Chunking(length, length, past, config.horizon - past - length)

    def with_frames(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The batch with all cameras' frames in one tensor, (B, n, cameras, 3, height, width), if there are any."""
        cameras = list(self.native.config.image_features)
        frames: dict[str, Tensor] = {}
        if cameras:
            frames["observation.images"] = torch.stack([batch[name] for name in cameras], dim=-4)
        return {**batch, **frames}

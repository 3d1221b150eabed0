"""LeRobot's DiffusionPolicy: a U-Net over actions, conditioned on states and ResNet features (arXiv 2303.04137)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from flowrl.policies.interface import Context
from flowrl.policies.lerobot.denoising import DenoisingPolicy
from flowrl.policies.lerobot.history import WindowPolicy


class LeRobotDiffusion(WindowPolicy, DenoisingPolicy):
    """See `DenoisingPolicy`. Critics see the U-Net's condition: states and image features of all steps."""

    kind = "lerobot_diffusion"
    lerobot_type = "diffusion"
    encoder_names = ("diffusion.rgb_encoder.",)
    head_names = ("diffusion.unet.final_conv.",)

    @classmethod
    def settle(cls, config: Any, flow_steps: int | None) -> None:
        """DDIM; and the backbone's weights come from the file, not from a download."""
        super().settle(config, flow_steps)
        config.pretrained_backbone_weights = None

    @classmethod
    def lora_targets(cls) -> str:
        """The U-Net's convolutions and the projections of its condition; LeRobot names none."""
        return r"diffusion\.unet\..*\.(block\.0|cond_encoder\.1)"

    @property
    def feature_size(self) -> int:
        """F, the size of the U-Net's condition."""
        config = self.native.config
        size = config.robot_state_feature.shape[0]
        if config.env_state_feature:
            size += config.env_state_feature.shape[0]
        if cameras := len(config.image_features):
            encoder = self.native.diffusion.rgb_encoder
            separate = config.use_separate_rgb_encoder_per_camera
            size += cameras * (encoder[0] if separate else encoder).feature_dim
        return int(size * config.n_obs_steps)

    @property
    def encoder_parts(self) -> list[nn.Module]:
        """The ResNets, where there are cameras."""
        return [self.native.diffusion.rgb_encoder] if self.native.config.image_features else []

    @property
    def head_parts(self) -> list[nn.Module]:
        """The U-Net's last layers."""
        return [self.native.diffusion.unet.final_conv]

    def scheduler(self) -> Any:
        """The scheduler of the U-Net."""
        return self.native.diffusion.noise_scheduler

    def encode_batch(self, batch: Mapping[str, Any]) -> Context:
        """The U-Net's condition, (B, F)."""
        condition: Tensor = self.native.diffusion._prepare_global_conditioning(self.with_frames(batch))
        return Context(condition.detach(), condition)

    def denoise(self, context: Context, y: Tensor, level: Tensor) -> Tensor:
        """The U-Net's prediction (B, horizon, A)."""
        return self.native.diffusion.unet(y, level, global_cond=context.cache)

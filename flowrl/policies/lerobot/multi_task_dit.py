"""LeRobot's MultiTaskDiT: a transformer over actions, conditioned on states, CLIP's view and its reading of the
task (arXiv 2507.05331), trained by flow matching or as a diffusion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from flowrl.policies.interface import Context
from flowrl.policies.lerobot.denoising import DenoisingPolicy
from flowrl.policies.lerobot.history import WindowPolicy
from flowrl.policies.lerobot.times import beta_quantile


class _MultiTaskDiT(WindowPolicy):
    """What the two objectives share. Critics see the transformer's condition: states, images and text, all steps."""

    lerobot_type = "multi_task_dit"
    encoder_names = ("observation_encoder.",)
    head_names = ("noise_predictor.output_proj.",)

    @classmethod
    def lora_targets(cls) -> str:
        """The transformer's queries, keys and values, and its MLPs; LeRobot names none."""
        return r"noise_predictor\.transformer_blocks\.\d+\.(attn\.qkv_proj|mlp\.[02]|adaLN_modulation\.1)"

    @property
    def feature_size(self) -> int:
        """F, the size of the transformer's condition."""
        return int(self.native.observation_encoder.conditioning_dim)

    @property
    def encoder_parts(self) -> list[nn.Module]:
        """CLIP's two networks and the projection of text."""
        return [self.native.observation_encoder]

    @property
    def never_trained(self) -> list[nn.Module]:
        """CLIP's text network."""
        return [self.native.observation_encoder.text_encoder.text_encoder]

    @property
    def head_parts(self) -> list[nn.Module]:
        """The transformer's last layer."""
        return [self.native.noise_predictor.output_proj]

    def encode_batch(self, batch: Mapping[str, Any]) -> Context:
        """The transformer's condition, (B, F)."""
        condition: Tensor = self.native.observation_encoder.encode(self.with_frames(batch))
        return Context(condition.detach(), condition)

    def predict(self, context: Context, x: Tensor, t: Tensor) -> Tensor:
        """What the transformer says of actions x (B, horizon, A) at times or levels t (B,): (B, horizon, A)."""
        return self.native.noise_predictor(x, t, conditioning_vec=context.cache)


class MultiTaskDiTFlow(_MultiTaskDiT):
    """Trained by flow matching. LeRobot's time and sign are those of this package: 0 is noise."""

    kind = "lerobot_multi_task_dit_flow_matching"
    steps_field = "num_integration_steps"

    @classmethod
    def settle(cls, config: Any, flow_steps: int | None) -> None:
        """Euler steps, as everywhere here."""
        super().settle(config, flow_steps)
        config.integration_method = "euler"

    def flow(self, context: Context, x: Tensor, t: Tensor) -> Tensor:
        """The transformer's own output (B, horizon, A)."""
        return self.predict(context, x, t)

    def training_time(self, t: Tensor) -> Tensor:
        """``s (1 - u)`` with u from the checkpoint's beta distribution, or uniform: (B, 1)."""
        config = self.native.config
        if config.timestep_sampling_strategy == "uniform":
            return t
        # 1 - u is distributed as Beta with its parameters exchanged.
        alpha, beta = config.timestep_sampling_alpha, config.timestep_sampling_beta
        return config.timestep_sampling_s * beta_quantile(t, beta, alpha)

    @property
    def sigma_min(self) -> float:
        """The checkpoint's own."""
        return float(self.native.config.sigma_min)


class MultiTaskDiTDiffusion(_MultiTaskDiT, DenoisingPolicy):
    """Trained as a diffusion; see `DenoisingPolicy`."""

    kind = "lerobot_multi_task_dit_diffusion"

    def scheduler(self) -> Any:
        """The scheduler of LeRobot's objective."""
        return self.native.objective.noise_scheduler

    def denoise(self, context: Context, y: Tensor, level: Tensor) -> Tensor:
        """The transformer's prediction (B, horizon, A)."""
        return self.predict(context, y, level)

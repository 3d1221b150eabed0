"""LeRobot's diffusion policies: a denoiser on noise levels, run as a flow and sampled by DDIM."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any

from torch import Tensor

from flowrl.errors import ConfigError
from flowrl.policies.interface import Context
from flowrl.policies.lerobot.base import LeRobotPolicy
from flowrl.policies.paths import DiffusionPath, Network


class DenoisingPolicy(LeRobotPolicy):
    """A diffusion policy of LeRobot's.

    Its velocity is that of `flowrl.policies.paths.DiffusionPath`. A sample is deterministic DDIM, step for
    step as LeRobot's own; a checkpoint made for DDPM, which draws noise in every step, is sampled by DDIM here
    and says so in the configuration it is saved with.
    """

    sample_name = "DDIM sample"

    def complete(self) -> None:
        """The path of the network's noise levels."""
        scheduler = self.scheduler()
        self.path = DiffusionPath(
            scheduler.alphas_cumprod,
            scheduler.config.prediction_type,
            scheduler.config.clip_sample,
            scheduler.config.clip_sample_range,
        )

    @abstractmethod
    def scheduler(self) -> Any:
        """The network's noise scheduler, from diffusers."""

    @abstractmethod
    def denoise(self, context: Context, y: Tensor, level: Tensor) -> Tensor:
        """The raw prediction (B, horizon, P) for noised actions y (B, horizon, P) at levels (B,)."""

    @classmethod
    def settle(cls, config: Any, flow_steps: int | None) -> None:
        """DDIM, with as many steps as asked for or as the checkpoint takes."""
        config.noise_scheduler_type = "DDIM"
        config.num_inference_steps = flow_steps or config.num_inference_steps or config.num_train_timesteps
        if not 1 <= config.num_inference_steps <= config.num_train_timesteps:
            raise ConfigError(
                f"flow_steps {config.num_inference_steps}: the checkpoint has {config.num_train_timesteps} levels"
            )

    @property
    def sample_detail(self) -> str:
        """The number of DDIM steps."""
        return f"{self.flow_steps} steps"

    def flow(self, context: Context, x: Tensor, t: Tensor) -> Tensor:
        """Not used: `velocity` goes through the path."""
        raise NotImplementedError

    def velocity(self, context: Context, x: Tensor, t: Tensor) -> Tensor:
        """The velocity on the linear path at x (B, D) and flow time t (B, 1): (B, D)."""
        return self.path.velocity(self._network(context), x, t)

    def sample(self, context: Context, noise: Tensor) -> Tensor:
        """One DDIM sample per row from noise (B, D), unclipped: (B, D)."""
        return self.path.ddim_sample(self._network(context), noise, self.flow_steps)

    def imitation_loss(
        self, context: Context, action: Tensor, noise: Tensor, t: Tensor, weight: Tensor | None = None
    ) -> Tensor:
        """The denoising loss of LeRobot's training, see `DiffusionPath.imitation_loss`."""
        return self.path.imitation_loss(self._network(context), action, noise, t, weight)

    def _network(self, context: Context) -> Network:
        return partial(self._evaluated, self.denoise, context)

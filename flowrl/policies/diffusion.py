"""A small native diffusion policy that is a flow policy through `flowrl.policies.paths`."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from flowrl.errors import ConfigError
from flowrl.policies.interface import Context, FlowPolicy
from flowrl.policies.networks import TimeEmbedding, mlp
from flowrl.policies.observation import Observation
from flowrl.policies.paths import DiffusionPath, PredictionKind, ScheduleKind, alphas_cumprod
from flowrl.policies.samplers import euler_ode
from flowrl.spec import Spec

Grid = Literal["uniform", "ddim"]


class DiffusionMLP(FlowPolicy):
    """A diffusion policy (arXiv 2303.04137) for states: an MLP that predicts eps, a or v.

    Args:
        spec: with chunking and normalisation.
        width: units of a hidden layer.
        depth: number of hidden layers.
        layer_norm: LayerNorm after the activation of each hidden layer.
        schedule: see `flowrl.policies.paths.ScheduleKind`.
        train_steps: T, noise levels.
        prediction: what the network predicts. ``v_prediction`` is the default because the velocity
            is then a bounded multiple of the network's output at every t; epsilon is divided by t
            and sample by 1 - t.
        clip_prediction: see `flowrl.policies.paths.DiffusionPath`.
        grid: `sample` by Euler on the uniform grid of flow time, or on DDIM's levels.
        flow_steps: K, steps of `sample`.

    Raises:
        ConfigError: a setting is not usable.
        DataError: the spec has no chunking or no normalisation.
    """

    kind = "diffusion_mlp"

    def __init__(
        self,
        spec: Spec,
        *,
        width: int = 256,
        depth: int = 3,
        layer_norm: bool = False,
        schedule: ScheduleKind = "squaredcos_cap_v2",
        train_steps: int = 100,
        prediction: PredictionKind = "v_prediction",
        clip_prediction: bool = False,
        grid: Grid = "uniform",
        flow_steps: int = 10,
    ) -> None:
        super().__init__(spec, flow_steps)
        if grid not in get_args(Grid):
            raise ConfigError(f"grid is {grid!r}; expected one of {', '.join(get_args(Grid))}")
        self._config: dict[str, Any] = {
            "width": width,
            "depth": depth,
            "layer_norm": layer_norm,
            "schedule": schedule,
            "train_steps": train_steps,
            "prediction": prediction,
            "clip_prediction": clip_prediction,
            "grid": grid,
        }
        self.grid = grid
        self.train_steps = train_steps
        self.path = DiffusionPath(alphas_cumprod(schedule, train_steps), prediction, clip_prediction)
        self.embed_level = TimeEmbedding("sinusoidal")
        inputs = spec.state_size + self.flat_size + self.embed_level.size
        self.network = mlp(inputs, width, depth, self.flat_size, layer_norm=layer_norm)

    @property
    def head_parts(self) -> list[nn.Module]:
        """The last layer."""
        return [self.network[-1]]

    def encode(self, observation: Observation) -> Context:
        """Raw observations to a context whose features are the normalised state (B, S)."""
        return Context(self.normalised_state(observation.state))

    def denoise(self, context: Context, y: Tensor, level: Tensor) -> Tensor:
        """The raw prediction (B, D) for y = alpha a + sigma eps (B, D) at levels (B, 1)."""
        time = self.embed_level(level / self.train_steps)
        return self.network(torch.cat([context.features, y, time], dim=-1))

    def velocity(self, context: Context, x: Tensor, t: Tensor) -> Tensor:
        """The velocity on the linear path at x (B, D) and flow time t (B, 1): (B, D)."""
        return self.path.velocity(lambda y, level: self.denoise(context, y, level), x, t)

    def sample(self, context: Context, noise: Tensor) -> Tensor:
        """One deterministic sample per row from noise (B, D), unclipped: (B, D)."""
        if self.grid == "uniform":
            return super().sample(context, noise)
        start, times = self.path.ddim_start(noise, self.flow_steps), self.path.ddim_times(self.flow_steps)
        return euler_ode(self.velocity, context, start, self.flow_steps, times)

    def imitation_loss(
        self, context: Context, action: Tensor, noise: Tensor, t: Tensor, weight: Tensor | None = None
    ) -> Tensor:
        """The denoising loss, see `flowrl.policies.paths.DiffusionPath.imitation_loss`."""
        return self.path.imitation_loss(
            lambda y, level: self.denoise(context, y, level), action, noise, t, weight
        )

    def config(self) -> dict[str, Any]:
        """Constructor arguments beyond the spec, as JSON values."""
        return {**self._config, "flow_steps": self.flow_steps}

"""Diffusion as flow: any Gaussian path becomes the linear path by scale and time alone.

A variance-preserving diffusion noises an action as ``y = alpha a + sigma eps``. Divide by
``alpha + sigma`` and call ``t = alpha / (alpha + sigma)``: then ``x = t a + (1 - t) eps`` is the
linear path of `flowrl.policies.samplers`, whose velocity is ``a - eps``. A network that predicts
eps, a or v gives estimates of both, hence a velocity, ``a_hat - eps_hat``.

One deterministic DDIM step (arXiv 2010.02502, eq. 12, eta = 0) is then one Euler step:
``y' = alpha' a_hat + sigma' eps_hat``, so ``x' = t' a_hat + (1 - t') eps_hat``; with
``x = t a_hat + (1 - t) eps_hat`` this is ``x' = x + (t' - t)(a_hat - eps_hat)``. DDIM is Euler on
the grid of its levels' t, which is not uniform (`DiffusionPath.ddim_times`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from flowrl.errors import ConfigError

ScheduleKind = Literal["squaredcos_cap_v2", "linear"]
"""``squaredcos_cap_v2``: the cosine schedule (arXiv 2102.09672); ``linear``: betas evenly spaced."""

PredictionKind = Literal["epsilon", "sample", "v_prediction"]
"""What a network predicts: eps, a, or ``v = alpha eps - sigma a`` (arXiv 2202.00512)."""

MAX_BETA = 0.999

Network = Callable[[Tensor, Tensor], Tensor]
"""``network(y, level)`` with y (B, D) and level (B, 1), 0 cleanest, fractions allowed, gives (B, D)."""


def alphas_cumprod(
    kind: ScheduleKind, train_steps: int, beta_start: float = 1e-4, beta_end: float = 0.02
) -> Tensor:
    """``alpha^2`` of every level, cleanest first, (T,) float32: the values of diffusers' schedulers.

    ``beta_start`` and ``beta_end`` are for the linear schedule. Raises ConfigError for an unknown
    kind or fewer than two levels.
    """
    if train_steps < 2:
        raise ConfigError(f"a diffusion needs at least 2 train_steps, got {train_steps}")
    if kind == "linear":
        betas = torch.linspace(beta_start, beta_end, train_steps, dtype=torch.float32)
    elif kind == "squaredcos_cap_v2":
        bars = [
            math.cos((i / train_steps + 0.008) / 1.008 * math.pi / 2) ** 2 for i in range(train_steps + 1)
        ]
        betas = torch.tensor([min(1 - bars[i + 1] / bars[i], MAX_BETA) for i in range(train_steps)])
    else:
        raise ConfigError(f"schedule is {kind!r}; expected one of {', '.join(get_args(ScheduleKind))}")
    return torch.cumprod(1.0 - betas, dim=0)


class DiffusionPath(nn.Module):
    """The levels of a diffusion, and the velocity that its network stands for.

    The path must be variance preserving (``alpha^2 + sigma^2 = 1``): between two levels alpha and
    sigma then follow from t exactly, and only the level the network is told is interpolated.

    Both ends are held. For t below the noisiest level's or above the cleanest's, the network is
    asked at that level and its answer read with that level's alpha and sigma; its input still has
    the scale of t itself, so that pure noise at t = 0 arrives with unit variance, as DDIM starts.
    The velocity is therefore finite on all of [0, 1].

    Args:
        alpha_bar: (T,) alpha^2 per level, strictly decreasing.
        prediction: what the network predicts.
        clip_prediction: clip a_hat to ``clip_range``, [-1, 1] by default, and derive eps_hat again from
            it (``clip_sample`` with ``use_clipped_model_output`` in diffusers, so that DDIM stays an
            Euler step). Epsilon prediction needs it on schedules whose noisiest level holds almost no
            signal; a clipped dimension passes no gradient.

    Raises:
        ConfigError: an unknown prediction, or levels that are not strictly decreasing in (0, 1).
    """

    times: Tensor
    """Flow time of every level, noisiest first, increasing, (T,)."""
    alpha_bar: Tensor
    """alpha^2 of every level, cleanest first, (T,)."""

    def __init__(
        self,
        alpha_bar: Tensor,
        prediction: PredictionKind,
        clip_prediction: bool = False,
        clip_range: float = 1.0,
    ) -> None:
        super().__init__()
        if prediction not in get_args(PredictionKind):
            raise ConfigError(
                f"prediction is {prediction!r}; expected one of {', '.join(get_args(PredictionKind))}"
            )
        alpha, sigma = alpha_bar.double().sqrt(), (1 - alpha_bar.double()).sqrt()
        times = (alpha / (alpha + sigma)).flip(0).float()
        if len(times) < 2 or not (times.diff() > 0).all() or not 0 < times[0] <= times[-1] < 1:
            raise ConfigError(
                f"noise schedule of {len(times)} levels: alpha^2 must fall strictly inside (0, 1), from the "
                f"cleanest level to the noisiest; choose other betas or fewer train_steps"
            )
        self.register_buffer("times", times, persistent=False)
        self.register_buffer("alpha_bar", alpha_bar.float(), persistent=False)
        self.prediction = prediction
        self.clip_prediction = clip_prediction
        self.clip_range = clip_range

    def level(self, t: Tensor) -> Tensor:
        """The network's level for flow times (B, 1), interpolated between levels, exact at each."""
        last = len(self.times) - 1
        upper = torch.searchsorted(self.times, t.contiguous(), right=True).clamp(1, last)
        below, above = self.times[upper - 1], self.times[upper]
        fraction = ((t - below) / (above - below)).clamp(0, 1)
        return last - (upper - 1 + fraction)

    def predict(self, network: Network, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """``(a_hat, eps_hat)``, each (B, D), at x (B, D) on the linear path at flow time t (B, 1)."""
        y = x / _norm(t)
        held = t.clamp(self.times[0], self.times[-1])
        alpha, sigma = held / _norm(held), (1 - held) / _norm(held)
        action, noise = self._read(network(y, self.level(t)), y, alpha, sigma)
        if self.clip_prediction:
            action = self._clipped(action)
            noise = (y - alpha * action) / sigma
        return action, noise

    def velocity(self, network: Network, x: Tensor, t: Tensor) -> Tensor:
        """``a_hat - eps_hat`` (B, D) at x (B, D) on the linear path at flow time t (B, 1)."""
        action, noise = self.predict(network, x, t)
        return action - noise

    def corrupt(self, action: Tensor, noise: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
        """The network's input and regression target, each (B, D), at integer levels (B, 1)."""
        t = self.times.flip(0)[level]
        alpha, sigma = t / _norm(t), (1 - t) / _norm(t)
        targets = {"epsilon": noise, "sample": action, "v_prediction": alpha * noise - sigma * action}
        return alpha * action + sigma * noise, targets[self.prediction]

    def imitation_loss(
        self, network: Network, action: Tensor, noise: Tensor, t: Tensor, weight: Tensor | None = None
    ) -> Tensor:
        """The denoising loss (arXiv 2006.11239): squared error of the network's own prediction.

        ``t`` (B, 1), uniform on [0, 1], picks one of the T levels uniformly, 1 the cleanest. The
        velocity loss would weight an epsilon error by 1/t^2 and a sample error by 1/(1-t)^2, so
        that the ends of the path drown the rest. ``action`` and ``noise`` (B, D), ``weight`` (B,).
        """
        levels = len(self.times)
        level = ((1 - t) * levels).long().clamp(max=levels - 1)
        y, target = self.corrupt(action, noise, level)
        per_row = (network(y, level) - target).square().mean(dim=1)
        return (per_row if weight is None else per_row * weight).mean()

    def ddim_sample(self, network: Network, noise: Tensor, steps: int) -> Tensor:
        """DDIM as diffusers runs it (eta = 0, leading spacing, last step to alpha = 1), from noise (B, D).

        A clipped a_hat is used beside the eps_hat of the unclipped one, as there by default. Where nothing is
        clipped this is Euler on `ddim_times` from `ddim_start`.
        """
        levels = self._ddim_levels(steps)
        y = noise
        for level, following in zip(levels, [*levels[1:], None], strict=True):
            bar = self.alpha_bar[level]
            action, eps = self._read(
                network(y, y.new_full((len(y), 1), level)), y, bar**0.5, (1 - bar) ** 0.5
            )
            action = self._clipped(action) if self.clip_prediction else action
            after = bar.new_ones(()) if following is None else self.alpha_bar[following]
            y = after**0.5 * action + (1 - after) ** 0.5 * eps
        return y

    def ddim_times(self, steps: int, set_alpha_to_one: bool = True) -> list[float]:
        """The grid (steps + 1) on which Euler equals DDIM with ``steps`` steps and leading spacing.

        DDIM takes pure noise for a sample of its noisiest used level: start Euler from
        `ddim_start` of that noise. The last step goes to alpha = 1 (the action itself) or, with
        ``set_alpha_to_one`` off, to the cleanest level. Raises ConfigError when there are more
        steps than levels.
        """
        times: list[float] = self.times.flip(0).tolist()
        return [
            *(times[level] for level in self._ddim_levels(steps)),
            1.0 if set_alpha_to_one else times[0],
        ]

    def ddim_start(self, noise: Tensor, steps: int) -> Tensor:
        """Where Euler on `ddim_times` starts so that the network first sees ``noise`` (B, D) itself."""
        return noise * _norm(noise.new_tensor(self.ddim_times(steps)[0]))

    def _ddim_levels(self, steps: int) -> list[int]:
        """The levels DDIM uses, noisiest first."""
        levels = len(self.times)
        if not 1 <= steps <= levels:
            raise ConfigError(f"DDIM with {steps} steps on {levels} levels: choose 1 to {levels} steps")
        return [i * (levels // steps) for i in reversed(range(steps))]

    def _clipped(self, action: Tensor) -> Tensor:
        return action.clamp(-self.clip_range, self.clip_range)

    def _read(self, output: Tensor, y: Tensor, alpha: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        if self.prediction == "epsilon":
            return (y - sigma * output) / alpha, output
        if self.prediction == "sample":
            return output, (y - alpha * output) / sigma
        return alpha * y - sigma * output, alpha * output + sigma * y


def _norm(t: Tensor) -> Tensor:
    """``1 / (alpha + sigma)`` of a variance-preserving path at flow time t."""
    return (t.square() + (1 - t).square()).sqrt()

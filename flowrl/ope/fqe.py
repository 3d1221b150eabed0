"""Fitted-Q evaluation on chunks: a critic learns what a fixed policy is worth from episodes of others.

With chunks of H steps as actions and pi fixed, the critic is fitted to (arXiv 1903.08738, algorithm 3,
with the chunked target of arXiv 2507.07969 and a moving target instead of complete refits)

    y = R_H + gamma^H mask Q_target(s', a'),   a' ~ pi(s'),   loss = mean valid (Q(s, a) - y)^2

on all logged chunks, whoever chose them, and the value of pi is

    J = mean over initial states of mean over a ~ pi(s_0) of Q(s_0, a).

Everything random (rows, noise, first weights) depends on the fit's seed alone and not on the policy, so
that two policies are compared on the same draws, and equal policies get equal values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flowrl.acting import Actor
from flowrl.config import configclass
from flowrl.critics.chunk_critic import ChunkCritic, CriticView
from flowrl.critics.targets import CriticConfig
from flowrl.ope.data import EpisodeSubset, LoggedData, next_rows
from flowrl.ope.observations import LoggedObservations
from flowrl.policies.interface import Context
from flowrl.policies.observation import Observation
from flowrl.replay.batch import ChunkBatch
from flowrl.replay.sampler import ChunkSampler, SamplerConfig
from flowrl.training import adam, clipped_step

_CHECKED = 8
"""Batches of held-out chunks that the TD error and the distance are measured on."""
_MARGIN = 0.05
"""Part of the logged return range by which a value may leave it unnoticed."""


@configclass
class FQEConfig:
    """How the critics of fitted-Q evaluation are fitted."""

    updates: int = 1200
    """Updates of each fit."""
    seeds: int = 3
    """Independent fits: other first weights, rows and noise."""
    batch_size: int = 256
    """B, chunks per update."""
    samples: int = 4
    """Actions of the policy drawn once for every next state and every initial state."""
    width: int = 128
    """Units of a hidden layer of the critic."""
    depth: int = 2
    """Hidden layers of the critic."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    polyak: float = 0.05
    """Rate of the target critic's moving average, per update."""
    gradient_clip: float = 10.0
    """Limit on the gradient's norm."""

    def __post_init__(self) -> None:
        for name in ("updates", "seeds", "batch_size", "samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")


@dataclass(frozen=True)
class FQEValues:
    """What the fits say of one policy.

    Attributes:
        values: of the initial states by each fit (seeds, E), in the unit of the reward.
        td_error: root mean square TD error on held-out chunks, mean over fits.
        distance: root mean square distance of the policy's actions to the logged ones on held-out
            chunks, per dimension, normalised: 2 is the whole range of an action.
        outside: share of initial states whose mean value leaves the range of logged returns.
        drift: how far the estimate moved over the last quarter of the updates.
    """

    values: NDArray[np.float64]
    td_error: float
    distance: float
    outside: float
    drift: float

    @property
    def estimate(self) -> float:
        """J."""
        return float(self.values.mean())


@dataclass(frozen=True)
class _Looked:
    """What a fixed policy sees of P observations, (P, F), and some of its actions there, (P, samples, D)."""

    features: Tensor
    actions: Tensor


class FQE:
    """Fits the critics of one policy. Making one draws the critics' weights; `run` does the work.

    ``actor`` holds the policy under its acting rule.
    """

    def __init__(self, actor: Actor, data: LoggedData, config: FQEConfig, seed: int = 0) -> None:
        self.actor, self.data, self.config, self.seed = actor, data, config, seed
        self.scale = 1.0 if data.rewarded == "success" else _scale(data)
        self.sampling = SamplerConfig(
            batch_size=config.batch_size,
            chunk=actor.policy.chunk.length,
            past=actor.policy.chunk.past,
            ahead=actor.policy.chunk.ahead,
            discount=data.discount,
            end_rule="padded",
            reward_scale=self.scale,
        )
        critic = _critic_config(config, data, self.scale)
        self.critics = [
            ChunkCritic(critic, actor.policy, data.discount, seed + fit) for fit in range(config.seeds)
        ]

    def run(self, on_update: Callable[[int], None] = lambda updates: None) -> FQEValues:
        """Fit every critic. ``on_update`` is told how many updates came since the last call.

        Raises NonFiniteLoss when a fit diverges.
        """
        draws = torch.Generator().manual_seed(self.seed)
        ahead = self._looked(self._after(self.data.training), draws, self.config.samples)
        starts = self._looked(self.data.initial_observations(), draws, self.config.samples)
        here = self._features(self.data.training.observations(np.arange(self.data.training.rows)))
        late, final = zip(
            *(
                self._fit(critic, fit, here, ahead, starts, on_update)
                for fit, critic in enumerate(self.critics)
            ),
            strict=True,
        )
        errors, distance = self._held_out(draws)
        values = np.stack(final)
        return FQEValues(
            values,
            errors,
            distance,
            _share_outside(values.mean(axis=0), self.data.returns()),
            float(values.mean() - np.stack(late).mean()),
        )

    def _after(self, part: EpisodeSubset) -> LoggedObservations:
        """The observation after the chunk at every row of a part."""
        return part.observations(next_rows(part, self.sampling.rule))

    @torch.no_grad()
    def _looked(self, observations: LoggedObservations, draws: torch.Generator, samples: int) -> _Looked:
        """Encode observations and sample the policy there.

        The policy is fixed, so a few samples of each row, drawn once, serve all updates of all fits: the
        sampler's K steps, and the encoder of images, cost more than the critic's.
        """
        features, actions = list[Tensor](), list[Tensor]()
        for block in self._blocks(observations):
            context = self.actor.encode(block)
            features.append(context.features)
            actions.append(self.actor.choose(context.interleave(samples), draws))
        return _Looked(torch.cat(features), torch.cat(actions).view(len(observations), samples, -1))

    @torch.no_grad()
    def _features(self, observations: LoggedObservations) -> Tensor:
        policy = self.actor.policy
        return torch.cat([policy.encode(block).features for block in self._blocks(observations)])

    def _blocks(self, observations: LoggedObservations) -> Iterator[Observation]:
        return replace(observations, past=self.actor.policy.chunk.past).blocks()

    def _view(self, batch: ChunkBatch, here: Tensor, ahead: Tensor) -> CriticView:
        """A batch as the critic sees it, given what the policy sees before and after its chunks, (B, F) each."""
        return CriticView(Context(here), self.actor.policy.flat_action(batch.action), Context(ahead))

    def _fit(
        self,
        critic: ChunkCritic,
        fit: int,
        here: Tensor,
        ahead: _Looked,
        starts: _Looked,
        on_update: Callable[[int], None],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The values of the initial states (E,) after three quarters of the updates and at the end.

        ``here`` (N, F) and ``ahead`` belong to the training rows.
        """
        config = self.config
        sampler = ChunkSampler(self.data.training, self.sampling, self.seed + fit)
        draws = torch.Generator().manual_seed(self.seed + fit)
        optimiser = adam({"critic": critic.online}, {"critic": config.learning_rate})
        three_quarters = max(1, config.updates * 3 // 4)
        late = np.zeros(len(starts.features))
        for update in range(1, config.updates + 1):
            batch = impute_unexecuted(critic.draw(sampler), draws, self.sampling.past)
            pick = torch.randint(config.samples, (len(batch),), generator=draws)
            view = self._view(batch, here[batch.row], ahead.features[batch.row])
            loss, _, _ = critic.loss(batch, view, ahead.actions[batch.row, pick], draws)
            clipped_step(optimiser, loss, config.gradient_clip)
            critic.track()
            if update % 50 == 0 or update == config.updates:
                on_update((update - 1) % 50 + 1)
            if update == three_quarters:
                late = self._start_values(critic, starts)
        return late, self._start_values(critic, starts)

    @torch.no_grad()
    def _start_values(self, critic: ChunkCritic, starts: _Looked) -> NDArray[np.float64]:
        """Values of the initial states (E,): means over heads and the policy's actions, unscaled.

        The target critic is asked, the moving average of the fitted one.
        """
        rows, samples = starts.actions.shape[:2]
        features = starts.features.repeat_interleave(samples, 0)
        values = critic.target(features, starts.actions.flatten(0, 1)).mean(dim=0)
        return values.view(rows, -1).mean(dim=1).double().numpy() / self.scale

    @torch.no_grad()
    def _held_out(self, draws: torch.Generator) -> tuple[float, float]:
        """Root mean square TD error and distance to logged actions, on held-out chunks.

        NaN when the held-out episodes hold no whole chunk.
        """
        sampler = ChunkSampler(self.data.held_out, self.sampling, self.seed)
        if not sampler.size("all"):
            return math.nan, math.nan
        errors, distances, part = list[float](), list[float](), self.data.held_out
        # What is executed, in units of its bounds.
        seen = self.actor.policy.action_view.unclipped
        after = self._after(part)
        for _ in range(_CHECKED):
            batch = impute_unexecuted(self.critics[0].draw(sampler), draws, self.sampling.past)
            rows = batch.row.numpy()
            following = self._looked(replace(after, rows=after.rows[rows]), draws, 1)
            here = self._looked(part.observations(rows), draws, 1)
            view = self._view(batch, here.features, following.features)
            apart = seen(here.actions[:, 0]) - seen(view.action)
            distances.append(float(apart.square().mean()))
            for critic in self.critics:
                target = critic.td_target(batch, view, following.actions[:, 0], draws)
                values = critic.target(here.features, view.action).mean(dim=0)
                errors.append(float((values - target).square().mean()))
        return math.sqrt(float(np.mean(errors))) / self.scale, math.sqrt(float(np.mean(distances)))


def impute_unexecuted(batch: ChunkBatch, draws: torch.Generator, past: int = 0) -> ChunkBatch:
    """Fill the steps of a chunk that come after the end of its episode with those of a row without such.

    The chunk of a success holds copies of the last action there, which say nothing: they were never
    executed. Left in, successes would gather at chunks of equal actions and raise the value of policies
    that act evenly, wherever the outcome is left to chance. The steps of a random row are a draw of what
    the behaviour might have gone on with. ``past`` steps of actions come before the chunk.
    """
    over = torch.zeros_like(batch.mask, dtype=torch.bool)
    over[:, 1:] = batch.mask[:, :-1] == 0
    whole = (~over.any(dim=1)).nonzero().squeeze(1)
    if not len(whole):
        return batch
    other = batch.action[whole[torch.randint(len(whole), (len(batch),), generator=draws)]]
    steps, length = batch.action.shape[1], over.shape[1]
    # The chunk inside a longer horizon; what lies beyond it is not seen by the critic.
    filled = torch.nn.functional.pad(over, (past, steps - length - past))
    return replace(batch, action=torch.where(filled[..., None], other, batch.action))


def _critic_config(config: FQEConfig, data: LoggedData, scale: float) -> CriticConfig:
    """One head a fit, so that fits are independent: heads of one ensemble would share their target."""
    low, high = _value_bounds(data)
    return CriticConfig(
        heads=1,
        width=config.width,
        depth=config.depth,
        activation="relu",
        aggregation="mean",
        polyak=config.polyak,
        learning_rate=config.learning_rate,
        target_low=None if low is None else low * scale,
        target_high=None if high is None else high * scale,
    )


def _value_bounds(data: LoggedData) -> tuple[float | None, float | None]:
    """What no value can exceed if the logged rewards span all rewards; they bound the bootstrap value."""
    if data.rewarded == "success":
        return 0.0, 1.0
    if data.discount == 1:
        return None, None
    rewards = np.concatenate([data.training.reward, data.held_out.reward])
    horizon = 1 / (1 - data.discount)
    return min(0.0, float(rewards.min())) * horizon, max(0.0, float(rewards.max())) * horizon


def _scale(data: LoggedData) -> float:
    """1 / the largest logged return, so that one step size suits every reward; 1 when all are 0."""
    largest = float(np.abs(data.returns()).max())
    return 1 / largest if largest > 0 else 1.0


def _share_outside(values: NDArray[np.float64], returns: NDArray[np.float64]) -> float:
    low, high = float(returns.min()), float(returns.max())
    margin = _MARGIN * (high - low)
    return float(((values < low - margin) | (values > high + margin)).mean())

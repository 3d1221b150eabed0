"""The configuration of a critic, and its targets and losses (chunked TD: arXiv 2507.07969)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from flowrl.activations import Activation
from flowrl.config import configclass
from flowrl.critics.aggregation import Aggregation, Reduction, aggregate, sample_weights
from flowrl.critics.distributions import aggregate_distributions, project
from flowrl.critics.encoder import EncoderConfig
from flowrl.critics.ensemble import CriticEnsemble
from flowrl.critics.heads import HeadKind
from flowrl.critics.traces import Trace
from flowrl.policies.action_view import ActionView


@configclass
class CriticConfig:
    """The critic ensemble and how its targets are made."""

    heads: int = 10
    """M, independent critics."""
    width: int = 512
    """Width of each hidden layer."""
    depth: int = 4
    """Hidden layers."""
    layer_norm: bool = True
    """LayerNorm after each hidden layer; off makes off-policy learning diverge on most tasks."""
    activation: Activation = "gelu_tanh"
    """Of the hidden layers: gelu_tanh, gelu or relu; the exact gelu is faster on some CPUs."""
    lora_rank: int | None = None
    """Rank r of the trained part of the layers between hidden layers, whose rest is frozen; None trains all."""
    aggregation: Aggregation = "mean_minus_std"
    """How the heads' values of the next chunk become one number in the TD target."""
    pessimism: float = 0.5
    """rho of mean_minus_std: standard deviations over heads subtracted from the mean."""
    polyak: float = 0.005
    """Rate of the target critic's moving average, per update."""
    learning_rate: float = 3e-4
    """Adam's step size for the critic."""
    target_low: float | None = None
    """Lower bound of the bootstrap value, when the reward makes one known (for example -10)."""
    target_high: float | None = None
    """Upper bound of the bootstrap value, when the reward makes one known (for example 0)."""
    backup_chunks: int = 1
    """n: chunks whose rewards enter the target before it bootstraps; 1 is TD."""
    trace: float = 1.0
    """lambda of Peng's Q(lambda) over backup_chunks: 1 is the n-step return, 0 is TD."""
    expectile: float | None = None
    """tau in (0, 1) of an expectile loss; above 0.5 it counters n-step returns of worse data. None: squared."""
    hinge: float = 0.0
    """Weight of the penalties by which returns between chunks bound their values; 0 is off."""
    hinge_chunks: int = 4
    """L, consecutive chunks that the penalties compare, all of which also get TD; used when hinge is on."""
    next_samples: int = 1
    """n, next actions whose values are reduced to one in the target, against its variance."""
    next_reduce: Reduction = "mean"
    """How these n values become one: mean, median, or trimmed (without the lowest and highest quarter)."""
    head: HeadKind = "scalar"
    """What a critic predicts: scalar, c51 (distribution of returns) or hl_gauss (value as a histogram)."""
    atoms: int = 101
    """Atoms or bins of c51 and hl_gauss."""
    value_low: float | None = None
    """Lower end of the range of c51 and hl_gauss, in discounted reward."""
    value_high: float | None = None
    """Upper end of the range of c51 and hl_gauss, in discounted reward."""
    smoothing: float = 0.75
    """Standard deviation of hl_gauss's target histogram, in bin widths."""
    encoder: EncoderConfig | None = None
    """The critic's own encoder of the cameras; None sees the policy's features."""

    def __post_init__(self) -> None:
        for name in ("heads", "width", "depth", "backup_chunks", "hinge_chunks", "next_samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        self._check_targets()
        self._check_head()
        if self.lora_rank is not None and not 1 <= self.lora_rank <= self.width:
            raise ValueError(f"lora_rank is {self.lora_rank}; it must be from 1 to width, {self.width}")
        if self.lora_rank is not None and self.depth < 2:
            raise ValueError("lora_rank needs a layer between hidden layers: raise depth to 2, or drop it")

    def _check_targets(self) -> None:
        if not 0 <= self.trace <= 1:
            raise ValueError(f"trace is {self.trace}; it must be from 0 to 1")
        if self.expectile is not None and not 0 < self.expectile < 1:
            raise ValueError(f"expectile is {self.expectile}; it must lie between 0 and 1, or be null")
        if self.hinge < 0:
            raise ValueError(f"hinge is {self.hinge}; it must not be negative")
        if self.hinge > 0 and self.backup_chunks > 1:
            raise ValueError(
                "hinge and backup_chunks are two ways to use later chunks; set one: the penalties go with "
                "one-chunk TD on each chunk of a sequence"
            )
        if self.next_reduce == "trimmed" and self.next_samples < 4:
            raise ValueError(
                f"next_reduce trimmed leaves out quarters of next_samples, {self.next_samples}; take at least 4"
            )

    def _check_head(self) -> None:
        if self.head == "scalar":
            return
        if self.value_low is None or self.value_high is None or not self.value_low < self.value_high:
            raise ValueError(
                f"head {self.head} needs a range: value_low {self.value_low} below value_high {self.value_high}"
            )
        if self.atoms < 2:
            raise ValueError(f"atoms is {self.atoms}; a distribution needs at least 2")
        if self.smoothing <= 0:
            raise ValueError(f"smoothing is {self.smoothing}; it must be positive")
        if self.expectile is not None:
            raise ValueError(
                f"expectile weighs squared errors; head {self.head} has none: set head to scalar"
            )
        if self.head == "c51" and self.trace < 1:
            raise ValueError(
                "head c51 has no target for a mean of returns: set trace to 1, or head to hl_gauss"
            )

    def build(
        self,
        feature_size: int,
        flat_action_size: int,
        view: ActionView | None = None,
        encoder: Mapping[str, Any] | None = None,
    ) -> CriticEnsemble:
        """A fresh ensemble for features (B, F) and flat chunks (B, D), seen through ``view``.

        ``encoder`` are the settings of its own encoder, which makes the features, see `EncoderConfig.settings`.
        """
        view = view or ActionView()
        return CriticEnsemble(
            feature_size + view.size(flat_action_size),
            heads=self.heads,
            width=self.width,
            depth=self.depth,
            layer_norm=self.layer_norm,
            activation=self.activation,
            head=self.head,
            atoms=self.atoms,
            value_low=self.value_low,
            value_high=self.value_high,
            smoothing=self.smoothing,
            lora_rank=self.lora_rank,
            action=view.config(),
            encoder=encoder,
        )


def bootstrap_values(
    head_values: Tensor,
    chunks: int,
    config: CriticConfig,
    aggregation: Aggregation,
    generator: torch.Generator,
    bonus: Tensor | None = None,
) -> Tensor:
    """V at the state after each of C ``chunks``, (C, R), from head values (M, N) with N = n * C * R.

    Heads are aggregated first, then ``bonus`` (N,) is added, then the n samples are reduced, then the
    result is bounded by the configured target bounds.
    """
    values = aggregate(head_values, aggregation, config.pessimism, generator)
    samples = (values if bonus is None else values + bonus).view(config.next_samples, chunks, -1)
    reduced = (sample_weights(samples, config.next_reduce) * samples).sum(dim=0)
    return reduced.clamp(*bounds(config))


def distribution_target(
    probabilities: Tensor,
    atoms: Tensor,
    trace: Trace,
    config: CriticConfig,
    generator: torch.Generator,
    bonus: Tensor | None = None,
) -> Tensor:
    """The distribution (R, Z) of the trace's return, for next distributions of the heads (M, N, Z).

    As `bootstrap_values`, with every atom in the place of the value; samples are weighted by the ranks of
    their means, and mixed. The trace must bootstrap from one chunk a row, as n-step returns do.
    """
    shape = (config.next_samples, *trace.weights.shape)
    mixed, points = aggregate_distributions(
        probabilities, atoms, config.aggregation, config.pessimism, generator
    )
    points = (points if bonus is None else points + bonus[:, None]).clamp(*bounds(config))
    weights = sample_weights((mixed * points).sum(dim=1).view(shape), config.next_reduce)
    chunk, row = trace.weights.argmax(dim=0), torch.arange(len(trace.constant), device=points.device)
    mixed, points = (part.view(*shape, -1)[:, chunk, row] for part in (mixed, points))
    returns = trace.constant[:, None] + trace.weights.sum(dim=0)[:, None] * points
    return (weights[:, chunk, row, None] * project(mixed, returns, atoms)).sum(dim=0)


def bounds(config: CriticConfig) -> tuple[float, float]:
    """Bounds of the bootstrap value, infinite where there is none."""
    low, high = config.target_low, config.target_high
    return -float("inf") if low is None else low, float("inf") if high is None else high


def td_loss(values: Tensor, target: Tensor, weight: Tensor, expectile: float | None = None) -> Tensor:
    """``mean over M and B of weight (Q_m - y)^2``: values (M, B), target and weight (B,).

    With an ``expectile`` tau the squares are multiplied by ``|tau - 1(y < Q_m)|`` (arXiv 2608.02034).
    """
    error = target - values
    squares = error.square()
    if expectile is not None:
        squares = squares * (expectile - (error < 0).to(squares.dtype)).abs()
    return (weight * squares).mean()


def classification_loss(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Cross-entropy to distributions ``target`` (B, Z), meaned over M and B with ``weight`` (B,)."""
    entropy = -(target * F.log_softmax(logits, dim=-1)).sum(dim=-1)
    return (weight * entropy).mean()

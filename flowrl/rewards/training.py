"""Train a success classifier on the frames of a replay, and choose its threshold on other episodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import flowrl
from flowrl.errors import DataError, NonFiniteLoss
from flowrl.learner.progress import Progress, Quiet
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import EPISODE, Ints
from flowrl.rewards.classifier import SuccessClassifier, score
from flowrl.rewards.config import ClassifierConfig
from flowrl.rewards.frames import (
    Frames,
    Split,
    episode_frames,
    find_cameras,
    observe,
    select,
    split_episodes,
    states,
    succeeded,
)
from flowrl.rewards.metrics import Counts, choose_threshold, roc_auc
from flowrl.rewards.network import SuccessNetwork
from flowrl.rewards.validation import EpisodeResult, Validation, first_success
from flowrl.spec import Feature
from flowrl.training import adam, clipped_step

_SHOW_EVERY = 10


def train(
    reader: ReplayReader, config: ClassifierConfig, progress: Progress | None = None
) -> SuccessClassifier:
    """A classifier of success as the reader shows it: last frames of successes against other frames.

    Deterministic on a CPU for the reader and the configuration.

    Raises:
        DataError: a camera is missing, there are too few successful or failed episodes, or no threshold
            keeps the bound and finds a success.
        NonFiniteLoss: naming the step.
    """
    progress = progress or Quiet()
    cameras = find_cameras(reader.spec.cameras, config.cameras)
    split = split_episodes(reader, config.validation, config.seed)
    frames = select(reader, split.training, config.positives, config.margin)
    # Random shifts of frames come from torch's global generator.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = SuccessNetwork(cameras, reader.spec.state_size if config.state else 0, config)
        if config.state:
            rows = np.concatenate([frames.positive, frames.negative])
            network.fit_state(torch.from_numpy(states(reader, rows)))
        loss = _fit(network, reader, cameras, frames, config, progress)
    progress.phase("validating")
    validation = validate(network, reader, cameras, split.validation, config)
    return SuccessClassifier(
        network,
        config,
        cameras,
        reader.spec.state_features if config.state else (),
        validation,
        _provenance(reader, split, frames, config, loss),
    )


def _fit(
    network: SuccessNetwork,
    reader: ReplayReader,
    cameras: tuple[Feature, ...],
    frames: Frames,
    config: ClassifierConfig,
    progress: Progress,
) -> float:
    """Binary cross-entropy on batches half of successes; returns the mean loss of the last tenth of steps."""
    random = np.random.default_rng(config.seed)
    optimiser = adam({"classifier": network}, {"classifier": config.learning_rate})
    positives = config.batch_size // 2
    target = (torch.arange(config.batch_size) < positives).float()
    losses: list[float] = []
    network.train()
    progress.phase(f"training on {len(frames.positive) + len(frames.negative):,} frames", config.steps)
    for step in range(1, config.steps + 1):
        optimiser.param_groups[0]["lr"] = (
            config.learning_rate * (1 + math.cos(math.pi * (step - 1) / config.steps)) / 2
        )
        rows = np.concatenate(
            [
                random.choice(frames.positive, positives),
                random.choice(frames.negative, config.batch_size - positives),
            ]
        )
        loss = functional.binary_cross_entropy_with_logits(network(observe(reader, cameras, rows)), target)
        try:
            clipped_step(optimiser, loss, config.gradient_clip)
        except NonFiniteLoss as error:
            raise NonFiniteLoss(
                f"the classifier stopped at step {step} of {config.steps}: {error}; lower the learning rate "
                f"{config.learning_rate:g}"
            ) from error
        losses.append(float(loss.detach()))
        if step % _SHOW_EVERY == 0 or step == config.steps:
            progress.advance(step, f"loss {np.mean(losses[-_SHOW_EVERY:]):.4f}")
    return float(np.mean(losses[-max(config.steps // 10, 1) :]))


def validate(
    network: SuccessNetwork,
    reader: ReplayReader,
    cameras: tuple[Feature, ...],
    episodes: Ints,
    config: ClassifierConfig,
) -> Validation:
    """Choose the threshold on episodes and say what it does there. Raises DataError when nothing is found."""
    seen = {episode: episode_frames(reader, episode) for episode in episodes.tolist()}
    rows = np.concatenate(list(seen.values()))
    by_row = dict(zip(rows.tolist(), score(network, reader, cameras, rows).tolist(), strict=True))
    frames = select(reader, episodes, config.positives, config.margin)
    scores = np.array([by_row[row] for row in (*frames.positive.tolist(), *frames.negative.tolist())])
    truth = np.arange(len(scores)) < len(frames.positive)
    auc, threshold = roc_auc(scores, truth), choose_threshold(scores, truth, config.false_positives)
    if threshold is None:
        raise DataError(
            f"no threshold calls at most {config.false_positives:g} of the {len(frames.negative)} frames without "
            f"success a success and finds one of the {len(frames.positive)} with it (ROC AUC {auc:.3f}): train "
            "longer (--set steps=N), record more episodes, or allow more (--false-positives 0.01)"
        )
    results: list[EpisodeResult] = []
    for episode, places in seen.items():
        found = reader.episode(episode)
        values = np.array([by_row[row] for row in places.tolist()])
        detected = first_success(values, threshold)
        success, steps = succeeded(reader, episode), len(found.reward)
        results.append(
            EpisodeResult(found.stream, found.number, success, steps, detected, tuple(values.tolist()))
        )
    called = np.array([result.detected is not None for result in results])
    return Validation(
        threshold,
        config.false_positives,
        auc,
        Counts.of(scores >= threshold, truth),
        Counts.of(called, np.array([result.success for result in results])),
        tuple(results),
        tuple(scores.tolist()),
        tuple(truth.tolist()),
    )


def _provenance(
    reader: ReplayReader, split: Split, frames: Frames, config: ClassifierConfig, loss: float
) -> Mapping[str, Any]:
    names = list(reader.streams)
    snapshots = reader.state_dict()["snapshots"]

    def by_stream(episodes: Ints) -> dict[str, list[int]]:
        numbers = reader.column("episode")[reader.table[episodes, EPISODE["first_row"]]]
        of = reader.stream_of_episode[episodes]
        return {name: numbers[of == index].tolist() for index, name in enumerate(names)}

    return {
        "replay": str(reader.path.resolve()),
        "spec_digest": reader.spec.digest(),
        "reward": reader.rewarded_by,
        "snapshots": {name: snapshots[name] for name in names},
        "episodes": {"training": by_stream(split.training), "validation": by_stream(split.validation)},
        "frames": {"positive": len(frames.positive), "negative": len(frames.negative)},
        "loss": loss,
        "seed": config.seed,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "flowrl": flowrl.__version__,
    }

"""Normalisation: the policy's statistics against the data's, and the trained path against the served one.

Training sees batches of a sampler; serving sees observations by feature name, one at a time. On the same rows
both must give the same numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flowrl.acting import Actor
from flowrl.errors import FlowRLError
from flowrl.normalisation import ConstantDimension, Normalisation, fit
from flowrl.policies.interface import ChunkPolicy
from flowrl.policies.observation import Observation, stack
from flowrl.preflight.findings import Finding, listed
from flowrl.preflight.rows import Rows
from flowrl.replay.batch import ChunkBatch
from flowrl.replay.reader import ReplayReader
from flowrl.replay.sampler import ChunkSampler, SamplerConfig
from flowrl.replay.schema import EPISODE

FACTOR = 3.0
"""Scales that differ by more than this factor are warned of, and means that differ by this many scales."""
TOLERANCE = 1e-6
"""Largest difference of the two paths, in normalised units, beyond what 32 bits round."""
_EPS = float(np.finfo(np.float32).eps)


def check_statistics(rows: Rows, normalisation: Normalisation) -> Finding:
    """The policy's means and scales against those of the rows looked at, per state dimension."""
    spec = rows.reader.spec
    names = spec.state_dimension_names()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConstantDimension)
        fresh = fit(rows.state, spec.action.low, spec.action.high, names)
    mine, theirs = np.asarray(normalisation.state_scale), np.asarray(fresh.state_scale)
    factor = np.maximum(mine / theirs, theirs / mine)
    shift = np.abs(np.asarray(normalisation.state_mean) - np.asarray(fresh.state_mean)) / mine
    numbers = {"largest_factor": float(factor.max()), "largest_shift": float(shift.max())}
    wrong = np.flatnonzero((factor > FACTOR) | (shift > FACTOR))
    if not len(wrong):
        at = names[int(factor.argmax())]
        message = (
            f"scales of policy and data differ by at most a factor of {factor.max():.2f} ({at}), means by "
            f"{shift.max():.2f} scales"
        )
        return Finding("ok", "normalisation", "statistics", message, numbers)
    order = wrong[np.argsort(-np.maximum(factor, shift)[wrong])]
    shown = [
        f"{names[i]} (policy {normalisation.state_mean[i]:.3g} ± {mine[i]:.3g}, data "
        f"{fresh.state_mean[i]:.3g} ± {theirs[i]:.3g})"
        for i in order
    ]
    hint = _hint(normalisation, fresh)
    message = (
        f"{len(wrong)} of {len(names)} dimensions differ by more than a factor of {FACTOR:g}: "
        f"{listed(shown, 4)}; {hint}"
    )
    return Finding("warning", "normalisation", "statistics", message, numbers)


def check_parity(policy: ChunkPolicy, rows: Rows) -> Iterator[Finding]:
    """The two paths on a few chunks of the replay; skipped, and said, where cutting them would take long."""
    reader, limits = rows.reader, rows.limits
    if reader.rows * policy.flat_size > limits.parity_values:
        message = "not compared, the replay is large; `flowrl check` does it"
        yield Finding("ok", "normalisation", "trained and served", message)
        return
    chunk = policy.chunk
    config = SamplerConfig(
        batch_size=limits.parity_rows,
        chunk=chunk.length,
        past=chunk.past,
        ahead=chunk.ahead,
        drop_invalid=False,
    )
    batch = ChunkSampler(reader, config).batch()
    served = served_observation(reader, batch, chunk.past)
    with torch.no_grad(), _evaluating(policy):
        yield from _states(policy, batch, served)
        yield from _acting(policy, batch, served)
        yield from _actions(policy, batch)


def served_observation(reader: ReplayReader, batch: ChunkBatch, past: int = 0) -> Observation:
    """The rows of a batch as a server gets them: each by feature name, stacked by the names of the spec.

    A policy that looks ``past`` steps back gets those of the episode, its first one repeated.
    """
    rows = batch.row.numpy()
    first = reader.table[:, EPISODE["first_row"]]
    beginning = first[np.searchsorted(first, rows, side="right") - 1]
    now = _by_name(reader, rows.tolist(), batch.observation.tasks)
    before = [
        _by_name(reader, np.maximum(rows - back, beginning).tolist(), ()) for back in range(past, 0, -1)
    ]
    return replace(now, past=tuple(before))


def _by_name(reader: ReplayReader, rows: Sequence[int], tasks: Sequence[str]) -> Observation:
    spec, steps = reader.spec, list[dict[str, NDArray[np.generic]]]()
    for row in rows:
        named: dict[str, NDArray[np.generic]] = {}
        start = 0
        for feature in spec.state_features:
            named[feature.name] = reader.state[row, start : start + feature.size].reshape(feature.shape)
            start += feature.size
        for camera in spec.cameras:
            named[camera.name] = reader.frames.pixels(camera.name, [row])[0].numpy()
        steps.append(named)
    return stack(spec, steps, tasks)


@contextmanager
def _evaluating(policy: ChunkPolicy) -> Generator[None]:
    """In evaluation mode for a while: a policy that learns shifts its frames at random."""
    training = policy.training
    policy.eval()
    try:
        yield
    finally:
        policy.train(training)


def _states(policy: ChunkPolicy, batch: ChunkBatch, served: Observation) -> Iterator[Finding]:
    """Normalised states of both paths, and of the statistics that are written in the policy's spec."""
    normalisation = policy.spec.normalisation
    assert normalisation is not None
    trained = policy.normalised_state(batch.observation.state.to(policy.device)).cpu()
    gap = _largest(trained, policy.normalised_state(served.state.to(policy.device)).cpu())
    written = torch.from_numpy(normalisation.state(served.state.numpy().astype(np.float64)))
    scale = torch.tensor(normalisation.state_scale)
    room = 4 * _EPS * served.state.abs().amax(0).maximum(torch.tensor(normalisation.state_mean).abs()) / scale
    stated = ((trained - written).abs() - room).clamp(min=0).max().item()
    names = policy.spec.state_dimension_names()
    worst = names[int((trained - written).abs().amax(0).argmax())]
    numbers = {"trained_served": gap, "used_written": stated}
    if gap > TOLERANCE:
        message = (
            f"the same rows are normalised differently when they are trained on and when they are served, by "
            f"{gap:.3g}; the served path skips or repeats a step of the policy"
        )
        yield Finding("error", "normalisation", "states", message, numbers)
    elif stated > TOLERANCE:
        message = (
            f"the policy does not use the statistics in its spec: normalised states differ by {stated:.3g}, most in "
            f"{worst}; save it again with the statistics it was trained with"
        )
        yield Finding("error", "normalisation", "states", message, numbers)
    else:
        message = (
            f"{len(trained)} rows are normalised alike when trained on and served, by the policy's statistics"
        )
        yield Finding("ok", "normalisation", "states", message, numbers)


def _acting(policy: ChunkPolicy, batch: ChunkBatch, served: Observation) -> Iterator[Finding]:
    """Actions of the served path against those that training would sample with the same noise."""
    try:
        acted = Actor(policy).act(served, torch.Generator().manual_seed(0)).cpu()
    except FlowRLError as error:
        yield Finding(
            "error", "normalisation", "acting", f"the policy cannot act on rows of the replay: {error}"
        )
        return
    noise = torch.randn((len(batch), policy.noise_size), generator=torch.Generator().manual_seed(0))
    context = policy.encode(batch.observation.to(policy.device))
    expected = policy.raw_action(policy.sample(context, noise.to(policy.device))).cpu()
    half = policy.get_buffer("action_half_range").cpu()
    gap = float(((acted - expected).abs() / half).max())
    if not torch.isfinite(acted).all():
        message = "the policy answers rows of the replay with values that are not finite; it cannot be used"
        yield Finding("error", "normalisation", "acting", message)
    elif gap > TOLERANCE:
        message = (
            f"with the same noise, served actions differ from those of the trained path by {gap:.3g} of half "
            "their range; the served path skips or repeats a step of the policy"
        )
        yield Finding("error", "normalisation", "acting", message, {"gap": gap})
    else:
        agree = f"to {gap:.1g}" if gap else "to the bit"
        message = f"{len(acted)} chunks, served and trained path agree {agree}"
        yield Finding("ok", "normalisation", "acting", message, {"gap": gap})


def _actions(policy: ChunkPolicy, batch: ChunkBatch) -> Iterator[Finding]:
    """Chunks of the replay to the policy's units and back; those beyond its bounds are clipped, so left out."""
    generated = batch.action.to(policy.device)
    flat = policy.flat_action(generated)
    back = policy.raw_action(flat)
    raw = generated[:, policy.chunk.past :][:, : policy.chunk.length]
    centre, half = policy.get_buffer("action_centre"), policy.get_buffer("action_half_range")
    inside = (policy.action_view.unclipped(flat).abs() <= 1).view(raw.shape)
    room = 4 * _EPS * (raw.abs().maximum(centre.abs()) / half)
    off = torch.where(inside, ((back - raw).abs() / half - room).clamp(min=0), 0.0)
    gap, share = float(off.max()), float((~inside).float().mean())
    numbers = {"gap": gap, "clipped_share": share}
    if gap > TOLERANCE:
        worst = policy.spec.action.names[int(off.amax((0, 1)).argmax())]
        message = (
            f"actions do not survive normalisation and back: {worst} changes by {gap:.3g} of half its range; what "
            "the policy learns is not what it would execute"
        )
        yield Finding("error", "normalisation", "actions", message, numbers)
    else:
        clipped = f", {share:.1%} of the values are clipped to the policy's bounds" if share else ""
        message = f"{len(raw)} chunks survive normalisation and back{clipped}"
        yield Finding("ok", "normalisation", "actions", message, numbers)


def _largest(first: Tensor, second: Tensor) -> float:
    return float((first - second).abs().max())


def _hint(policy: Normalisation, data: Normalisation) -> str:
    """What may have happened, by which side looks standardised already."""

    def standard(side: Normalisation) -> bool:
        mean, scale = np.asarray(side.state_mean), np.asarray(side.state_scale)
        return bool((np.abs(mean) < 0.1).all() and (np.abs(scale - 1) < 0.1).all())

    if standard(policy) and not standard(data):
        return (
            "the policy expects states that are normalised already, the data is raw: normalise one way only"
        )
    if standard(data) and not standard(policy):
        return "the data is normalised already, the policy normalises again: import it raw"
    return "if unit, frame or task changed, mend the data or fit a policy on it"

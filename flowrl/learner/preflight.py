"""Preflight: what can be known to be wrong before any hour is spent. Also what ``flowrl check`` shows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flowrl.errors import FlowRLError, SpecMismatch
from flowrl.policies.interface import ChunkPolicy
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import EPISODE, Outcome
from flowrl.spec import Spec, compare

Level = Literal["ok", "warning", "error"]
MIN_FREE_BYTES = 500_000_000
OUTSIDE_SHARE = 0.2
"""A dimension with more than this share outside the 1 % to 99 % range of the policy's data is warned of."""


@dataclass(frozen=True)
class Finding:
    """One line of a check: what was looked at, how it stands, and what to do."""

    level: Level
    name: str
    message: str


def check(
    policy: ChunkPolicy | None = None,
    reader: ReplayReader | None = None,
    environment: Spec | None = None,
    directory: Path | None = None,
) -> list[Finding]:
    """Compare whatever is given, by name. Any of the four may be left out."""
    found: list[Finding] = []
    specs = [
        ("policy", None if policy is None else policy.spec.interface()),
        ("replay", None if reader is None else reader.spec),
        ("environment", environment),
    ]
    found += _compare_all([(name, spec) for name, spec in specs if spec is not None])
    if reader is not None:
        found += _replay(reader)
    if policy is not None and reader is not None and not any(f.level == "error" for f in found):
        found += _ranges(policy, reader)
    if directory is not None:
        found += _disk(directory)
    return found


def preflight(policy: ChunkPolicy, reader: ReplayReader, directory: Path) -> list[Finding]:
    """The checks of a run, returned for the log.

    Raises SpecMismatch or FlowRLError when one of them is an error.
    """
    found = check(policy, reader, directory=directory)
    errors = [finding for finding in found if finding.level == "error"]
    if errors:
        lines = "\n".join(f"  {finding.name}: {finding.message}" for finding in errors)
        kind = SpecMismatch if any("against" in finding.name for finding in errors) else FlowRLError
        raise kind(f"preflight refused the run:\n{lines}")
    return found


def to_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Findings as JSON values."""
    return [asdict(finding) for finding in findings]


def _compare_all(specs: Sequence[tuple[str, Spec]]) -> Iterator[Finding]:
    for (left_name, left), (right_name, right) in pairwise(specs):
        name = f"{left_name} against {right_name}"
        differences = compare(left, right)
        if not differences:
            sizes = f"S = {left.state_size}, A = {left.action.size}, {left.control_hz:g} Hz"
            yield Finding("ok", name, f"specs match ({sizes})")
        for difference in differences:
            yield Finding("error", name, f"{difference}; use data and policy of the same setting")


def _replay(reader: ReplayReader) -> Iterator[Finding]:
    if reader.episodes == 0:
        yield Finding("error", "replay", "holds no closed episode; collect or import some first")
        return
    outcomes = reader.table[:, EPISODE["outcome"]]
    successes = int((outcomes == Outcome.SUCCESS).sum())
    text = f"{reader.episodes} episodes, {reader.rows:,} steps, {successes} successes"
    yield Finding("ok" if successes else "warning", "replay", text)
    action = reader.spec.action
    low, high = np.asarray(action.low), np.asarray(action.high)
    yield from _actions(action.names, reader.action, low, high)
    yield from _constant("observation", reader.spec.state_dimension_names(), reader.state)


def _actions(
    names: Sequence[str], actions: NDArray[Any], low: NDArray[Any], high: NDArray[Any]
) -> Iterator[Finding]:
    outside = ((actions < low - 1e-4) | (actions > high + 1e-4)).mean(axis=0)
    for name, share in zip(names, outside, strict=True):
        if share > 0:
            message = (
                f"{share:.1%} of the steps lie outside the bounds; import again with a rule (clip, rescale)"
            )
            yield Finding("error", f"action {name}", message)
    if not outside.any():
        yield Finding("ok", "action range", "every executed action lies within the bounds")


def _constant(kind: str, names: Sequence[str], values: NDArray[Any]) -> Iterator[Finding]:
    constant = [name for name, spread in zip(names, values.std(axis=0), strict=True) if spread < 1e-6]
    if constant:
        message = f"constant in this data, so nothing is learned from them: {', '.join(constant)}"
        yield Finding("warning", f"{kind} dimensions", message)


def _ranges(policy: ChunkPolicy, reader: ReplayReader) -> Iterator[Finding]:
    normalisation = policy.spec.normalisation
    assert normalisation is not None
    low, high = np.asarray(normalisation.state_q01), np.asarray(normalisation.state_q99)
    outside = ((reader.state < low) | (reader.state > high)).mean(axis=0)
    names = reader.spec.state_dimension_names()
    far = [f"{name} {share:.0%}" for name, share in zip(names, outside, strict=True) if share > OUTSIDE_SHARE]
    if far:
        message = f"outside the 1 % to 99 % range the policy was trained on: {', '.join(far)}"
        yield Finding("warning", "observation range", message)
    else:
        yield Finding("ok", "observation range", "within what the policy was trained on")
    lengths = reader.table[:, EPISODE["length"]]
    if int(lengths.min()) < policy.chunk.length:
        short = int((lengths < policy.chunk.length).sum())
        message = (
            f"{short} episodes are shorter than a chunk ({policy.chunk.length}); strict cutting drops them"
        )
        yield Finding("warning", "chunk length", message)


def _disk(directory: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(directory).free
    if free < MIN_FREE_BYTES:
        message = (
            f"{free / 1e6:.0f} MB free in {directory}, at least {MIN_FREE_BYTES / 1e6:.0f} MB are needed"
        )
        yield Finding("error", "disk", message)
    else:
        yield Finding("ok", "disk", f"{free / 1e9:.1f} GB free")

"""Which frames of a replay show success and which do not, split by episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flowrl.errors import DataError
from flowrl.policies.observation import Observation
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import EPISODE, Floats, Ints, Outcome
from flowrl.spec import IMAGES, Feature

KNOWN = (Outcome.SUCCESS, Outcome.FAILURE, Outcome.TIMEOUT)
"""Episodes of which somebody knows whether they succeeded; the others teach nothing here."""


@dataclass(frozen=True)
class Frames:
    """Rows with and without success: row r, or -(e + 1) for the final observation of episode e."""

    positive: Ints
    negative: Ints


@dataclass(frozen=True)
class Split:
    """Episodes of a reader that train and that validate."""

    training: Ints
    validation: Ints


def episode_frames(reader: ReplayReader, episode: int) -> Ints:
    """Every observation of an episode in order (L or L + 1,), its final one last where there is one."""
    row = reader.table[episode]
    first, length = int(row[EPISODE["first_row"]]), int(row[EPISODE["length"]])
    final = [-(episode + 1)] if row[EPISODE["has_final"]] else []
    return np.append(np.arange(first, first + length), final).astype(np.int64)


def succeeded(reader: ReplayReader, episode: int) -> bool:
    """Whether an episode succeeded, by the reward that the reader shows."""
    return bool(reader.table[episode, EPISODE["outcome"]] == Outcome.SUCCESS)


def split_episodes(reader: ReplayReader, share: float, seed: int) -> Split:
    """Split the episodes of known outcome at random: the share of the successes, and that of the failures.

    At least one of each in both parts. Raises DataError when there are too few.
    """
    outcomes = reader.table[:, EPISODE["outcome"]] if reader.episodes else np.empty(0, np.int64)
    known = np.isin(outcomes, KNOWN)
    success = outcomes == Outcome.SUCCESS
    random = np.random.default_rng(seed)
    parts: list[tuple[Ints, Ints]] = []
    for members, what, remedy in (
        (np.flatnonzero(known & success), "successful", "record or label some: flowrl reward label"),
        (np.flatnonzero(known & ~success), "failed", "record some, for example with an early policy"),
    ):
        if len(members) < 2:
            raise DataError(
                f"replay {str(reader.path)!r} has {len(members)} {what} episodes of {reader.episodes}; a "
                f"classifier needs at least 2, one to train and one to validate: {remedy}"
            )
        shuffled = random.permutation(members)
        held = min(max(round(share * len(members)), 1), len(members) - 1)
        parts.append((np.sort(shuffled[held:]), np.sort(shuffled[:held])))
    (a, b), (c, d) = parts
    return Split(np.sort(np.concatenate([a, c])), np.sort(np.concatenate([b, d])))


def select(reader: ReplayReader, episodes: Ints, positives: int, margin: int) -> Frames:
    """The frames of episodes: the last ``positives`` of successful ones; all of failed ones, and those of
    successful ones that lie more than ``margin`` frames before the last ``positives``."""
    positive: list[Ints] = []
    negative: list[Ints] = []
    for episode in episodes.tolist():
        frames = episode_frames(reader, episode)
        if succeeded(reader, episode):
            positive.append(frames[-positives:])
            negative.append(frames[: max(len(frames) - positives - margin, 0)])
        else:
            negative.append(frames)
    return Frames(np.concatenate(positive), np.concatenate(negative))


def find_cameras(available: tuple[Feature, ...], wanted: list[str] | None) -> tuple[Feature, ...]:
    """The cameras by full name or without ``observation.images.``; all when none is named.

    Raises DataError naming what there is.
    """
    by_name = {camera.name: camera for camera in available}
    names = list(by_name) if wanted is None else [n if n in by_name else IMAGES + n for n in wanted]
    missing = [name for name in names if name not in by_name]
    if missing or not names:
        raise DataError(
            f"the replay has no camera {', '.join(missing) or 'at all'}; it has "
            f"{', '.join(by_name) or 'none'}: a success classifier looks at frames"
        )
    return tuple(by_name[name] for name in names)


def observe(reader: ReplayReader, cameras: tuple[Feature, ...], rows: Ints) -> Observation:
    """The observations at rows, with those cameras."""
    images: Mapping[str, Tensor] = {
        camera.name: reader.frames.pixels(camera.name, rows) for camera in cameras
    }
    return Observation(torch.from_numpy(states(reader, rows)), images)


def states(reader: ReplayReader, rows: Ints) -> Floats:
    """Flat states (B, S) at rows, final observations included."""
    found = reader.state.take(np.maximum(rows, 0), axis=0)
    ends = rows < 0
    found[ends] = reader.final[-rows[ends] - 1]
    return found

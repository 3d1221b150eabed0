"""Camera frames: dark, without contrast, frozen; and streams that seem to disagree about a camera.

A few stretches of consecutive frames are read per camera and stream. Names and sizes are compared with the
specs (`flowrl.preflight.interfaces`); what a picture shows can only be suspected, so nothing here is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from flowrl.preflight.findings import Finding
from flowrl.preflight.rows import Rows
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import EPISODE, Ints

DARK = 3
"""A frame without a pixel value above this (of 255) is black, or holds fractions of 0 to 1 as integers."""
FLAT = 1.0
"""A frame whose values deviate less than this from their mean shows nothing."""
BAD_SHARE = 0.02
FROZEN_SHARE = 0.6
"""A camera at half the control rate repeats every second frame, which is no fault."""
APART = 8.0
"""Mean pictures differ by at least so many grey levels before two of them can seem exchanged."""
_THUMBNAIL = 8
_MOVED = 1e-5

Picture = NDArray[np.float64]
"""A mean frame, (3, 8, 8), 0 to 255."""


@dataclass(frozen=True)
class View:
    """What one camera of one stream shows: its mean picture, and shares of the frames looked at."""

    stream: str
    camera: str
    picture: Picture
    dark: float
    fractions: bool
    flat: float
    frozen: float
    frames: int


def look(rows: Rows, name: str = "") -> list[View]:
    """Every camera of every stream, by a few stretches of frames. ``name`` precedes the streams' names."""
    reader, views = rows.reader, list[View]()
    for index, stream in enumerate(reader.streams):
        starts = _starts(rows, np.flatnonzero(rows.stream[rows.going_on] == index))
        for camera in reader.spec.cameras if len(starts) else ():
            views.append(_view(reader, camera.name, f"{name}{stream}", starts, rows.limits.window))
    return views


def check_cameras(views: Sequence[View]) -> Iterator[Finding]:
    """Findings about each view, and about pairs of streams."""
    for camera in dict.fromkeys(view.camera for view in views):
        same = [view for view in views if view.camera == camera]
        found = [finding for view in same for finding in _one(view)]
        if not found:
            frames, level = sum(view.frames for view in same), np.mean([v.picture.mean() for v in same])
            message = f"{frames} frames looked at, mean brightness {level:.0f} of 255"
            yield Finding("ok", "cameras", camera, message, {"frames": frames, "brightness": float(level)})
        yield from found
    streams = list(dict.fromkeys(view.stream for view in views))
    for first, second in combinations(streams, 2):
        left, right = ({v.camera: v for v in views if v.stream == name} for name in (first, second))
        crossed = list(_exchanged(left, right))
        yield from (finding for finding, _ in crossed)
        # Of exchanged cameras the colours differ too.
        known = {camera for _, pair in crossed for camera in pair}
        yield from _channels({name: view for name, view in left.items() if name not in known}, right)


def _starts(rows: Rows, chosen: Ints) -> list[int]:
    """Rows at which stretches begin, spread over the stream."""
    if not len(chosen):
        return []
    count = min(rows.limits.windows, len(chosen))
    places = chosen[np.unique(np.linspace(0, len(chosen) - 1, count).astype(int))]
    return [int(row) for row in rows.index[rows.going_on[places]]]


def _view(reader: ReplayReader, camera: str, stream: str, starts: Sequence[int], window: int) -> View:
    frames, repeats, moving = list[NDArray[np.uint8]](), 0, 0
    ends = reader.table[:, EPISODE["first_row"]] + reader.table[:, EPISODE["length"]]
    for start in starts:
        stop = min(start + window, int(ends[np.searchsorted(ends, start, side="right")]))
        data = reader.frames.encoded(camera, list(range(start, stop)))
        frames.append(reader.frames.pixels(camera, [start])[0].numpy())
        moved = np.abs(np.diff(reader.state[start:stop], axis=0)).max(axis=1, initial=0.0) > _MOVED
        same = np.array([a == b for a, b in pairwise(data)], np.bool_)
        moving += int(moved.sum())
        repeats += int((moved & same).sum())
    peaks = np.array([frame.max() for frame in frames])
    spread = np.array([frame.std() for frame in frames])
    return View(
        stream,
        camera,
        np.mean([_thumbnail(frame) for frame in frames], axis=0),
        float((peaks <= DARK).mean()),
        # Of a black camera no pixel is lit; fractions of 0 to 1, rounded, are 1 where the picture is light.
        bool((peaks <= DARK).all() and np.mean([(frame > 0).mean() for frame in frames]) > 0.05),
        float(((spread < FLAT) & (peaks > DARK)).mean()),
        repeats / moving if moving else 0.0,
        len(frames),
    )


def _thumbnail(frame: NDArray[np.uint8]) -> Picture:
    picture = Image.fromarray(np.ascontiguousarray(frame.transpose(1, 2, 0)))
    small = picture.resize((_THUMBNAIL, _THUMBNAIL), Image.Resampling.BOX)
    return np.asarray(small, np.float64).transpose(2, 0, 1)


def _one(view: View) -> Iterator[Finding]:
    where = f"of {view.frames} frames of stream {view.stream}"
    if view.fractions:
        message = (
            f"no value above {DARK} of 255 in any {where}, but not black: they look like fractions of 0 to 1 "
            "that were stored as integers; multiply the images by 255 and import again"
        )
        yield Finding("warning", "cameras", view.camera, message, {"dark_share": view.dark})
    elif view.dark > BAD_SHARE:
        message = f"{view.dark:.0%} {where} are black; look at the camera, and leave these episodes out"
        yield Finding("warning", "cameras", view.camera, message, {"dark_share": view.dark})
    if view.flat > BAD_SHARE:
        message = f"{view.flat:.0%} {where} are one plain colour; look at the camera or its decoder"
        yield Finding("warning", "cameras", view.camera, message, {"flat_share": view.flat})
    if view.frozen > FROZEN_SHARE and not (view.dark > BAD_SHARE or view.flat > BAD_SHARE):
        message = (
            f"{view.frozen:.0%} of consecutive frames of stream {view.stream} are identical while the state "
            "changes: the camera is frozen, or much slower than the control rate; record again, or without it"
        )
        yield Finding("warning", "cameras", view.camera, message, {"frozen_share": view.frozen})


def _distance(first: Picture, second: Picture) -> float:
    return float(np.abs(first - second).mean())


def _exchanged(left: dict[str, View], right: dict[str, View]) -> Iterator[tuple[Finding, tuple[str, str]]]:
    """Pairs of cameras whose mean pictures fit much better when their names are exchanged in one stream."""
    shared = [name for name in left if name in right]
    for one, other in combinations(shared, 2):
        pictures = left[one].picture, left[other].picture, right[one].picture, right[other].picture
        straight = _distance(pictures[0], pictures[2]) + _distance(pictures[1], pictures[3])
        crossed = _distance(pictures[0], pictures[3]) + _distance(pictures[1], pictures[2])
        if straight > 2 * APART and crossed < straight / 2:
            message = (
                f"{one} of stream {left[one].stream} looks like {other} of stream {right[one].stream}, and the "
                f"reverse (mean pictures differ by {crossed / 2:.0f} grey levels, by {straight / 2:.0f} under their "
                "names); look at both, and import one again with the names exchanged"
            )
            numbers = {"straight": straight / 2, "crossed": crossed / 2}
            yield Finding("warning", "cameras", "exchanged cameras", message, numbers), (one, other)


def _channels(left: dict[str, View], right: dict[str, View]) -> Iterator[Finding]:
    """Cameras whose mean pictures fit much better with red and blue exchanged in one stream."""
    for camera in (name for name in left if name in right):
        mine, theirs = left[camera].picture, right[camera].picture
        straight, turned = _distance(mine, theirs), _distance(mine, theirs[::-1])
        if straight > APART and turned < straight / 2:
            message = (
                f"red and blue seem exchanged between streams {left[camera].stream} and {right[camera].stream} "
                f"(mean pictures differ by {straight:.0f} grey levels, by {turned:.0f} when exchanged); frames "
                "are RGB: import the BGR one again"
            )
            yield Finding("warning", "cameras", camera, message, {"straight": straight, "turned": turned})

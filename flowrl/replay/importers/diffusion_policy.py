"""Import a replay buffer of diffusion_policy (zarr) into a new stream. docs/import.md says how.

No environment is needed: the spec is made from the arrays, unless one is given to import for. Nobody says
how an episode ended, so outcomes are unknown unless the user says that all succeed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from flowrl.errors import DataError, SpecMismatch, UsageError
from flowrl.replay.frames import FrameCodec
from flowrl.replay.importers.actions import ActionRule, ActionTransform, RangeCounter, apply_rule
from flowrl.replay.importers.buffer_features import MARGIN, choose_arrays, made_spec, require_fit
from flowrl.replay.importers.episodes import DemonstrationDone, Trajectory, commit_rule, write_episode
from flowrl.replay.importers.images import StoredImages, encoded_rows, resize_note
from flowrl.replay.importers.provenance import first_of, keep_report, require_new, source_digest
from flowrl.replay.importers.replay_buffer import ReplayBuffer
from flowrl.replay.importers.report import Dropped, ImportReport
from flowrl.replay.importers.staging import staged
from flowrl.replay.importers.target import Target
from flowrl.replay.schema import Floats, Kind, OutcomeBy, Source
from flowrl.replay.writer import StreamWriter

_BOUNDS_NOTE = (
    f"the bounds of the actions are the extremes in the data, moved out by {MARGIN:.0%} of their range: the "
    "buffer does not say what the controller accepts"
)


@dataclass(frozen=True)
class BufferOptions:
    """How to import.

    Attributes:
        control_hz: the control rate; required unless a target is given.
        features: which arrays of ``data`` become which feature; empty takes all by their own names.
        cameras: of the image arrays only these cameras; empty takes all.
        image_size: height and width to resize images to; None keeps theirs.
        success: every episode succeeds. Otherwise outcomes are unknown.
        actions: what to do about actions outside a target's bounds.
        limit: import only the first so many episodes.
        source: who acted.
        replace: replace the stream when it is an earlier import.
        allow_duplicate: import episodes that another stream of the replay already holds.
        codec: how camera frames are stored.
    """

    control_hz: float | None = None
    features: Mapping[str, str] = field(default_factory=dict[str, str])
    cameras: Sequence[str] = ()
    image_size: int | None = None
    success: bool = False
    actions: ActionRule = "refuse"
    limit: int | None = None
    source: Source = Source.HUMAN
    replace: bool = False
    allow_duplicate: bool = False
    codec: FrameCodec = field(default_factory=FrameCodec)


@dataclass(frozen=True)
class _Plan:
    """What was decided before the first episode is written. ``images`` is by feature name."""

    target: Target
    names: list[str]
    observations: Floats
    actions: Floats
    images: Mapping[str, StoredImages]
    transform: ActionTransform
    dropped: list[Dropped]
    warnings: list[str]


def import_diffusion_policy(
    path: str | Path,
    replay: str | Path,
    stream: str,
    target: Target | None = None,
    options: BufferOptions | None = None,
    on_demonstration: Callable[[DemonstrationDone], None] = lambda done: None,
) -> ImportReport:
    """Import a buffer into the new stream ``<replay>/<stream>``, whole or not at all.

    Raises:
        UsageError: the path is no replay buffer, or an option is missing or does not fit it.
        DataError: an array is missing, damaged, not finite, of another length, or needs a codec that is not
            installed; or actions leave the target's bounds without a rule.
        SpecMismatch: the arrays do not fit the target; each difference is named.
        ReplayError: the stream exists, or another stream holds the same episodes.
    """
    started, options = time.perf_counter(), options or BufferOptions()
    path, replay = Path(path), Path(replay)
    with ReplayBuffer(path) as buffer, staged(replay, stream, options.replace) as aside:
        names, beyond = first_of(buffer.names, options.limit, path.name)
        sha256 = source_digest(path)
        if not options.allow_duplicate:
            require_new(replay, stream, sha256, path.name, names)
        plan = _prepare(buffer, names, beyond, target, options)
        spec, rule = plan.target.interface, commit_rule(plan.target.interface)
        with StreamWriter.create(aside, stream, spec, Kind.IMPORT, rule, options.codec) as writer:
            steps = _write(buffer, writer, plan, options, on_demonstration)
        report = ImportReport(
            stream=stream,
            source=path.name,
            sha256=sha256,
            format="diffusion_policy",
            environment=plan.target.name,
            episodes=len(names),
            steps=steps,
            successes=len(names) if options.success else 0,
            demonstrations=tuple(names),
            observations="file",
            rule=options.actions,
            ranges=plan.transform.ranges,
            dropped=tuple(plan.dropped),
            warnings=tuple(plan.warnings),
            seconds=time.perf_counter() - started,
        )
        keep_report(report, aside / stream)
    return report


def _prepare(
    buffer: ReplayBuffer,
    names: list[str],
    beyond: list[Dropped],
    target: Target | None,
    options: BufferOptions,
) -> _Plan:
    """Check all arrays but the pixels before anything is written."""
    _require_options(target, options)
    chosen, dropped = choose_arrays(buffer, options.features, options.cameras)
    actions = buffer.numbers("action")
    if actions.ndim != 2:
        raise DataError(f"{buffer.path.name}: data/action has shape {actions.shape}, expected (steps, A)")
    if target is None:
        made = made_spec(buffer, chosen, actions, options.control_hz or 0.0, options.image_size)
        target, notes = Target("", made), [_BOUNDS_NOTE]
    else:
        dropped += require_fit(buffer, chosen, actions.shape[1], target)
        notes = list[str]()
    spec = target.interface
    keys = {name: key for key, name in chosen.items()}
    parts = [buffer.numbers(keys[feature.name]) for feature in spec.state_features]
    cameras = spec.cameras
    images = {camera.name: buffer.images(keys[camera.name]) for camera in cameras}
    notes += [note for camera in cameras for note in resize_note(camera, [images[camera.name].size])]
    used = ["action", *(keys[feature.name] for feature in spec.observation)]
    notes += [note for key in used if (note := buffer.absent_chunks(key))]
    if not options.success:
        notes.append("nobody says how the episodes ended; imported with outcome unknown")
    counter = RangeCounter(spec.action)
    counter.add(actions[: buffer.span(len(names) - 1).stop])
    return _Plan(
        target,
        names,
        np.concatenate([part.reshape(buffer.rows, -1) for part in parts], axis=1),
        actions,
        images,
        apply_rule(options.actions, counter.ranges(), buffer.path.name),
        [*beyond, *dropped],
        notes,
    )


def _require_options(target: Target | None, options: BufferOptions) -> None:
    rate = options.control_hz
    if target is None and rate is None:
        raise UsageError("a replay buffer does not state its control rate; give it with --control-hz")
    if rate is not None and not (rate > 0 and np.isfinite(rate)):
        raise UsageError(f"the control rate is {rate} Hz; it must be above 0")
    if target is not None and rate is not None and rate != target.interface.control_hz:
        raise SpecMismatch(
            f"--control-hz is {rate}, environment {target.name!r} runs at {target.interface.control_hz} Hz; "
            "leave the option out if the buffer was recorded at that rate"
        )
    if target is not None and (options.cameras or options.image_size is not None):
        raise UsageError(
            f"environment {target.name!r} says which cameras it has and their size; leave out --camera and "
            "--image-size"
        )
    if options.image_size is not None and options.image_size < 1:
        raise UsageError(f"the image size is {options.image_size}; it must be at least 1 pixel")


def _write(
    buffer: ReplayBuffer,
    writer: StreamWriter,
    plan: _Plan,
    options: BufferOptions,
    on_demonstration: Callable[[DemonstrationDone], None],
) -> int:
    """Write the episodes; the number of steps."""
    cameras, total = plan.target.interface.cameras, 0
    for index, name in enumerate(plan.names):
        span = buffer.span(index)
        steps = span.stop - span.start
        frames = encoded_rows(cameras, plan.images, range(span.start, span.stop), options.codec)
        succeeded = np.arange(steps) == steps - 1 if options.success else None
        trajectory = Trajectory(plan.observations[span], None, succeeded, frames if cameras else ())
        actions = plan.transform(plan.actions[span])
        write_episode(writer, trajectory, actions, plan.target, options.source, OutcomeBy.HUMAN)
        total += steps
        success = True if options.success else None
        on_demonstration(DemonstrationDone(name, index + 1, len(plan.names), steps, success))
    return total

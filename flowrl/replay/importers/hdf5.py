"""Import demonstrations from HDF5 into a new stream. docs/import.md says what is kept, dropped and judged.

Reward is 1 on the step that first solves the task and 0 elsewhere. All steps are kept, also those after
the first success (people hold still before they stop recording), so that counts match the file; the
episode ends on its last step. ``until_success`` cuts there instead, as the environment itself does.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from flowrl.errors import DataError
from flowrl.replay.frames import FrameCodec
from flowrl.replay.importers import recording
from flowrl.replay.importers.acting import Acting, acting_of, shared_steps
from flowrl.replay.importers.actions import (
    ActionRule,
    ActionTransform,
    RangeCounter,
    apply_rule,
    require_finite,
)
from flowrl.replay.importers.demonstrations import Demonstration, DemonstrationFile
from flowrl.replay.importers.episodes import DemonstrationDone, Trajectory, commit_rule, write_episode
from flowrl.replay.importers.provenance import first_of, keep_report, require_new, source_digest
from flowrl.replay.importers.report import Dropped, ImportReport
from flowrl.replay.importers.staging import staged
from flowrl.replay.importers.target import Target
from flowrl.replay.importers.trajectories import (
    ObservationSource,
    camera_notes,
    choose_source,
    read_observations,
    replay_states,
    used_keys,
)
from flowrl.replay.schema import Kind, Source
from flowrl.replay.writer import StreamWriter

_SAMPLES = 3


@dataclass(frozen=True)
class ImportOptions:
    """How to import.

    Attributes:
        actions: what to do about actions outside the controller's range.
        until_success: cut each demonstration at its first success.
        limit: import only the first so many demonstrations.
        filter_key: import only those listed under this key of the file's ``mask``.
        observations: where observations come from (see `choose_source`).
        source: who acted in the demonstrations; where the file has flags of who acts, what its users are.
        replace: replace the stream when it is an earlier import.
        allow_duplicate: import demonstrations that another stream of the replay already holds.
        allow_mismatch: import what was recorded under another control rate, robot or controller.
        codec: how camera frames are stored.
    """

    actions: ActionRule = "refuse"
    until_success: bool = False
    limit: int | None = None
    filter_key: str = ""
    observations: ObservationSource = "auto"
    source: Source = Source.HUMAN
    replace: bool = False
    allow_duplicate: bool = False
    allow_mismatch: bool = False
    codec: FrameCodec = field(default_factory=FrameCodec)


@dataclass
class _Tally:
    """What is counted while episodes are written."""

    steps: int = 0
    successes: int = 0
    cut: int = 0
    one_of_several: int = 0
    takeovers: int = 0
    acted: Counter[str] = field(default_factory=Counter[str])
    warnings: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class _Plan:
    """What was decided before the first episode is written."""

    names: list[str]
    transform: ActionTransform
    observations: Literal["states", "file"]
    dropped: list[Dropped]
    warnings: list[str]


def import_hdf5(
    path: str | Path,
    replay: str | Path,
    stream: str,
    target: Target,
    options: ImportOptions | None = None,
    on_demonstration: Callable[[DemonstrationDone], None] = lambda done: None,
) -> ImportReport:
    """Import a file into the new stream ``<replay>/<stream>``, whole or not at all.

    Raises:
        UsageError: the file is missing or of an unknown kind, or an option does not fit it.
        DataError: data is missing, damaged, not finite, of another size, or outside the controller's
            range without a rule; the message names demonstration, step and dimension.
        SpecMismatch: the file was recorded in another environment or under another control.
        ReplayError: the stream exists, or another stream holds the same demonstrations.
    """
    started, options = time.perf_counter(), options or ImportOptions()
    path, replay = Path(path), Path(replay)
    with DemonstrationFile(path) as file, staged(replay, stream, options.replace) as aside:
        sha256 = source_digest(path)
        names, dropped = _select(file, options)
        if not options.allow_duplicate:
            require_new(replay, stream, sha256, path.name, names)
        plan = _prepare(file, names, dropped, target, options)
        spec, rule = target.interface, commit_rule(target.interface)
        with StreamWriter.create(aside, stream, spec, Kind.IMPORT, rule, options.codec) as writer:
            tally = _write(file, writer, plan, target, options, on_demonstration)
        if tally.cut:
            plan.dropped.append(Dropped("steps after the first success", tally.cut, "--until-success"))
        if tally.one_of_several:
            why = "a step has one source; at these steps some of the users acted"
            plan.dropped.append(Dropped("which of the users acted", tally.one_of_several, why))
        report = ImportReport(
            stream=stream,
            source=path.name,
            sha256=sha256,
            format=file.format,
            environment=target.name,
            episodes=len(plan.names),
            steps=tally.steps,
            successes=tally.successes,
            demonstrations=tuple(plan.names),
            observations=plan.observations,
            rule=options.actions,
            ranges=plan.transform.ranges,
            dropped=tuple(plan.dropped),
            warnings=(*plan.warnings, *tally.warnings),
            seconds=time.perf_counter() - started,
            acted=dict(sorted(tally.acted.items())),
            takeovers=tally.takeovers,
        )
        keep_report(report, aside / stream)
    return report


def _select(file: DemonstrationFile, options: ImportOptions) -> tuple[list[str], list[Dropped]]:
    """The demonstrations to import, and those left out with the reason."""
    names, dropped = file.names, list[Dropped]()
    if options.filter_key:
        kept = file.selected(options.filter_key)
        _note(dropped, len(names) - len(kept), f"not in mask/{options.filter_key}")
        names = kept
    full = [name for name in names if file.length(name)]
    _note(dropped, len(names) - len(full), "has no steps")
    kept, beyond = first_of(full, options.limit, file.path.name)
    return kept, [*dropped, *beyond]


def _note(dropped: list[Dropped], count: int, reason: str) -> None:
    if count:
        dropped.append(Dropped("demonstrations", count, reason))


def _prepare(
    file: DemonstrationFile,
    names: list[str],
    dropped: list[Dropped],
    target: Target,
    options: ImportOptions,
) -> _Plan:
    """Check the whole file before anything is simulated."""
    spec, counter, samples = target.interface.action, RangeCounter(target.interface.action), []
    for name in names:
        demonstration = file.read(name)
        if demonstration.actions.shape[1] != spec.size:
            raise DataError(
                f"{demonstration.where}: actions have {demonstration.actions.shape[1]} dimensions, environment "
                f"{target.name!r} has {spec.size} ({', '.join(spec.names)}); it was recorded elsewhere"
            )
        labels = [f"action[{i}] ({label})" for i, label in enumerate(spec.names)]
        require_finite(demonstration.actions, labels, demonstration.where)
        counter.add(demonstration.actions)
        if len(samples) < _SAMPLES:
            samples.append(demonstration)
    facts = {**_clock(samples[0]), **file.facts}
    warnings = recording.require_environment(facts, target, file.path.name, options.allow_mismatch)
    transform = apply_rule(options.actions, counter.ranges(), file.path.name)
    observations, notes = choose_source(options.observations, samples, target)
    if observations == "file" and target.interface.cameras:
        notes += camera_notes(file, names, target.interface)
    return _Plan(
        names,
        transform,
        observations,
        [*dropped, *_left_out(file, names, target, observations)],
        [*warnings, *notes],
    )


def _clock(demonstration: Demonstration) -> dict[str, float]:
    """The control rate that the states show, for files that do not state it."""
    states = demonstration.states
    rate = None if states is None or not np.isfinite(states).all() else recording.control_rate(states)
    return {} if rate is None else {"control_freq": rate}


def _left_out(
    file: DemonstrationFile, names: Sequence[str], target: Target, observations: str
) -> list[Dropped]:
    """Datasets of the file that have no place in a stream."""
    out = [
        Dropped(f"dataset {key}", count, "success is judged on states or rewards")
        if key == "dones"
        else Dropped(f"dataset {key}", count, "a stream has no column for it")
        for key, count in file.ignored(names).items()
    ]
    keys, obs = file.keys(names[0])
    if observations == "states":
        rewards = "rewards" in keys
        out += [Dropped("dataset rewards", len(names), "judged anew by the simulator")] if rewards else []
        out += [Dropped("dataset obs", len(names), "recovered from the states")] if obs else []
        return out
    used = used_keys(target.interface)
    reason = "the environment's interface has no such feature"
    return out + [Dropped(f"observation {key}", len(names), reason) for key in obs if key not in used]


def _write(
    file: DemonstrationFile,
    writer: StreamWriter,
    plan: _Plan,
    target: Target,
    options: ImportOptions,
    on_demonstration: Callable[[DemonstrationDone], None],
) -> _Tally:
    tally = _Tally()
    for index, name in enumerate(plan.names, start=1):
        demonstration = file.read(name)
        actions = plan.transform(demonstration.actions)
        if plan.observations == "states":
            trajectory = replay_states(demonstration, actions, target, options.codec)
        else:
            trajectory = read_observations(demonstration, target.interface, options.codec)
        tally.warnings += _warnings(name, trajectory)
        if options.until_success:
            trajectory = _cut(trajectory)
        steps = len(trajectory.observations)
        success = None if trajectory.succeeded is None else bool(trajectory.succeeded.any())
        acting = acting_of(demonstration.flags, options.source, len(actions)).first(steps)
        write_episode(writer, trajectory, actions[:steps], target, acting)
        _count_acting(tally, acting, demonstration)
        tally.steps += steps
        tally.successes += success is True
        tally.cut += len(actions) - steps
        on_demonstration(DemonstrationDone(name, index, len(plan.names), steps, success))
    return tally


def _count_acting(tally: _Tally, acting: Acting, demonstration: Demonstration) -> None:
    tally.acted.update(Source(int(each)).name.lower() for each in acting.source)
    tally.takeovers += acting.takeovers
    first = {key: flags[: len(acting.source)] for key, flags in demonstration.flags.items()}
    tally.one_of_several += shared_steps(first)


def _warnings(name: str, trajectory: Trajectory) -> list[str]:
    succeeded = trajectory.succeeded
    if succeeded is None:
        return [f"{name}: nobody can tell whether it succeeds; imported with outcome unknown"]
    if not succeeded.any():
        return [f"{name} never solves the task; imported as a failure"]
    if not succeeded[-1]:
        first = int(succeeded.argmax())
        return [f"{name} solves the task at step {first}, but not at its end; consider --until-success"]
    return []


def _cut(trajectory: Trajectory) -> Trajectory:
    """The trajectory up to the step that first solves the task; the whole one when none does."""
    if trajectory.succeeded is None or not trajectory.succeeded.any():
        return trajectory
    end = int(trajectory.succeeded.argmax()) + 1
    if end == len(trajectory.observations):
        return trajectory
    return Trajectory(
        observations=trajectory.observations[:end],
        final=trajectory.observations[end],
        succeeded=trajectory.succeeded[:end],
        frames=trajectory.frames[:end],
        final_frames=trajectory.frames[end] if trajectory.frames else None,
    )

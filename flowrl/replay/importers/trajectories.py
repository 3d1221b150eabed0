"""From a demonstration to the observations and successes of an episode, by one of two ways.

*States*: every recorded simulator state is set in a simulator, which gives its observation and says
whether it solves the task: exactly what a policy will see. *File*: robomimic's recorded ``obs`` are
mapped by name, cameras too. docs/import.md has the mapping table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flowrl.errors import DataError
from flowrl.policies.observation import flat_state
from flowrl.replay.frames import FrameCodec, encoded_frames
from flowrl.replay.importers.actions import require_finite
from flowrl.replay.importers.demonstrations import Demonstration, DemonstrationFile
from flowrl.replay.importers.episodes import Trajectory
from flowrl.replay.importers.images import EncodedFrames, StoredImages, encoded_rows, resize_note
from flowrl.replay.importers.target import StateReplayer, Target
from flowrl.replay.schema import Array, Floats
from flowrl.spec import IMAGES, Feature, Spec

ObservationSource = Literal["auto", "states", "file"]

AGREEMENT = 1e-3
"""Recorded observations that differ more than this from the simulator's are not taken from the file."""

_ARM_KEYS = (("eef_pos", 3), ("eef_quat", 4), ("gripper_qpos", 2))
_OBJECT_KEYS = ("object", "object-state")
_ROWS_COMPARED = 3


def replay_states(
    demonstration: Demonstration, actions: Floats, target: Target, codec: FrameCodec
) -> Trajectory:
    """Set every state in the simulator. ``actions`` (T, A) are those that will be stored.

    Files hold one state per action, so what the last action led to is not recorded: the simulator
    executes it once from the last state (robomimic's own convention).
    Raises DataError naming the demonstration when the states do not fit the simulator.
    """
    replayer, states = _replayer(target), demonstration.states
    if states is None:
        raise DataError(f"{demonstration.where} has no dataset 'states'; use --observations file")
    require_finite(states, "states", demonstration.where)
    spec, length = target.interface, len(actions)
    rows = np.empty((len(states), spec.state_size), np.float32)
    solved, frames = np.zeros(len(states), np.bool_), list[EncodedFrames]()
    for index, state in enumerate(states):
        seen = _set_state(replayer, state, demonstration.where)
        rows[index] = flat_state(spec, seen)
        frames.append(_frames_of(spec, seen, codec))
        solved[index] = replayer.success()
    if len(states) == length:
        seen = replayer.step(actions[-1])
        rows = np.concatenate([rows, [flat_state(spec, seen)]])
        frames.append(_frames_of(spec, seen, codec))
        solved = np.append(solved, replayer.success())
    if not spec.cameras:
        return Trajectory(rows[:length], rows[length], solved[1:])
    return Trajectory(rows[:length], rows[length], solved[1:], frames[:length], frames[length])


def read_observations(demonstration: Demonstration, spec: Spec, codec: FrameCodec) -> Trajectory:
    """Take the recorded observations; success is a reward of 1, where rewards are 0 or 1.

    The observation after the last action is known when ``next_obs`` holds all of it, cameras too.
    Raises DataError naming demonstration, key and step.
    """
    where = demonstration.where
    rows = _mapped(spec, demonstration.observations, f"{where}: obs")
    require_finite(rows, spec.state_dimension_names(), where)
    final = None
    if not missing_keys(spec, demonstration.next_observations):
        after = _mapped(spec, demonstration.next_observations, f"{where}: next_obs")
        require_finite(after[-1:], spec.state_dimension_names(), f"{where}, after the last step")
        final = after[-1]
    succeeded, cameras = _recorded_success(demonstration), spec.cameras
    if not cameras:
        return Trajectory(rows, final, succeeded)
    frames = encoded_rows(cameras, _by_feature(cameras, demonstration.images), range(len(rows)), codec)
    if final is None or _missing_cameras(cameras, demonstration.next_images):
        return Trajectory(rows, None, succeeded, frames)
    last = [len(rows) - 1]
    after = encoded_rows(cameras, _by_feature(cameras, demonstration.next_images), last, codec)
    return Trajectory(rows, final, succeeded, frames, after[0])


def choose_source(
    wanted: ObservationSource, samples: Sequence[Demonstration], target: Target
) -> tuple[Literal["states", "file"], list[str]]:
    """How observations are recovered, and what the user should know about it.

    ``auto`` takes recorded observations that are complete. Where states and a simulator are at hand, it
    replays the states instead if recorded and simulated observations disagree in a few rows, or if
    rewards do not tell success. Raises DataError naming what is missing.
    """
    first = samples[0]
    cameras = _missing_cameras(target.interface.cameras, first.images)
    lacking = [*missing_keys(target.interface, first.observations), *cameras]
    replayable = first.states is not None and target.replayer is not None
    if wanted == "states" or (wanted == "auto" and lacking):
        if not replayable:
            raise DataError(_nothing_to_observe(first, target, lacking))
        drawn = wanted == "auto" and first.observations and lacking == cameras
        missing = f"states were replayed, because the file has no images {', '.join(cameras)}"
        return "states", [missing] if drawn else []
    if lacking:
        raise DataError(
            f"{first.where}: obs lacks {', '.join(lacking)}; it holds "
            f"{', '.join(sorted([*first.observations, *first.images])) or 'nothing'}. "
            "Use --observations states"
        )
    if wanted == "auto" and replayable and _recorded_success(first) is None:
        return "states", ["states were replayed, because the file's rewards do not tell success"]
    difference = _disagreement(samples, target) if replayable else ""
    if not difference:
        return "file", []
    if wanted == "file":
        return "file", [f"recorded observations differ from the simulator's: {difference}"]
    return "states", [f"states were replayed, because recorded observations differ: {difference}"]


def missing_keys(spec: Spec, observations: Mapping[str, Array]) -> list[str]:
    """What robomimic's keys lack for the features of a spec; features without a mapping are named as such."""
    lacking: list[str] = []
    for feature in spec.state_features:
        options = _keys(feature)
        if not options:
            lacking.append(f"{feature.name} (no key is mapped to it)")
        lacking += [names[0] for names, _ in options if not any(name in observations for name in names)]
    return lacking


def used_keys(spec: Spec) -> set[str]:
    """Every key that may be read for a spec."""
    cameras = {_camera_key(camera) for camera in spec.cameras}
    return cameras | {
        name for feature in spec.state_features for names, _ in _keys(feature) for name in names
    }


def camera_notes(file: DemonstrationFile, names: Sequence[str], spec: Spec) -> list[str]:
    """Check the images of every demonstration, without reading them; what the user should know about them.

    Raises DataError naming demonstration and key of images that are missing or do not fit.
    """
    cameras, unknown_ends = spec.cameras, 0
    sizes: dict[str, set[tuple[int, int]]] = {camera.name: set() for camera in cameras}
    for name in names:
        images, after = file.images(name)
        lacking = _missing_cameras(cameras, images)
        if lacking:
            raise DataError(
                f"{file.path.name}, {name}: obs lacks {', '.join(lacking)}; its images are "
                f"{', '.join(sorted(images)) or 'none'}. Use --observations states, or leave the demonstration out"
            )
        ends = {} if _missing_cameras(cameras, after) else _by_feature(cameras, after)
        unknown_ends += not ends and file.has(name, "next_obs")
        for stored in (_by_feature(cameras, images), ends):
            for key, each in stored.items():
                each.require(file.length(name))
                sizes[key].add(each.size)
    notes = [note for camera in cameras for note in resize_note(camera, sizes[camera.name])]
    if unknown_ends:
        notes.append(
            f"next_obs of {unknown_ends} demonstrations lacks images, so the observation after the last "
            "action is marked as missing there"
        )
    return notes


def _camera_key(camera: Feature) -> str:
    """robosuite's and robomimic's name of a camera's images."""
    return f"{camera.name.removeprefix(IMAGES)}_image"


def _missing_cameras(cameras: Sequence[Feature], images: Mapping[str, StoredImages]) -> list[str]:
    return [key for key in map(_camera_key, cameras) if key not in images]


def _by_feature(cameras: Sequence[Feature], images: Mapping[str, StoredImages]) -> dict[str, StoredImages]:
    return {camera.name: images[_camera_key(camera)] for camera in cameras}


def _frames_of(spec: Spec, observation: Mapping[str, Array], codec: FrameCodec) -> EncodedFrames:
    """The frames that a simulator shows; encoded at once, because pixels fill the memory."""
    cameras = spec.cameras
    frames = encoded_frames(cameras, observation, codec)
    return {camera.name: frame for camera, frame in zip(cameras, frames, strict=True)}


def _keys(feature: Feature) -> list[tuple[tuple[str, ...], int]]:
    """The keys that make up a feature, in order: alternative names and size."""
    if feature.name == "observation.environment_state":
        return [(_OBJECT_KEYS, feature.size)]
    arm_size = sum(size for _, size in _ARM_KEYS)
    if feature.name != "observation.state" or feature.size % arm_size:
        return []
    arms = range(feature.size // arm_size)
    return [((f"robot{arm}_{key}",), size) for arm in arms for key, size in _ARM_KEYS]


def _mapped(spec: Spec, observations: Mapping[str, Array], where: str) -> Floats:
    lacking = missing_keys(spec, observations)
    if lacking:
        raise DataError(f"{where} lacks {', '.join(lacking)}; it holds {', '.join(sorted(observations))}")
    parts: list[Array] = []
    for feature in spec.state_features:
        for names, size in _keys(feature):
            name = next(name for name in names if name in observations)
            values = observations[name]
            if values.shape[1] != size:
                raise DataError(
                    f"{where}/{name} has {values.shape[1]} values, {feature.name} of the environment needs "
                    f"{size}; it was recorded in another task. Use --observations states"
                )
            parts.append(values)
    return np.concatenate(parts, axis=1).astype(np.float32)


def _recorded_success(demonstration: Demonstration) -> NDArray[np.bool_] | None:
    """Success after each step where rewards are sparse (0 or 1); a shaped reward does not tell."""
    rewards = demonstration.rewards
    if rewards is None:
        return None
    require_finite(rewards[:, None], ("reward",), demonstration.where)
    return rewards > 0 if set(np.unique(rewards)) <= {0.0, 1.0} else None


def _disagreement(samples: Sequence[Demonstration], target: Target) -> str:
    """Where recorded observations differ most from the simulator's, in a few rows; empty when they agree."""
    replayer, spec = _replayer(target), target.interface
    worst, text = AGREEMENT, ""
    for demonstration in samples:
        states = demonstration.states
        if states is None or missing_keys(spec, demonstration.observations):
            continue
        recorded = _mapped(spec, demonstration.observations, f"{demonstration.where}: obs")
        for row in np.unique(np.linspace(0, len(recorded) - 1, _ROWS_COMPARED).astype(int)):
            seen = flat_state(spec, _set_state(replayer, states[row], demonstration.where))
            gap = np.abs(seen - recorded[row])
            if gap.max() > worst:
                worst, index = float(gap.max()), int(gap.argmax())
                name = spec.state_dimension_names()[index]
                text = f"{demonstration.name}, step {row}: {name} by {worst:.3g}"
    return text


def _set_state(replayer: StateReplayer, state: NDArray[np.float64], where: str) -> Mapping[str, Array]:
    try:
        return replayer.set_state(state)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def _replayer(target: Target) -> StateReplayer:
    if target.replayer is None:
        raise DataError(f"replaying states needs a simulator of {target.name!r}; none was given")
    return target.replayer


def _nothing_to_observe(demonstration: Demonstration, target: Target, lacking: Sequence[str]) -> str:
    why = "no simulator was given" if demonstration.states is not None else "there is no dataset 'states'"
    return (
        f"{demonstration.where}: observations of {target.name!r} cannot be recovered: {why}, and obs lacks "
        f"{', '.join(lacking) or 'nothing'}. Record states, or the missing keys"
    )

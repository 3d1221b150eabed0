"""From a demonstration to the observations and successes of an episode, by one of two ways.

*States*: every recorded simulator state is set in a simulator, which gives its observation and says
whether it solves the task: exactly what a policy will see. *File*: robomimic's recorded ``obs`` are
mapped by name. docs/import.md has the mapping table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flowrl.errors import DataError
from flowrl.policies.observation import flat_state
from flowrl.replay.importers.actions import require_finite
from flowrl.replay.importers.demonstrations import Demonstration
from flowrl.replay.importers.target import StateReplayer, Target
from flowrl.replay.schema import Array, Floats
from flowrl.spec import Feature, Spec

ObservationSource = Literal["auto", "states", "file"]

AGREEMENT = 1e-3
"""Recorded observations that differ more than this from the simulator's are not taken from the file."""

_ARM_KEYS = (("eef_pos", 3), ("eef_quat", 4), ("gripper_qpos", 2))
_OBJECT_KEYS = ("object", "object-state")
_ROWS_COMPARED = 3


@dataclass(frozen=True)
class Trajectory:
    """T steps: ``observations`` (T, S) before each action; ``final`` (S,) after the last one, if known.

    ``succeeded`` (T,) says whether the task is solved after each action; None when nobody can tell.
    """

    observations: Floats
    final: Floats | None
    succeeded: NDArray[np.bool_] | None


def replay_states(demonstration: Demonstration, actions: Floats, target: Target) -> Trajectory:
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
    solved = np.zeros(len(states), np.bool_)
    for index, state in enumerate(states):
        rows[index] = flat_state(spec, _set_state(replayer, state, demonstration.where))
        solved[index] = replayer.success()
    if len(states) == length:
        rows = np.concatenate([rows, [flat_state(spec, replayer.step(actions[-1]))]])
        solved = np.append(solved, replayer.success())
    return Trajectory(rows[:length], rows[length], solved[1:])


def read_observations(demonstration: Demonstration, spec: Spec) -> Trajectory:
    """Take the recorded observations; success is a reward of 1, where rewards are 0 or 1.

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
    return Trajectory(rows, final, _recorded_success(demonstration))


def choose_source(
    wanted: ObservationSource, samples: Sequence[Demonstration], target: Target
) -> tuple[Literal["states", "file"], list[str]]:
    """How observations are recovered, and what the user should know about it.

    ``auto`` takes recorded observations that are complete. Where states and a simulator are at hand, it
    replays the states instead if recorded and simulated observations disagree in a few rows, or if
    rewards do not tell success. Raises DataError naming what is missing.
    """
    first = samples[0]
    lacking = missing_keys(target.interface, first.observations)
    replayable = first.states is not None and target.replayer is not None
    if wanted == "states" or (wanted == "auto" and lacking):
        if not replayable:
            raise DataError(_nothing_to_observe(first, target, lacking))
        return "states", []
    if lacking:
        raise DataError(
            f"{first.where}: obs lacks {', '.join(lacking)}; it holds "
            f"{', '.join(sorted(first.observations)) or 'nothing'}. Use --observations states"
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
    return {name for feature in spec.state_features for names, _ in _keys(feature) for name in names}


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

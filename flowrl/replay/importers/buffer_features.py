"""Which arrays of a replay buffer become which feature, and the spec that they make or must fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from flowrl.errors import DataError, SpecMismatch, UsageError
from flowrl.replay.importers.replay_buffer import ArrayInfo, ReplayBuffer, shapes
from flowrl.replay.importers.report import Dropped
from flowrl.replay.importers.target import Target
from flowrl.replay.schema import Floats
from flowrl.spec import IMAGES, ActionSpec, Feature, Spec

MARGIN = 0.05
"""By how much of its range an action dimension's bounds exceed the data, at each side."""

Chosen = Mapping[str, str]
"""Feature names by the key of their array, sorted by key."""


def choose_arrays(
    buffer: ReplayBuffer, features: Mapping[str, str], cameras: Sequence[str]
) -> tuple[Chosen, list[Dropped]]:
    """The arrays to import, and those that are left out with the reason.

    ``features`` names them by key; empty takes every low-dimensional array as ``observation.<key>``
    (``obs`` as ``observation.state`` where there is no ``state``) and every array of images as
    ``observation.images.<key>``. ``cameras`` keeps only these cameras. Raises UsageError for a key or camera
    that is not there, or a name that does not suit its array.
    """
    info = {key: each for key, each in buffer.info.items() if key != "action"}
    unknown = sorted(features.keys() - info.keys())
    if unknown:
        raise UsageError(f"{buffer.path.name} has no array data/{unknown[0]}; it has {shapes(info)}")
    dropped = [Dropped(f"group {key}", buffer.rows, "is no array") for key in buffer.others]
    names: dict[str, str] = {}
    for key, each in info.items():
        reason = _unnamed(key, features) if features else _unsuited(each)
        if reason:
            dropped.append(Dropped(f"array {key}", buffer.rows, reason))
        else:
            names[key] = features.get(key) or _default_name(each, info)
            _require_name(each, names[key])
    if len(set(names.values())) < len(names):
        raise UsageError(f"two arrays would be the same feature: {names}; give them different names")
    chosen = {key: name for key, name in names.items() if not cameras or _is_kept(name, cameras)}
    _require_cameras(buffer, chosen, cameras)
    left = [key for key in names if key not in chosen]
    return chosen, [
        *dropped,
        *(Dropped(f"array {key}", buffer.rows, "not named by --camera") for key in left),
    ]


def made_spec(
    buffer: ReplayBuffer, chosen: Chosen, actions: Floats, control_hz: float, image_size: int | None
) -> Spec:
    """The spec that the arrays describe.

    The bounds of an action dimension are its extremes in ``actions`` (N, A), all episodes of the buffer, so
    that parts of it agree, moved out by `MARGIN`. Raises DataError without a low-dimensional feature.
    """
    rows = {key: buffer.info[key].row for key in chosen}
    sizes = {key: row[:2] if image_size is None else (image_size, image_size) for key, row in rows.items()}
    features = tuple(
        Feature(name, (3, *sizes[key]), "uint8") if name.startswith(IMAGES) else Feature(name, rows[key])
        for key, name in chosen.items()
    )
    if all(feature.is_image for feature in features):
        raise DataError(
            f"{buffer.path.name} has no low-dimensional observation to import, and flowrl's policies see at "
            f"least one beside images; it has {shapes(buffer.info)}"
        )
    return Spec(features, _bounds(actions), control_hz)


def require_fit(buffer: ReplayBuffer, chosen: Chosen, action_size: int, target: Target) -> list[Dropped]:
    """Compare the arrays with a target by name; those that it does not ask for, as dropped.

    Raises SpecMismatch listing every difference.
    """
    spec, keys = target.interface, {name: key for key, name in chosen.items()}
    lines: list[str] = []
    if action_size != spec.action.size:
        lines.append(
            f"data/action has {action_size} dimensions, the environment's actions {spec.action.size}"
        )
    for feature in spec.observation:
        key = keys.get(feature.name)
        if key is None:
            lines.append(f"{feature.name}: no array becomes it")
        elif not feature.is_image and int(np.prod(buffer.info[key].row)) != feature.size:
            lines.append(
                f"{feature.name}: a row of data/{key} has shape {buffer.info[key].row}, not {feature.shape}"
            )
    if lines:
        listed = "\n".join(f"  {line}" for line in lines)
        raise SpecMismatch(
            f"{buffer.path.name} does not fit environment {target.name!r}:\n{listed}\nit has "
            f"{shapes(buffer.info)}; name its arrays with --feature KEY=NAME"
        )
    wanted = {feature.name for feature in spec.observation}
    reason = "the environment's interface has no such feature"
    return [
        Dropped(f"array {key}", buffer.rows, reason) for key, name in chosen.items() if name not in wanted
    ]


def _unnamed(key: str, features: Mapping[str, str]) -> str:
    return "" if key in features else "not named by --feature"


def _unsuited(each: ArrayInfo) -> str:
    """Why an array is not taken unless it is named; empty when it is."""
    if each.key == "timestamp":
        return "when a step was recorded is no observation; --feature takes it all the same"
    if each.kind is None:
        return f"{each.dtype} of shape {each.shape} is neither low-dimensional nor RGB images"
    return ""


def _default_name(each: ArrayInfo, keys: Mapping[str, object]) -> str:
    if each.kind == "images":
        return IMAGES + each.key
    return f"observation.{'state' if each.key == 'obs' and 'state' not in keys else each.key}"


def _require_name(each: ArrayInfo, name: str) -> None:
    """Raise UsageError when an array cannot become a feature of this name."""
    expected = IMAGES if each.kind == "images" else "observation."
    fits = name.startswith(expected) and name != expected
    if each.kind is None or not fits or (each.kind == "state" and name.startswith(IMAGES)):
        raise UsageError(
            f"data/{each.key}, {each.dtype} of shape {each.shape}, cannot be the feature {name!r}. RGB images "
            f"(steps, height, width, 3), uint8 or floating-point, become {IMAGES}<camera>; low-dimensional "
            "numbers become observation.<name>"
        )


def _is_kept(name: str, cameras: Sequence[str]) -> bool:
    return not name.startswith(IMAGES) or name.removeprefix(IMAGES) in cameras


def _require_cameras(buffer: ReplayBuffer, chosen: Chosen, cameras: Sequence[str]) -> None:
    lacking = [camera for camera in cameras if IMAGES + camera not in chosen.values()]
    if lacking:
        images = [key for key, each in buffer.info.items() if each.kind == "images"]
        raise UsageError(
            f"{buffer.path.name} has no camera {lacking[0]!r}; its arrays of images are "
            f"{', '.join(images) or 'none'}"
        )


def _bounds(actions: Floats) -> ActionSpec:
    low, high = actions.min(axis=0).astype(float), actions.max(axis=0).astype(float)
    # A dimension that never moves has no range; its own size stands in.
    span = np.where(high > low, high - low, np.maximum(np.abs(high), 1.0))
    names = tuple(f"action_{index}" for index in range(actions.shape[1]))
    low, high = low - MARGIN * span, high + MARGIN * span
    return ActionSpec(names, tuple(low.tolist()), tuple(high.tolist()))

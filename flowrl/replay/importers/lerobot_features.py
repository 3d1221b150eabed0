"""From a LeRobotDataset's features to a spec: which are taken under which name, and what the actions may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flowrl.errors import DataError, UsageError
from flowrl.replay.importers.actions import require_finite
from flowrl.replay.importers.lerobot_files import BOOKKEEPING, SIDECAR, STATS, Column, LeRobotFiles
from flowrl.replay.importers.report import Dropped
from flowrl.spec import IMAGES, ActionSpec, Feature, Spec, require_match

REWARD, SUCCESS, DONE, TRUNCATED = "next.reward", "next.success", "next.done", "next.truncated"
"""LeRobot's words for what follows an action."""

FLOWRL_DTYPES = {
    "source": "int64",
    "intervention_id": "int64",
    "policy_action": "float32",
    "policy_proposed": "bool",
    "outcome": "int64",
    "outcome_by": "int64",
}
"""What `flowrl export` keeps of a replay beside LeRobot's own features. Where nothing was proposed,
``policy_action`` repeats the action and ``policy_proposed`` is false: statistics stay finite."""

_MARGIN = 0.01
_CONSTANT_MARGIN = 1.0


@dataclass(frozen=True)
class Choice:
    """What of a dataset is wanted.

    Attributes:
        target: the spec to import for; by default the dataset's own.
        cameras: the cameras to take, by full or short name; by default all.
        image_size: height and width that all frames are resized to.
        rename: a new name for features of the dataset.
    """

    target: Spec | None = None
    cameras: Sequence[str] | None = None
    image_size: tuple[int, int] | None = None
    rename: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Selection:
    """The features that are taken: ``columns`` maps their names in a replay to the dataset's columns.

    ``events`` are those of `REWARD`, `SUCCESS`, `DONE` and `TRUNCATED` there are; ``restored`` says whether
    `FLOWRL_DTYPES` are read.
    """

    spec: Spec
    columns: Mapping[str, Column]
    events: tuple[str, ...]
    restored: bool
    dropped: tuple[Dropped, ...]
    warnings: tuple[str, ...]

    @property
    def cameras(self) -> tuple[Feature, ...]:
        """The cameras that are taken."""
        return self.spec.cameras

    def size(self, camera: str) -> tuple[int, int]:
        """Height and width of a camera's frames in the stream."""
        shape = next(each.shape for each in self.cameras if each.name == camera)
        return shape[1], shape[2]


def select(files: LeRobotFiles, choice: Choice) -> Selection:
    """Choose features and make the spec.

    Raises UsageError for an unknown camera or renamed feature, DataError for a dataset without actions or
    with a camera under a foreign name, SpecMismatch listing every difference to the target.
    """
    named = _renamed(files, choice.rename)
    action = _action_column(named, files.name)
    cameras = _cameras(named, choice, files.name)
    states = {
        name: column
        for name, column in named.items()
        if name.startswith("observation.") and column.is_numeric and name not in cameras
    }
    restored = _is_ours(named, action)
    events = tuple(name for name in (REWARD, SUCCESS, DONE, TRUNCATED) if name in named)
    features = [_state_feature(name, column) for name, column in _state_first(states)]
    features += [_camera_feature(name, column, choice.image_size) for name, column in cameras.items()]
    own, warnings = _own_spec(files, action, features, choice)
    spec = own if choice.target is None else _matched(own, choice.target.interface(), action)
    taken = [
        *(each.name for each in spec.observation),
        "action",
        *events,
        *(FLOWRL_DTYPES if restored else ()),
    ]
    columns = {name: named[name] for name in taken}
    known = {*columns, *BOOKKEEPING}
    steps = sum(episode.length for episode in files.episodes)
    dropped = tuple(
        Dropped(f"feature {column.name}", steps, _reason(name, column, choice))
        for name, column in named.items()
        if name not in known
    )
    return Selection(spec, columns, events, restored, dropped, tuple(warnings))


def _renamed(files: LeRobotFiles, rename: Mapping[str, str]) -> dict[str, Column]:
    unknown = [name for name in rename if name not in files.columns]
    if unknown:
        raise UsageError(
            f"{files.name} has no feature {', '.join(unknown)} to rename; it has {', '.join(files.columns)}"
        )
    named = {rename.get(name, name): column for name, column in files.columns.items()}
    if len(named) != len(files.columns):
        raise UsageError(f"{files.name}: two features would have one name after {dict(rename)}")
    return named


def _action_column(named: Mapping[str, Column], where: str) -> Column:
    action = named.get("action")
    if action is None or not action.is_numeric or len(action.shape) != 1:
        what = (
            "no feature 'action'" if action is None else f"actions of {action.dtype} and shape {action.shape}"
        )
        raise DataError(
            f"{where} has {what}, expected a vector of numbers; it has {', '.join(named)}. Rename the feature that "
            "holds the actions: --feature NAME=action"
        )
    return action


def _cameras(named: Mapping[str, Column], choice: Choice, where: str) -> dict[str, Column]:
    """The cameras to take, in the dataset's order."""
    found = {name: column for name, column in named.items() if column.is_camera and not _is_depth(column)}
    wanted = choice.cameras
    if wanted is None and choice.target is not None:
        wanted = [each.name for each in choice.target.observation if each.is_image and each.name in found]
    if wanted is not None:
        full = [name if name in found else f"{IMAGES}{name}" for name in wanted]
        unknown = [short for short, name in zip(wanted, full, strict=True) if name not in found]
        if unknown:
            raise UsageError(
                f"{where} has no camera {', '.join(unknown)}; it has {', '.join(found) or 'none'}"
            )
        found = {name: column for name, column in found.items() if name in full}
    foreign = [name for name in found if not name.startswith(IMAGES)]
    if foreign:
        raise DataError(
            f"{where}: the camera {foreign[0]!r} needs a name that begins with {IMAGES!r}; rename it: --feature "
            f"{foreign[0]}={IMAGES}{foreign[0].rsplit('.', 1)[-1]}, or leave it out by --camera"
        )
    return found


def _is_ours(named: Mapping[str, Column], action: Column) -> bool:
    """Whether the dataset has all features that `flowrl export` adds, each as it writes them."""
    shapes = dict.fromkeys(FLOWRL_DTYPES, (1,)) | {"policy_action": action.shape}
    return all(
        name in named and named[name].dtype == dtype and named[name].shape == shapes[name]
        for name, dtype in FLOWRL_DTYPES.items()
    )


def _state_first(states: Mapping[str, Column]) -> list[tuple[str, Column]]:
    return sorted(states.items(), key=lambda each: each[0] != "observation.state")


def _state_feature(name: str, column: Column) -> Feature:
    return Feature(name, column.shape, names=_labels(column))


def _camera_feature(name: str, column: Column, size: tuple[int, int] | None) -> Feature:
    return Feature(name, (3, *(size or _frame_size(column))), "uint8")


def _frame_size(column: Column) -> tuple[int, int]:
    """Height and width. LeRobot writes (height, width, channels) or (channels, height, width), with names."""
    if len(column.shape) != 3:
        raise DataError(
            f"camera {column.name!r} has shape {column.shape}, expected height, width and channels"
        )
    first = isinstance(column.names, list) and column.names[:1] in (["channels"], ["channel"])
    if first or (column.shape[0] == 3 and column.shape[2] != 3):
        return column.shape[1], column.shape[2]
    return column.shape[0], column.shape[1]


def _own_spec(
    files: LeRobotFiles, action: Column, features: list[Feature], choice: Choice
) -> tuple[Spec, list[str]]:
    """The spec as the dataset states it; `flowrl export` leaves the original beside it, for what has no place."""
    stated = files.json(SIDECAR)
    try:
        original = None if stated is None else Spec.from_json(stated["spec"])
    except (DataError, KeyError, TypeError) as error:
        raise DataError(f"{files.name}/{SIDECAR}: {error}; remove the file to import without it") from error
    if original is not None and original.action.size == action.shape[0]:
        known = {each.name: each for each in original.observation}
        features = [
            replace(known[each.name], shape=each.shape)
            if each.name in known and len(known[each.name].shape) == len(each.shape)
            else each
            for each in features
        ]
        order = {name: index for index, name in enumerate(known)}
        features.sort(key=lambda each: order.get(each.name, len(order)))
        return Spec(tuple(features), original.action, files.fps, settings=original.settings), []
    names = _labels(action) or tuple(f"action_{index}" for index in range(action.shape[0]))
    low, high, warnings = _bounds(files, action, names)
    if choice.target is not None:
        warnings = []
    return Spec(tuple(features), ActionSpec(names, low, high), files.fps), warnings


def action_labels(names: Sequence[str]) -> list[str]:
    """A label for each action dimension, for messages."""
    return [f"action[{index}] ({name})" for index, name in enumerate(names)]


def _bounds(
    files: LeRobotFiles, action: Column, names: Sequence[str]
) -> tuple[tuple[float, ...], tuple[float, ...], list[str]]:
    """Bounds of the actions by ``meta/stats.json``, a little wider, and what the user should know about them."""
    stats = (files.json(STATS) or {}).get(action.name) or {}
    try:
        low, high = (np.asarray(stats[key], np.float64).reshape(action.shape) for key in ("min", "max"))
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(
            f"{files.name}/{STATS} has no min and max of {action.name!r} ({error}); compute the statistics again "
            "with LeRobot, or import for the spec of an environment"
        ) from error
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        for episode in files.episodes:
            values = files.numbers([action.name], [episode])[action.name]
            require_finite(values, action_labels(names), f"{files.name}, {episode.name}")
        raise DataError(
            f"{files.name}/{STATS}: min or max of {action.name!r} is not finite; compute it again"
        )
    constant = low >= high
    margin = np.where(constant, _CONSTANT_MARGIN, _MARGIN * (high - low))
    warnings = [
        f"action bounds are the extremes in {STATS}, {_MARGIN:.0%} wider: the dataset does not state what the "
        "controller allows"
    ]
    if constant.any():
        still = ", ".join(name for name, each in zip(names, constant, strict=True) if each)
        warnings.append(f"{still} never changes; its bounds are its value ± {_CONSTANT_MARGIN:g}")
    return tuple((low - margin).tolist()), tuple((high + margin).tolist()), warnings


def _matched(own: Spec, target: Spec, action: Column) -> Spec:
    """The target, where the dataset has its features. What the dataset does not state is the target's."""
    mine = {each.name: each for each in own.observation}
    observation = [
        replace(
            mine[each.name],
            dtype=each.dtype,
            unit=each.unit,
            names=mine[each.name].names or (each.names if mine[each.name].shape == each.shape else ()),
        )
        for each in target.observation
        if each.name in mine
    ]
    stated = bool(_labels(action)) or own.action.size != target.action.size
    known = own.action.names if stated else target.action.names
    bounds = target.action if own.action.size == target.action.size else own.action
    adapted = replace(
        own,
        observation=tuple(observation),
        action=ActionSpec(known, bounds.low, bounds.high, target.action.unit),
        settings=target.settings,
    )
    require_match(adapted, target, "the dataset", "the given spec")
    return target


def _labels(column: Column) -> tuple[str, ...]:
    """Names of the dimensions, which LeRobot keeps as a list, or as a mapping to lists or to positions."""
    names = column.names
    if isinstance(names, dict) and names and all(isinstance(each, int) for each in names.values()):
        names = sorted(names, key=names.__getitem__)
    elif isinstance(names, dict):
        names = [each for part in names.values() for each in (part if isinstance(part, list) else [part])]
    if not isinstance(names, list) or len(column.shape) != 1 or len(names) != column.shape[0]:
        return ()
    return tuple(str(each) for each in names)


def _is_depth(column: Column) -> bool:
    return bool(column.info.get("is_depth_map") or column.info.get("video.is_depth_map"))


def _reason(name: str, column: Column, choice: Choice) -> str:
    if column.is_camera:
        return (
            "a depth map; a stream has no place for it"
            if _is_depth(column)
            else "a camera that was not chosen"
        )
    if name.startswith("observation.") and column.is_numeric:
        return "the given spec has no such feature"
    return "a stream has no column for it"

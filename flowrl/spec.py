"""Seam 1, the spec: what a policy sees and does.

A spec lists observation features by name (LeRobot names: ``observation.state``,
``observation.images.<camera>``), the action's dimensions with bounds, and the control rate. It is
stored beside every replay stream, policy and checkpoint, and `compare` is called wherever two of
them meet. Features are matched by name, never by position.

Chunk lengths and normalisation belong to a policy, so an environment or a stream leaves them out
(``None``) and `compare` looks at them only when both sides state them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from flowrl.errors import DataError, SpecMismatch
from flowrl.normalisation import Normalisation

Scalar = str | int | float | bool
IMAGES = "observation.images."
"""How the name of a camera's feature begins, as in LeRobot."""


@dataclass(frozen=True)
class Feature:
    """One named array of an observation.

    ``shape`` excludes time and batch. ``names`` labels each dimension of a vector feature and is
    either empty or as long as ``shape[0]``. ``unit`` is free text such as ``m`` or ``rad``. A camera is
    ``uint8`` of shape (3, height, width); DataError otherwise.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    names: tuple[str, ...] = ()
    unit: str = ""

    def __post_init__(self) -> None:
        if self.names and len(self.names) != self.shape[0]:
            raise DataError(
                f"feature {self.name!r}: {len(self.names)} dimension names for shape {self.shape}"
            )
        if self.is_image and (len(self.shape) != 3 or self.shape[0] != 3 or self.dtype != "uint8"):
            raise DataError(
                f"feature {self.name!r} is {self.dtype} of shape {self.shape}; a camera is uint8 of shape "
                "(3, height, width)"
            )

    @property
    def is_image(self) -> bool:
        """Whether it is a camera, by its name."""
        return self.name.startswith(IMAGES)

    @property
    def size(self) -> int:
        """Number of values in one step."""
        total = 1
        for extent in self.shape:
            total *= extent
        return total

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Feature:
        """Read a feature of a spec's JSON. Raises KeyError naming what is missing."""
        return cls(data["name"], tuple(data["shape"]), data["dtype"], tuple(data["names"]), data["unit"])

    def dimension_name(self, index: int) -> str:
        """A label for one dimension, for messages: ``observation.state[3] (eef_pos_z)``."""
        label = f" ({self.names[index]})" if self.names else ""
        return f"{self.name}[{index}]{label}"


@dataclass(frozen=True)
class ActionSpec:
    """The action vector of one control step, shape ``(A,)``, with bounds per dimension."""

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    unit: str = ""

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.low) == len(self.high):
            raise DataError(
                f"action: {len(self.names)} names, {len(self.low)} lower and {len(self.high)} upper bounds"
            )
        for name, low, high in zip(self.names, self.low, self.high, strict=True):
            if not low < high:
                raise DataError(
                    f"action dimension {name!r}: lower bound {low} is not below upper bound {high}"
                )

    @property
    def size(self) -> int:
        """A, the number of action dimensions."""
        return len(self.names)


@dataclass(frozen=True)
class Chunking:
    """A policy proposes ``length`` actions (H) and executes the first ``executed`` of them open loop.

    A policy may see ``past`` earlier observations beside the present one, and generate the actions of those
    steps again as well as ``ahead`` actions beyond H: its horizon is ``past + length + ahead``. Only the H
    actions from the present step on are proposed.
    """

    length: int
    executed: int
    past: int = 0
    ahead: int = 0

    @property
    def horizon(self) -> int:
        """Steps that the policy generates."""
        return self.past + self.length + self.ahead

    def __post_init__(self) -> None:
        if self.past < 0 or self.ahead < 0:
            raise DataError(f"chunk: past {self.past} and ahead {self.ahead} must not be negative")
        if not 1 <= self.executed <= self.length:
            raise DataError(f"chunk: executed {self.executed} must lie in 1..{self.length}")


@dataclass(frozen=True)
class Spec:
    """What a policy sees and does.

    ``settings`` holds everything else that makes data of two sources incomparable, for example
    robosuite's control decimation: it must be equal for two specs to match.
    """

    observation: tuple[Feature, ...]
    action: ActionSpec
    control_hz: float
    chunk: Chunking | None = None
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    normalisation: Normalisation | None = None

    def __post_init__(self) -> None:
        names = [feature.name for feature in self.observation]
        if len(set(names)) != len(names):
            raise DataError(f"spec: observation names repeat: {names}")

    @property
    def state_features(self) -> tuple[Feature, ...]:
        """The non-image features, in the order in which they are concatenated into s."""
        return tuple(feature for feature in self.observation if not feature.is_image)

    @property
    def cameras(self) -> tuple[Feature, ...]:
        """The image features, in spec order."""
        return tuple(feature for feature in self.observation if feature.is_image)

    @property
    def state_size(self) -> int:
        """S, the size of the flat state: all non-image features concatenated in spec order."""
        return sum(feature.size for feature in self.state_features)

    def state_dimension_names(self) -> list[str]:
        """One label per dimension of the flat state, length S."""
        return [f.dimension_name(i) for f in self.state_features for i in range(f.size)]

    def with_chunk(self, length: int, executed: int | None = None) -> Spec:
        """The same spec for a policy with chunks of ``length`` actions (all executed by default)."""
        return replace(self, chunk=Chunking(length, length if executed is None else executed))

    def interface(self) -> Spec:
        """The part an environment or a dataset states: without chunking and normalisation."""
        return replace(self, chunk=None, normalisation=None)

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back to an equal spec."""
        out = asdict(replace(self, normalisation=None))
        out["settings"] = dict(self.settings)
        out["normalisation"] = None if self.normalisation is None else self.normalisation.to_json()
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Spec:
        """Read a spec. Raises DataError naming the missing or unknown key."""
        unknown = set(data) - {f.name for f in fields(cls)}
        if unknown:
            raise DataError(
                f"spec: unknown keys {sorted(unknown)}; it was written by another version of flowrl"
            )
        try:
            chunk, normalisation = data.get("chunk"), data.get("normalisation")
            return cls(
                observation=tuple(map(Feature.from_json, data["observation"])),
                action=ActionSpec(
                    tuple(data["action"]["names"]),
                    tuple(data["action"]["low"]),
                    tuple(data["action"]["high"]),
                    data["action"]["unit"],
                ),
                control_hz=data["control_hz"],
                chunk=None if chunk is None else Chunking(**chunk),
                settings=dict(data["settings"]),
                normalisation=None if normalisation is None else Normalisation.from_json(normalisation),
            )
        except KeyError as error:
            raise DataError(f"spec: key {error} is missing") from error

    def digest(self) -> str:
        """A short stable hash of the interface, stored with every episode."""
        text = json.dumps(self.interface().to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Difference:
    """One disagreement between two specs: where, and what each side says."""

    where: str
    left: object
    right: object

    def __str__(self) -> str:
        return f"{self.where}: {self.left!r} against {self.right!r}"


def compare(left: Spec, right: Spec) -> list[Difference]:
    """Every difference between two specs, by name; an empty list means they match.

    Chunking and normalisation are compared only when both sides state them.
    """
    found = list(_compare_features(left.observation, right.observation))
    found += _compare_values("action", asdict(left.action), asdict(right.action))
    if left.control_hz != right.control_hz:
        found.append(Difference("control_hz", left.control_hz, right.control_hz))
    if left.chunk and right.chunk:
        found += _compare_values("chunk", asdict(left.chunk), asdict(right.chunk))
    found += _compare_values("settings", dict(left.settings), dict(right.settings))
    if left.normalisation and right.normalisation:
        found += _compare_values("normalisation", left.normalisation.to_json(), right.normalisation.to_json())
    return found


def require_match(left: Spec, right: Spec, left_name: str, right_name: str) -> None:
    """Raise SpecMismatch listing every difference between two specs that must agree."""
    found = compare(left, right)
    if found:
        lines = "\n".join(f"  {difference}" for difference in found)
        raise SpecMismatch(
            f"{left_name} does not match {right_name} ({left_name} against {right_name}):\n{lines}"
        )


def _compare_features(left: Iterable[Feature], right: Iterable[Feature]) -> Iterable[Difference]:
    mine, theirs = ({f.name: f for f in side} for side in (left, right))
    for name in mine.keys() | theirs.keys():
        if name not in theirs:
            yield Difference(name, "present", "missing")
        elif name not in mine:
            yield Difference(name, "missing", "present")
        else:
            yield from _compare_values(name, asdict(mine[name]), asdict(theirs[name]))
    shared = mine.keys() & theirs.keys()
    order = [[n for n in side if n in shared and not side[n].is_image] for side in (mine, theirs)]
    if order[0] != order[1]:
        yield Difference("order of state features", order[0], order[1])


def _compare_values(where: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> list[Difference]:
    found = []
    for key in sorted(left.keys() | right.keys()):
        mine, theirs = left.get(key), right.get(key)
        if mine != theirs:
            found.append(Difference(f"{where}.{key}", mine, theirs))
    return found

"""The contract: one YAML file that says what a robot shows, what it may be told, and within which limits.

The same file drives recording, the import of bags, training and deployment, so a row means the same in
each of them. `Contract.spec` is the interface that it describes. docs/contract.md explains every key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from flowrl.config import BY_KIND, configclass, load_recipe
from flowrl.spec import IMAGES, ActionSpec, Feature, Scalar, Spec
from robot_bridge.contract_commands import CommandPart, FramedCommand
from robot_bridge.contract_streams import (
    MILLISECOND,
    Camera,
    FramedStream,
    QoS,
    StatePart,
    require_positive,
    require_topic,
)

_FEATURE = re.compile(r"observation\.[a-z][a-z0-9_]*")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_SECOND = 1e9


@configclass
class JoyIntervention:
    """A person takes over by holding a button."""

    TYPE = "sensor_msgs/msg/Joy"
    kind: Literal["joy"] = "joy"
    """sensor_msgs/Joy: a button that is held."""
    topic: str = "/joy"
    """Its name, with the namespace."""
    button: int
    """Index in the buttons of the message, from 0."""
    release_ms: float = 300.0
    """The takeover lasts this long after the button was let go."""
    qos: QoS = QoS(reliability="reliable")
    """How it is subscribed to; a lost edge would stick, so it is reliable."""

    def __post_init__(self) -> None:
        require_topic(self.topic)
        if self.button < 0:
            raise ValueError(f"button is {self.button}; buttons are counted from 0")
        if self.release_ms:
            require_positive("release_ms", self.release_ms)

    @property
    def release_ns(self) -> int:
        """The time after the release in nanoseconds."""
        return round(self.release_ms * MILLISECOND)


@configclass
class TakeoverIntervention:
    """Somebody says on a topic when a person is in charge, as the bridge itself does."""

    TYPE = "std_msgs/msg/Bool"
    kind: Literal["takeover"] = "takeover"
    """std_msgs/Bool: true while a person is in charge."""
    topic: str
    """Its name, with the namespace."""
    qos: QoS = QoS(reliability="reliable")
    """How it is subscribed to."""
    release_ns = 0

    def __post_init__(self) -> None:
        require_topic(self.topic)


Intervention = JoyIntervention | TakeoverIntervention


@configclass
class EpisodesConfig:
    """Where episodes begin and end, and how they went."""

    running: str | None = None
    """A topic of std_msgs/Bool: true while an episode runs. Null: a bag is one episode."""
    success: str | None = None
    """A topic of std_msgs/Bool that says how the newest episode went. Null: nobody says."""
    judged_by: Literal["human", "classifier", "environment"] = "human"
    """Who says it."""
    max_gap_rows: int = 2
    """Rows in a row that may be missing inside an episode; after more of them the rest is another episode."""

    def __post_init__(self) -> None:
        for topic in (self.running, self.success):
            if topic is not None:
                require_topic(topic)
        if self.max_gap_rows < 0:
            raise ValueError(f"max_gap_rows is {self.max_gap_rows}; it must be at least 0")


@configclass
class ServicesConfig:
    """The services by which a person or a program runs episodes."""

    start: str = "/robot_bridge/start_episode"
    """std_srvs/Trigger: begin an episode."""
    end: str = "/robot_bridge/end_episode"
    """std_srvs/SetBool: end it, as a success or a failure."""
    reset: str | None = None
    """std_srvs/Trigger that prepares the scene for the next episode. Null: a person does."""

    def __post_init__(self) -> None:
        for service in (self.start, self.end, self.reset):
            if service is not None:
                require_topic(service)


@configclass
class Contract:
    """Everything that flowrl has to know about a robot."""

    robot: str
    """The robot's name: data of robots with different names is not mixed."""
    rate_hz: float
    """Rows per second, which is also the rate of a policy's actions."""
    command_hz: float = 100.0
    """How often a command is published; between two actions it is interpolated."""
    state: dict[str, tuple[Annotated[StatePart, BY_KIND], ...]]
    """Low-dimensional features by name; each is its parts one after another."""
    cameras: dict[str, Camera] = {}
    """Cameras by name."""
    command: tuple[Annotated[CommandPart, BY_KIND], ...]
    """What the action is made of, one part after another."""
    command_after_ms: float = 0.0
    """The action of a row is the newest command until this long after it: 0 for commands that are in force at the
    row's time; up to one row's time for commands that answer the row's observation."""
    max_skew_ms: float = 40.0
    """A row is refused when its newest and its oldest observation are farther apart."""
    intervention: Annotated[Intervention, BY_KIND] | None = None
    """How a person takes over from a policy. Null: nobody does."""
    episodes: EpisodesConfig = EpisodesConfig()
    """Where episodes begin and end."""
    services: ServicesConfig = ServicesConfig()
    """The services that run episodes."""
    task: str = ""
    """The instruction that is stored with every episode."""

    def __post_init__(self) -> None:
        for name in ("rate_hz", "command_hz", "max_skew_ms"):
            require_positive(name, getattr(self, name))
        if self.command_hz < self.rate_hz:
            raise ValueError(
                f"command_hz is {self.command_hz:g} and rate_hz {self.rate_hz:g}; commands are published at least "
                "as often as a policy acts"
            )
        if not 0 <= self.command_after_ms <= 1000 / self.rate_hz:
            raise ValueError(
                f"command_after_ms is {self.command_after_ms:g}; it must lie between 0 and the time of a row, "
                f"{1000 / self.rate_hz:g} ms"
            )
        _require_names(self.state, self.cameras)
        for feature, parts in self.state.items():
            _require_labels(f"state.{feature}", parts)
        _require_labels("command", self.command)
        self.topics()

    @property
    def period_ns(self) -> float:
        """Nanoseconds from one row to the next."""
        return _SECOND / self.rate_hz

    @property
    def max_skew_ns(self) -> int:
        """The limit on skew in nanoseconds."""
        return round(self.max_skew_ms * MILLISECOND)

    @property
    def command_after_ns(self) -> int:
        """How long after a row its command is read, in nanoseconds."""
        return round(self.command_after_ms * MILLISECOND)

    def topics(self) -> dict[str, str]:
        """The message type of every topic that is read. Raises ValueError when one has two."""
        found: dict[str, str] = {}
        for topic, kind in self._topics():
            if found.setdefault(topic, kind) != kind:
                raise ValueError(
                    f"topic {topic} is named for {found[topic]} and for {kind}; a topic has one type"
                )
        return found

    def spec(self) -> Spec:
        """The interface: state features in the order of the file, cameras, the action with its limits."""
        features = [
            Feature(name, (len(names),), names=names, unit=_joined(part.unit for part in parts))
            for name, parts in self.state.items()
            for names in [tuple(label for part in parts for label in part.names)]
        ]
        features += [
            Feature(IMAGES + name, (3, camera.height, camera.width), "uint8")
            for name, camera in self.cameras.items()
        ]
        bounds = [part.bounds for part in self.command]
        action = ActionSpec(
            tuple(label for part in self.command for label in part.names),
            tuple(value for low, _ in bounds for value in low),
            tuple(value for _, high in bounds for value in high),
            _joined(part.unit for part in self.command),
        )
        return Spec(tuple(features), action, self.rate_hz, settings=self._settings())

    def _topics(self) -> Iterator[tuple[str, str]]:
        for parts in self.state.values():
            yield from ((part.topic, part.TYPE) for part in parts)
        yield from ((camera.topic, camera.TYPE) for camera in self.cameras.values())
        yield from ((part.topic, part.TYPE) for part in self.command)
        if self.intervention is not None:
            yield self.intervention.topic, self.intervention.TYPE
        for topic in (self.episodes.running, self.episodes.success):
            if topic is not None:
                yield topic, "std_msgs/msg/Bool"

    def _settings(self) -> Mapping[str, Scalar]:
        """What makes rows incomparable beside names: the robot, and the frames of its geometry."""
        settings: dict[str, Scalar] = {"robot": self.robot}
        for feature, parts in self.state.items():
            frames = [part.frame for part in parts if isinstance(part, FramedStream)]
            if frames:
                settings[f"{feature}.frame"] = _joined(frames)
        frames = [part.frame for part in self.command if isinstance(part, FramedCommand)]
        if frames:
            settings["action.frame"] = _joined(frames)
        return settings


def load_contract(path: str | Path, overrides: Sequence[str] = ()) -> Contract:
    """Read a contract file; overrides such as ``rate_hz=10`` change it, ``extends`` works as in recipes.

    Raises ConfigError naming file and key: an unknown key (with the nearest valid one), a missing or wrong
    value, or rules across keys that do not hold.
    """
    return load_recipe(Contract, str(path), overrides)


def _require_names(state: Mapping[str, object], cameras: Mapping[str, object]) -> None:
    if not state:
        raise ValueError("state is empty; policies see at least one low-dimensional feature")
    for name in state:
        if not _FEATURE.fullmatch(name):
            raise ValueError(
                f"state has {name!r}; a feature is observation.<name> in lower case, for example observation.state"
            )
    for name in cameras:
        if not _NAME.fullmatch(name):
            raise ValueError(f"cameras has {name!r}; a camera's name is one word in lower case, as wrist")


def _require_labels(where: str, parts: Sequence[StatePart] | Sequence[CommandPart]) -> None:
    if not parts:
        raise ValueError(f"{where} is empty; it needs at least one part")
    labels = [label for part in parts for label in part.names]
    twice = [label for label in labels if labels.count(label) > 1]
    if twice:
        raise ValueError(f"{where} has the dimension {twice[0]!r} twice; give one of its parts a prefix")


def _joined(texts: Sequence[str] | Iterator[str]) -> str:
    return ", ".join(dict.fromkeys(text for text in texts if text))

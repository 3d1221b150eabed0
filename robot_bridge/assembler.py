"""Build a row from the newest message of every stream: the same function for a bag, a recorder and a policy.

Each stream of the contract has a slot with its newest message. `Assembler.observe` makes the observation at
a time, `Assembler.command` the action; both refuse instead of inventing: a stream that is absent, too old,
frozen or too far from the others makes no row. Nothing is filled with zeros.

Times are integer nanoseconds of the clock that stamps arrivals. A message is put when it arrives, so at
`observe(now)` every message that is not newer than ``now`` is in its slot, and none that is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowrl.errors import DataError
from flowrl.replay.frames import FrameCodec, decode
from flowrl.replay.importers.images import resized
from flowrl.replay.schema import Array, Floats
from flowrl.spec import IMAGES
from robot_bridge.contract import Contract
from robot_bridge.contract_commands import CommandPart
from robot_bridge.contract_streams import Camera, StatePart
from robot_bridge.messages import Picture, read_command, read_picture, read_state

_MS = 1e6


@dataclass(frozen=True)
class Refusal:
    """Why there is no row: the stream and, in words, what is wrong with it."""

    stream: str
    reason: str


@dataclass(frozen=True)
class Observed:
    """An observation by feature name (state float32, cameras as encoded frames), and each stream's age."""

    observation: Mapping[str, Array | bytes]
    ages_ns: Mapping[str, int]

    @property
    def age_ns(self) -> int:
        """The age of its oldest part."""
        return max(self.ages_ns.values())


@dataclass(frozen=True)
class Commanded:
    """An action (A,) float32, and each command's age."""

    action: Floats
    ages_ns: Mapping[str, int]


@dataclass(frozen=True)
class Row:
    """One control step: what was seen at ``time_ns`` and what was commanded."""

    time_ns: int
    observed: Observed
    commanded: Commanded


@dataclass
class _Slot:
    """The newest message of one stream. ``read`` turns a message into its value, or None for another's."""

    name: str
    topic: str
    read: Callable[[Any], Any]
    max_age_ns: int | None
    max_frozen_ns: int | None = None
    value: Any = None
    arrival_ns: int = 0
    changed_ns: int = 0
    encoded: bytes | None = None
    """A camera's frame as it is stored, once it was asked for."""

    def put(self, value: Any, arrival_ns: int) -> bool:
        if value is None or (self.value is not None and arrival_ns < self.arrival_ns):
            return False
        if self.value is None or self.max_frozen_ns is None or self.value.data != value.data:
            self.changed_ns = arrival_ns
            self.encoded = None
        self.value, self.arrival_ns = value, arrival_ns
        return True

    def clear(self) -> None:
        self.value = self.encoded = None

    def refusal(self, now_ns: int) -> Refusal | None:
        """Why its value must not be used now."""
        if self.value is None:
            return Refusal(self.name, "no message yet")
        if self.max_age_ns is not None and now_ns - self.arrival_ns > self.max_age_ns:
            return Refusal(self.name, f"older than {self.max_age_ns / _MS:g} ms")
        if self.max_frozen_ns is not None and now_ns - self.changed_ns > self.max_frozen_ns:
            return Refusal(self.name, f"frozen: the same frame for more than {self.max_frozen_ns / _MS:g} ms")
        return None


class Assembler:
    """The slots of a contract's streams. ``codec`` encodes frames that do not arrive as they are stored."""

    def __init__(self, contract: Contract, codec: FrameCodec | None = None) -> None:
        self._contract, self._codec = contract, codec or FrameCodec()
        self._state = {
            feature: [_state_slot(feature, part, len(parts)) for part in parts]
            for feature, parts in contract.state.items()
        }
        self._cameras = {
            IMAGES + name: _camera_slot(IMAGES + name, camera) for name, camera in contract.cameras.items()
        }
        self._commands = [_command_slot(part, len(contract.command)) for part in contract.command]
        self.sizes: dict[str, set[tuple[int, int]]] = {name: set() for name in self._cameras}
        """Heights and widths in which the frames of each camera came, by feature."""
        parts = [slot for slots in self._state.values() for slot in slots]
        self._observed = [*parts, *self._cameras.values()]
        self._by_topic: dict[str, list[_Slot]] = {}
        for slot in (*self._observed, *self._commands):
            self._by_topic.setdefault(slot.topic, []).append(slot)

    @property
    def streams(self) -> dict[str, str]:
        """The topic of every stream by its name; a topic may feed several."""
        return {slot.name: slot.topic for slot in (*self._observed, *self._commands)}

    @property
    def topics(self) -> frozenset[str]:
        """The topics that `put` takes."""
        return frozenset(self._by_topic)

    def put(self, topic: str, message: Any, arrival_ns: int) -> bool:
        """Take a message that arrived; False when no stream of the topic can use it, or has a newer one.

        Raises MessageFault for a message that is useless, DataError when the topic contradicts the contract.
        """
        # All are read before any is changed, so that a useless message leaves every slot as it was.
        values = [(slot, slot.read(message)) for slot in self._by_topic[topic]]
        taken = [slot.put(value, arrival_ns) for slot, value in values]
        return any(taken)

    def clear(self) -> None:
        """Forget every message, as when the clock has jumped."""
        for slot in (*self._observed, *self._commands):
            slot.clear()

    def observe(self, now_ns: int) -> Observed | Refusal:
        """The observation at a time, from the newest messages."""
        for slot in self._observed:
            refusal = slot.refusal(now_ns)
            if refusal is not None:
                return refusal
        skewed = self._skew()
        if skewed is not None:
            return skewed
        observation: dict[str, Array | bytes] = {
            feature: np.concatenate([slot.value for slot in slots]).astype(np.float32)
            for feature, slots in self._state.items()
        }
        for (name, slot), camera in zip(self._cameras.items(), self._contract.cameras.values(), strict=True):
            try:
                observation[name] = self._frame(slot, camera)
            except DataError:
                return Refusal(name, "a frame that cannot be decoded")
        return Observed(observation, {slot.name: now_ns - slot.arrival_ns for slot in self._observed})

    def command(self, now_ns: int) -> Commanded | Refusal:
        """The action at a time, from the newest commands; of a trajectory its next target."""
        targets: list[Floats] = []
        for slot in self._commands:
            refusal = slot.refusal(now_ns)
            if refusal is not None:
                return refusal
            target = slot.value.target(now_ns - slot.arrival_ns)
            if target is None:
                return Refusal(slot.name, "a trajectory without points: the controller was stopped")
            targets.append(target)
        return Commanded(
            np.concatenate(targets).astype(np.float32),
            {slot.name: now_ns - slot.arrival_ns for slot in self._commands},
        )

    def row(self, now_ns: int) -> Row | Refusal:
        """Observation and action at a time.

        Where commands are read later than observations (``command_after_ms``), the caller puts them that much
        earlier than they arrived.
        """
        observed = self.observe(now_ns)
        if isinstance(observed, Refusal):
            return observed
        commanded = self.command(now_ns)
        return commanded if isinstance(commanded, Refusal) else Row(now_ns, observed, commanded)

    def _skew(self) -> Refusal | None:
        oldest = min(self._observed, key=lambda slot: slot.arrival_ns)
        newest = max(self._observed, key=lambda slot: slot.arrival_ns)
        if newest.arrival_ns - oldest.arrival_ns <= self._contract.max_skew_ns:
            return None
        return Refusal(oldest.name, f"more than {self._contract.max_skew_ms:g} ms behind another stream")

    def _frame(self, slot: _Slot, camera: Camera) -> bytes:
        """A frame as it is stored: as it arrived where it fits, resized and encoded once where not."""
        if slot.encoded is None:
            slot.encoded = encoded_picture(slot.value, camera, self._codec)
            self.sizes[slot.name].add((slot.value.height, slot.value.width))
        return slot.encoded


def encoded_picture(picture: Picture, camera: Camera, codec: FrameCodec) -> bytes:
    """A picture as a JPEG or PNG file of the camera's size; its own bytes where they are one already.

    Raises DataError when it cannot be decoded.
    """
    compressed = picture.encoding == "compressed"
    if compressed and (picture.height, picture.width) == (camera.height, camera.width):
        return picture.data
    pixels = decode(picture.data).transpose(1, 2, 0) if compressed else picture.pixels()
    return codec.encode(resized(pixels, camera.height, camera.width))


def _state_slot(feature: str, part: StatePart, parts: int) -> _Slot:
    name = feature if parts == 1 else f"{feature} ({part.names[0]}, ...)"
    return _Slot(name, part.topic, lambda message: read_state(part, message), part.max_age_ns)


def _camera_slot(name: str, camera: Camera) -> _Slot:
    return _Slot(
        name,
        camera.topic,
        lambda message: read_picture(camera, message),
        camera.max_age_ns,
        camera.max_frozen_ns,
    )


def _command_slot(part: CommandPart, parts: int) -> _Slot:
    name = "action" if parts == 1 else f"action ({part.names[0]}, ...)"
    return _Slot(name, part.topic, lambda message: read_command(part, message), part.max_age_ns)

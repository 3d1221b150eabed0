"""From a ROS 2 message to the numbers of a contract's part. Nothing here knows ROS.

A message is any object with the fields of its type: what rclpy delivers, or what was decoded from a bag.
Three things can be wrong. The message itself is useless (MessageFault: it is dropped and counted). It belongs
to another publisher on the same topic (None). It contradicts the contract, as every later one will
(DataError: the user must mend one of the two).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowrl.errors import DataError
from flowrl.replay.frames import frame_size
from robot_bridge.contract_commands import (
    CommandPart,
    ForwardCommand,
    PoseCommand,
    TrajectoryCommand,
    TwistCommand,
)
from robot_bridge.contract_streams import (
    ArrayPart,
    Camera,
    JointsPart,
    PosePart,
    StatePart,
    TwistPart,
    WrenchPart,
)

Values = NDArray[np.float64]

CHANNELS = {"rgb8": 3, "bgr8": 3, "rgba8": 4, "bgra8": 4, "mono8": 1}
"""Bytes of a pixel."""

_SECOND = 1_000_000_000


class MessageFault(Exception):
    """One message cannot be used; the next one may be fine."""


@dataclass(frozen=True)
class Trajectory:
    """Targets (K, A) of a trajectory and when each is due (K,), nanoseconds after it was received."""

    targets: Values
    due_ns: tuple[int, ...]

    def target(self, age_ns: int) -> Values | None:
        """The first target (A,) that is not yet due at this age, or the last; None when it has none: a stop."""
        if not self.due_ns:
            return None
        index = next((i for i, due in enumerate(self.due_ns) if due >= age_ns), len(self.due_ns) - 1)
        return self.targets[index]


@dataclass(frozen=True)
class Picture:
    """A camera's frame as it arrived: ``compressed`` bytes of a file, or rows of ``step`` bytes."""

    data: bytes
    encoding: str
    height: int
    width: int
    step: int = 0

    def pixels(self) -> NDArray[np.uint8]:
        """Pixels (height, width, 3), RGB, of a frame that is not compressed."""
        channels = CHANNELS[self.encoding]
        rows = np.frombuffer(self.data, np.uint8, self.step * self.height).reshape(self.height, self.step)
        image = rows[:, : self.width * channels].reshape(self.height, self.width, channels)
        if channels == 1:
            return np.repeat(image, 3, axis=2)
        return image[:, :, 2::-1] if self.encoding.startswith("bgr") else image[:, :, :3]


def read_state(part: StatePart, message: Any) -> Values | None:
    """The values of one part of a state feature, in the part's order.

    None when the message holds none of the part's joints: another publisher's. Raises MessageFault for a
    message that is malformed or not finite, DataError naming what the contract and the topic disagree about.
    """
    match part:
        case JointsPart():
            return _joints(part, message)
        case PosePart():
            _require_frame(part.topic, part.frame, message)
            return pose_values(message.pose)
        case TwistPart():
            _require_frame(part.topic, part.frame, message)
            return _six(message.twist.linear, message.twist.angular)
        case WrenchPart():
            _require_frame(part.topic, part.frame, message)
            return _six(message.wrench.force, message.wrench.torque)
        case ArrayPart():
            return _array(message.data, part.names)


def read_command(part: CommandPart, message: Any) -> Trajectory:
    """The targets of a command; all but a trajectory have one, due at once.

    Raises MessageFault for a message that its controller ignores, DataError as `read_state` does.
    """
    match part:
        case ForwardCommand():
            return _at_once(_array(message.data, part.joints))
        case PoseCommand():
            _require_frame(part.topic, part.frame, message)
            return _at_once(pose_values(message.pose))
        case TwistCommand():
            _require_frame(part.topic, part.frame, message)
            return _at_once(_six(message.twist.linear, message.twist.angular))
        case TrajectoryCommand():
            return _trajectory(part, message)


def read_picture(camera: Camera, message: Any) -> Picture:
    """A frame, checked as far as that is cheap: its header, its end, its size in bytes.

    Raises MessageFault for a damaged frame, DataError for another encoding than the contract's.
    """
    if camera.encoding != "compressed":
        return _image(camera, message)
    if "compressedDepth" in str(message.format):
        raise DataError(f"{camera.topic} holds depth ({message.format}); a camera is RGB. Name another topic")
    data = bytes(message.data)
    try:
        height, width = frame_size(data)
    except DataError as error:
        raise MessageFault(f"damaged frame: {error}") from error
    return Picture(data, "compressed", height, width)


def read_bool(message: Any) -> bool:
    """The value of a std_msgs/Bool."""
    return bool(message.data)


def read_button(topic: str, button: int, message: Any) -> bool:
    """Whether a button of a Joy is held. Raises DataError when there is no such button."""
    if button >= len(message.buttons):
        raise DataError(
            f"{topic} has {len(message.buttons)} buttons, the contract names button {button}; buttons are counted "
            "from 0. Mend intervention.button"
        )
    return bool(message.buttons[button])


def stamp_of(message: Any) -> int | None:
    """The source's own time in nanoseconds; None without a header or with an empty stamp."""
    header = getattr(message, "header", None)
    if header is None:
        return None
    stamp = int(header.stamp.sec) * _SECOND + int(header.stamp.nanosec)
    return stamp or None


def pose_values(pose: Any) -> Values:
    """Position and unit quaternion (7,) with qw >= 0, as q and -q are one orientation.

    Raises MessageFault when a value is not finite or the quaternion has no length.
    """
    place, turn = pose.position, pose.orientation
    values = _finite([place.x, place.y, place.z, turn.x, turn.y, turn.z, turn.w])
    length = float(np.linalg.norm(values[3:]))
    if not 0.9 < length < 1.1:
        raise MessageFault(f"a quaternion of length {length:.3g}")
    values[3:] *= math.copysign(1.0 / length, values[6])
    return values


def _joints(part: JointsPart, message: Any) -> Values | None:
    order = _places(part.topic, part.joints, list(message.name))
    if order is None:
        return None
    parts: list[float] = []
    for value in part.values:
        column = getattr(message, value)
        if not len(column):
            raise DataError(
                f"{part.topic} carries no {value}; take it out of the values of this part, or have the driver "
                "publish it"
            )
        if len(column) != len(message.name):
            raise MessageFault(f"{len(column)} values of {value} for {len(message.name)} joints")
        parts += [column[index] for index in order]
    return _finite(parts)


def _places(topic: str, joints: Sequence[str], names: Sequence[str]) -> list[int] | None:
    """Where each joint is among the names; None when none of them is there."""
    places = {name: index for index, name in enumerate(names)}
    missing = [joint for joint in joints if joint not in places]
    if len(missing) == len(joints):
        return None
    if missing:
        raise DataError(
            f"{topic} lacks joint {missing[0]!r}; it has {', '.join(names)}. Mend the joints of the contract; joints "
            "that another message carries need a part of their own"
        )
    if len(places) < len(names):
        raise MessageFault("names a joint twice")
    return [places[joint] for joint in joints]


def _trajectory(part: TrajectoryCommand, message: Any) -> Trajectory:
    points, names = message.points, list(message.joint_names)
    if not points:
        return Trajectory(np.empty((0, len(part.joints))), ())
    order = _places(part.topic, part.joints, names)
    if order is None or len(names) != len(part.joints):
        raise DataError(
            f"{part.topic} moves {', '.join(names)}, the contract's command {', '.join(part.joints)}; a trajectory "
            "controller takes all its joints at once. Mend the joints of the contract"
        )
    due = tuple(int(p.time_from_start.sec) * _SECOND + int(p.time_from_start.nanosec) for p in points)
    if any(later <= earlier for earlier, later in itertools.pairwise(due)):
        raise MessageFault("times of its points that do not increase")
    wrong = [point for point in points if len(point.positions) != len(names)]
    if wrong:
        raise MessageFault(f"a point with {len(wrong[0].positions)} positions for {len(names)} joints")
    return Trajectory(np.stack([_finite([p.positions[i] for i in order]) for p in points]), due)


def _image(camera: Camera, message: Any) -> Picture:
    height, width, step, found = (
        int(message.height),
        int(message.width),
        int(message.step),
        str(message.encoding),
    )
    if found != camera.encoding:
        known = "it is one of those that are read" if found in CHANNELS else f"read are {', '.join(CHANNELS)}"
        raise DataError(
            f"{camera.topic} holds {found!r}, the contract says {camera.encoding!r}; mend the camera's encoding "
            f"({known})"
        )
    data = bytes(message.data)
    if not height or not width or step < width * CHANNELS[found] or len(data) < step * height:
        raise MessageFault(f"{len(data)} bytes for {height} x {width} pixels in rows of {step}")
    return Picture(data, found, height, width, step)


def _array(data: Sequence[float], names: Sequence[str]) -> Values:
    if len(data) != len(names):
        raise MessageFault(f"{len(data)} values, expected {len(names)}")
    return _finite(data)


def _six(linear: Any, angular: Any) -> Values:
    return _finite([linear.x, linear.y, linear.z, angular.x, angular.y, angular.z])


def _at_once(values: Values) -> Trajectory:
    return Trajectory(values[None], (0,))


def _finite(values: Sequence[float]) -> Values:
    # Rows hold 32-bit numbers: what overflows there is no number either.
    out = np.asarray(values, np.float64)
    if not (np.abs(out) < 3e38).all():
        raise MessageFault("a value that is not finite")
    return out


def _require_frame(topic: str, frame: str, message: Any) -> None:
    found = str(message.header.frame_id).lstrip("/")
    if found != frame.lstrip("/"):
        raise DataError(
            f"{topic} is in frame {found!r}, the contract says {frame!r}; numbers of another frame mean something "
            "else. Mend the contract's frame, or publish in it"
        )

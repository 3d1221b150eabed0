"""What a contract says about the topics that are observed: joints, poses, forces, arrays and cameras.

Each part of a state feature knows the dimensions that it adds; how they are read from a message is in
`robot_bridge.messages`.
"""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from flowrl.config import configclass

MILLISECOND = 1_000_000
"""In nanoseconds."""

SUFFIX = {"position": "pos", "velocity": "vel", "effort": "eff"}
"""How the dimensions of a joint end, as in LeRobot: ``shoulder_pan.pos``."""

JointValue = Literal["position", "velocity", "effort"]
Encoding = Literal["compressed", "rgb8", "bgr8", "rgba8", "bgra8", "mono8"]

_TOPIC = re.compile(r"/?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*")


@configclass
class QoS:
    """How a topic is subscribed to or published."""

    reliability: Literal["copy", "reliable", "best_effort"] = "copy"
    """``copy`` takes the publisher's own: a reliable reader never hears a best-effort writer."""
    depth: int = 10
    """Messages that are queued."""

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"depth is {self.depth}; it must be at least 1")


@configclass
class Stream:
    """A topic that is observed."""

    topic: str
    """Its name, with the namespace."""
    max_age_ms: float = 50.0
    """A row is refused when the newest message is older."""
    qos: QoS = QoS()
    """How it is subscribed to."""

    def __post_init__(self) -> None:
        require_topic(self.topic)
        require_positive("max_age_ms", self.max_age_ms)

    @property
    def max_age_ns(self) -> int:
        """The age limit in nanoseconds."""
        return round(self.max_age_ms * MILLISECOND)


@configclass
class JointsPart(Stream):
    """Values of joints, taken by name from a JointState in any order."""

    TYPE: ClassVar[str] = "sensor_msgs/msg/JointState"
    kind: Literal["joints"] = "joints"
    """sensor_msgs/JointState."""
    joints: tuple[str, ...]
    """The joints in the order of the feature; what else the message holds is left out."""
    values: tuple[JointValue, ...] = ("position",)
    """position, velocity, effort: all joints of the first, then all of the second."""
    unit: str = "rad"
    """Unit of the positions, for people."""

    def __post_init__(self) -> None:
        Stream.__post_init__(self)
        require_distinct("joints", self.joints)
        require_distinct("values", self.values)

    @property
    def names(self) -> tuple[str, ...]:
        """One label per dimension: ``<joint>.pos``, ``.vel`` or ``.eff``."""
        return tuple(f"{joint}.{SUFFIX[value]}" for value in self.values for joint in self.joints)


@configclass
class FramedStream(Stream):
    """A topic of geometry, which means something in one frame only."""

    frame: str
    """The frame_id that every message must have."""
    prefix: str = ""
    """Goes before the names of the dimensions, for a second arm."""

    def labelled(self, *names: str) -> tuple[str, ...]:
        """Names with the prefix."""
        return tuple(f"{self.prefix}.{name}" if self.prefix else name for name in names)


@configclass
class PosePart(FramedStream):
    """Position and orientation of a PoseStamped."""

    TYPE: ClassVar[str] = "geometry_msgs/msg/PoseStamped"
    kind: Literal["pose"] = "pose"
    """geometry_msgs/PoseStamped: x, y, z, and the quaternion with qw >= 0."""
    unit: ClassVar[str] = "m, quaternion"

    @property
    def names(self) -> tuple[str, ...]:
        """Seven labels."""
        return self.labelled("x", "y", "z", "qx", "qy", "qz", "qw")


@configclass
class TwistPart(FramedStream):
    """Linear and angular velocity of a TwistStamped."""

    TYPE: ClassVar[str] = "geometry_msgs/msg/TwistStamped"
    kind: Literal["twist"] = "twist"
    """geometry_msgs/TwistStamped: vx, vy, vz, wx, wy, wz."""
    unit: ClassVar[str] = "m/s, rad/s"

    @property
    def names(self) -> tuple[str, ...]:
        """Six labels."""
        return self.labelled("vx", "vy", "vz", "wx", "wy", "wz")


@configclass
class WrenchPart(FramedStream):
    """Force and torque of a WrenchStamped."""

    TYPE: ClassVar[str] = "geometry_msgs/msg/WrenchStamped"
    kind: Literal["wrench"] = "wrench"
    """geometry_msgs/WrenchStamped: fx, fy, fz, tx, ty, tz."""
    unit: ClassVar[str] = "N, N m"

    @property
    def names(self) -> tuple[str, ...]:
        """Six labels."""
        return self.labelled("fx", "fy", "fz", "tx", "ty", "tz")


@configclass
class ArrayPart(Stream):
    """A Float64MultiArray, whose values have names only here."""

    TYPE: ClassVar[str] = "std_msgs/msg/Float64MultiArray"
    kind: Literal["array"] = "array"
    """std_msgs/Float64MultiArray: its data, in its own order."""
    names: tuple[str, ...]
    """One label per value; messages of another length are dropped."""
    unit: str = ""
    """Unit of the values, for people."""

    def __post_init__(self) -> None:
        Stream.__post_init__(self)
        require_distinct("names", self.names)


StatePart = JointsPart | PosePart | TwistPart | WrenchPart | ArrayPart


@configclass
class Camera(Stream):
    """A camera; it becomes ``observation.images.<its key>``."""

    encoding: Encoding = "compressed"
    """``compressed`` is sensor_msgs/CompressedImage (JPEG or PNG); the others sensor_msgs/Image of that encoding."""
    height: int
    """Of the frames that are stored and that a policy sees, pixels; others are resized."""
    width: int
    """Likewise."""
    max_age_ms: float = 100.0
    """A row is refused when the newest frame is older."""
    max_frozen_ms: float | None = 500.0
    """A row is refused when frames have not changed by a bit for longer; null for a simulated camera."""
    qos: QoS = QoS(depth=2)
    """How it is subscribed to."""

    def __post_init__(self) -> None:
        Stream.__post_init__(self)
        for name in ("height", "width"):
            require_positive(name, getattr(self, name))
        if self.max_frozen_ms is not None:
            require_positive("max_frozen_ms", self.max_frozen_ms)

    @property
    def TYPE(self) -> str:
        """The message type."""
        return f"sensor_msgs/msg/{'CompressedImage' if self.encoding == 'compressed' else 'Image'}"

    @property
    def max_frozen_ns(self) -> int | None:
        """The limit on unchanged frames in nanoseconds."""
        return None if self.max_frozen_ms is None else round(self.max_frozen_ms * MILLISECOND)


def require_topic(name: str) -> None:
    """Raise ValueError unless this can be the full name of a ROS 2 topic or service."""
    if not (name.startswith("/") and _TOPIC.fullmatch(name)):
        raise ValueError(
            f"{name!r} is no full name of a topic; write it as `ros2 topic list` does, for example /joint_states"
        )


def require_positive(name: str, value: float) -> None:
    """Raise ValueError unless a number is finite and above zero."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} is {value}; it must be a finite number above 0")


def require_distinct(name: str, values: tuple[str, ...]) -> None:
    """Raise ValueError unless there is at least one value and none is there twice."""
    if not values:
        raise ValueError(f"{name} is empty; name at least one")
    twice = [value for value in values if values.count(value) > 1]
    if twice:
        raise ValueError(f"{name} has {twice[0]!r} twice; each may be there once")

"""What a contract says about commands: who moves what by which message, and the limits that always hold.

An action is the commands of one control step, one part after another. There is no default for a limit: a
robot without limits is no robot to learn on.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

from flowrl.config import configclass
from robot_bridge.contract_streams import (
    MILLISECOND,
    SUFFIX,
    QoS,
    require_distinct,
    require_positive,
    require_topic,
)


@configclass
class JointLimit:
    """What one joint may be told."""

    low: float
    """Lowest position, in the joint's unit."""
    high: float
    """Highest position."""
    velocity: float
    """Fastest change of the command, per second."""
    acceleration: float | None = None
    """Fastest change of that, per second squared; null leaves it to the controller."""

    def __post_init__(self) -> None:
        _require_range("the joint", self.low, self.high)
        require_positive("velocity", self.velocity)
        if self.acceleration is not None:
            require_positive("acceleration", self.acceleration)


@configclass
class Workspace:
    """The box that a pose may be told to reach, and how fast."""

    low: tuple[float, float, float]
    """Lowest x, y, z, m."""
    high: tuple[float, float, float]
    """Highest x, y, z, m."""
    velocity: float
    """Fastest movement, m/s."""
    angular_velocity: float
    """Fastest rotation, rad/s."""

    def __post_init__(self) -> None:
        for axis, low, high in zip("xyz", self.low, self.high, strict=True):
            _require_range(axis, low, high)
        require_positive("velocity", self.velocity)
        require_positive("angular_velocity", self.angular_velocity)


@configclass
class Command:
    """A topic that a controller listens to."""

    topic: str
    """Its name, with the namespace."""
    max_age_ms: float | None = 200.0
    """A recorded row is refused when the newest command is older. Null: it is sent when it changes, and stays in
    force."""
    qos: QoS = QoS(reliability="reliable", depth=1)
    """How it is published."""

    def __post_init__(self) -> None:
        require_topic(self.topic)
        if self.max_age_ms is not None:
            require_positive("max_age_ms", self.max_age_ms)

    @property
    def max_age_ns(self) -> int | None:
        """The age limit in nanoseconds."""
        return None if self.max_age_ms is None else round(self.max_age_ms * MILLISECOND)


@configclass
class JointCommand(Command):
    """Positions of joints."""

    joints: tuple[str, ...]
    """The joints in the order of the action, which for `forward` is the controller's own."""
    limits: dict[str, JointLimit]
    """The limits of every joint, by its name."""
    max_jump: float = 0.2
    """Farthest that a command may be from the measured position, in the joints' unit."""
    unit: str = "rad"
    """Unit of the positions, for people."""

    def __post_init__(self) -> None:
        Command.__post_init__(self)
        require_distinct("joints", self.joints)
        require_positive("max_jump", self.max_jump)
        _require_limits(self.joints, self.limits)

    @property
    def names(self) -> tuple[str, ...]:
        """One label per dimension: ``<joint>.pos``."""
        return tuple(f"{joint}.{SUFFIX['position']}" for joint in self.joints)

    @property
    def bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Lowest and highest values."""
        limits = [self.limits[joint] for joint in self.joints]
        return tuple(each.low for each in limits), tuple(each.high for each in limits)


@configclass
class ForwardCommand(JointCommand):
    """Positions of joints for a forward command controller."""

    TYPE: ClassVar[str] = "std_msgs/msg/Float64MultiArray"
    kind: Literal["forward"] = "forward"
    """std_msgs/Float64MultiArray for a forward command controller."""


@configclass
class TrajectoryCommand(JointCommand):
    """Positions of joints for a joint trajectory controller, by name."""

    TYPE: ClassVar[str] = "trajectory_msgs/msg/JointTrajectory"
    kind: Literal["trajectory"] = "trajectory"
    """trajectory_msgs/JointTrajectory for a joint trajectory controller."""


@configclass
class FramedCommand(Command):
    """A command of geometry, which means something in one frame only."""

    frame: str
    """The frame_id that every message must have."""
    prefix: str = ""
    """Goes before the names of the dimensions, for a second arm."""

    def labelled(self, *names: str) -> tuple[str, ...]:
        """Names with the prefix."""
        return tuple(f"{self.prefix}.{name}" if self.prefix else name for name in names)


@configclass
class PoseCommand(FramedCommand):
    """A target pose for a Cartesian controller."""

    TYPE: ClassVar[str] = "geometry_msgs/msg/PoseStamped"
    kind: Literal["pose"] = "pose"
    """geometry_msgs/PoseStamped: x, y, z, and the quaternion with qw >= 0."""
    limits: Workspace
    """The workspace and the speeds."""
    max_jump: float = 0.1
    """Farthest that a command may be from the measured position, m."""
    unit: ClassVar[str] = "m, quaternion"

    def __post_init__(self) -> None:
        Command.__post_init__(self)
        require_positive("max_jump", self.max_jump)

    @property
    def names(self) -> tuple[str, ...]:
        """Seven labels."""
        return self.labelled("x", "y", "z", "qx", "qy", "qz", "qw")

    @property
    def bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The workspace, and what a unit quaternion with qw >= 0 can hold."""
        return (*self.limits.low, -1.0, -1.0, -1.0, 0.0), (*self.limits.high, 1.0, 1.0, 1.0, 1.0)


@configclass
class TwistCommand(FramedCommand):
    """A velocity for a servo controller."""

    TYPE: ClassVar[str] = "geometry_msgs/msg/TwistStamped"
    kind: Literal["twist"] = "twist"
    """geometry_msgs/TwistStamped: vx, vy, vz, wx, wy, wz."""
    velocity: float
    """Fastest movement along an axis, m/s."""
    angular_velocity: float
    """Fastest rotation about an axis, rad/s."""
    unit: ClassVar[str] = "m/s, rad/s"

    def __post_init__(self) -> None:
        Command.__post_init__(self)
        require_positive("velocity", self.velocity)
        require_positive("angular_velocity", self.angular_velocity)

    @property
    def names(self) -> tuple[str, ...]:
        """Six labels."""
        return self.labelled("vx", "vy", "vz", "wx", "wy", "wz")

    @property
    def bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The speeds in both directions."""
        high = (self.velocity,) * 3 + (self.angular_velocity,) * 3
        return tuple(-value for value in high), high


CommandPart = ForwardCommand | TrajectoryCommand | PoseCommand | TwistCommand


def _require_range(name: str, low: float, high: float) -> None:
    # Bounds without an end would be a limit that is off.
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(
            f"{name} may go from {low} to {high}; give two finite numbers, the lower one first. Limits cannot be "
            "switched off"
        )


def _require_limits(joints: tuple[str, ...], limits: Mapping[str, JointLimit]) -> None:
    missing = [joint for joint in joints if joint not in limits]
    if missing:
        raise ValueError(
            f"limits lacks joint {missing[0]!r}; every joint needs low, high and velocity, which have no default"
        )
    unknown = [joint for joint in limits if joint not in joints]
    if unknown:
        near = difflib.get_close_matches(unknown[0], joints, 1, 0.0)[0]
        raise ValueError(f"limits has {unknown[0]!r}, which is none of joints; the nearest is {near!r}")

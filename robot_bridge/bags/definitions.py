"""The definitions of the messages that contracts name, for bags that do not hold them themselves.

MCAP files carry the definition of every message; SQLite bags only do since ROS 2 Iron.
"""

from __future__ import annotations

_FIELDS = {
    "std_msgs/Header": "builtin_interfaces/Time stamp\nstring frame_id",
    "std_msgs/Bool": "bool data",
    "std_msgs/MultiArrayDimension": "string label\nuint32 size\nuint32 stride",
    "std_msgs/MultiArrayLayout": "std_msgs/MultiArrayDimension[] dim\nuint32 data_offset",
    "std_msgs/Float64MultiArray": "std_msgs/MultiArrayLayout layout\nfloat64[] data",
    "geometry_msgs/Vector3": "float64 x\nfloat64 y\nfloat64 z",
    "geometry_msgs/Point": "float64 x\nfloat64 y\nfloat64 z",
    "geometry_msgs/Quaternion": "float64 x\nfloat64 y\nfloat64 z\nfloat64 w",
    "geometry_msgs/Pose": "geometry_msgs/Point position\ngeometry_msgs/Quaternion orientation",
    "geometry_msgs/Twist": "geometry_msgs/Vector3 linear\ngeometry_msgs/Vector3 angular",
    "geometry_msgs/Wrench": "geometry_msgs/Vector3 force\ngeometry_msgs/Vector3 torque",
    "geometry_msgs/PoseStamped": "std_msgs/Header header\ngeometry_msgs/Pose pose",
    "geometry_msgs/TwistStamped": "std_msgs/Header header\ngeometry_msgs/Twist twist",
    "geometry_msgs/WrenchStamped": "std_msgs/Header header\ngeometry_msgs/Wrench wrench",
    "sensor_msgs/JointState": (
        "std_msgs/Header header\nstring[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort"
    ),
    "sensor_msgs/Joy": "std_msgs/Header header\nfloat32[] axes\nint32[] buttons",
    "sensor_msgs/CompressedImage": "std_msgs/Header header\nstring format\nuint8[] data",
    "sensor_msgs/Image": (
        "std_msgs/Header header\nuint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\n"
        "uint32 step\nuint8[] data"
    ),
    "trajectory_msgs/JointTrajectoryPoint": (
        "float64[] positions\nfloat64[] velocities\nfloat64[] accelerations\nfloat64[] effort\n"
        "builtin_interfaces/Duration time_from_start"
    ),
    "trajectory_msgs/JointTrajectory": (
        "std_msgs/Header header\nstring[] joint_names\ntrajectory_msgs/JointTrajectoryPoint[] points"
    ),
}

_SEPARATOR = "=" * 80


def definition(kind: str) -> str | None:
    """The definition of a message type such as ``sensor_msgs/msg/Joy`` with all it is made of; None if unknown."""
    name = kind.replace("/msg/", "/")
    if name not in _FIELDS:
        return None
    first, *others = _with_parts(name, [])
    return "\n".join([_FIELDS[first], *(f"{_SEPARATOR}\nMSG: {each}\n{_FIELDS[each]}" for each in others)])


def _with_parts(name: str, found: list[str]) -> list[str]:
    """A type and those inside it, each once, as far as they are no built-in ones."""
    if name in _FIELDS and name not in found:
        found.append(name)
        for line in _FIELDS[name].splitlines():
            _with_parts(line.split()[0].removesuffix("[]"), found)
    return found

"""A scripted arm and the bags that it is recorded into: every number follows from a time stamp.

Three joints, a camera whose pixels hold the number of the frame, commands, a joystick and the topics of episodes.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from mcap.writer import CompressionType
from mcap_ros2.writer import Writer
from PIL import Image
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as BagWriter
from rosbags.typesys import Stores, get_typestore

from robot_bridge.bags.definitions import definition
from robot_bridge.contract import Contract, load_contract

MS = 1_000_000
START = 1_700_000_000_000_000_000
"""When the recordings begin, nanoseconds since 1970."""

JOINTS = ("shoulder", "elbow", "wrist")
STATES, CAMERA, COMMANDS = "/joint_states", "/camera/wrist/image_raw/compressed", "/arm/commands"
JOY, RUNNING, SUCCESS = "/joy", "/episode", "/success"
SIZE = (8, 12)

CONTRACT = """
robot: scripted
rate_hz: 20
state:
  observation.state:
    - {kind: joints, topic: /joint_states, joints: [shoulder, elbow, wrist], values: [position, velocity]}
cameras:
  wrist: {topic: /camera/wrist/image_raw/compressed, height: 8, width: 12, max_frozen_ms: null}
command:
  - kind: forward
    topic: /arm/commands
    joints: [shoulder, elbow, wrist]
    limits:
      shoulder: {low: -100, high: 100, velocity: 1}
      elbow: {low: -100, high: 100, velocity: 1}
      wrist: {low: -100, high: 100, velocity: 1}
max_skew_ms: 100
task: follow the script
"""


@dataclass(frozen=True)
class Sent:
    """A message on a topic, and when it arrived."""

    time_ns: int
    topic: str
    kind: str
    message: dict[str, Any]


def contract(folder: Path, *overrides: str, text: str = CONTRACT) -> Contract:
    """The arm's contract, read from a file."""
    path = folder / "contract.yaml"
    path.write_text(text)
    return load_contract(path, overrides)


def header(time_ns: int, frame: str = "") -> dict[str, Any]:
    return {"stamp": {"sec": time_ns // 1_000_000_000, "nanosec": time_ns % 1_000_000_000}, "frame_id": frame}


def angles(time_ns: int) -> list[float]:
    """Joint positions at a time: exact in 32 bits for whole milliseconds up to some minutes."""
    at = (time_ns - START) / MS
    return [at / 1024, -at / 1024, at / 512]


def joints(time_ns: int, order: Sequence[int] = (0, 1, 2), **changed: Any) -> Sent:
    """A JointState with an extra joint, the others in any order."""
    position = angles(time_ns)
    message = {
        "header": header(time_ns),
        "name": ["lamp", *(JOINTS[i] for i in order)],
        "position": [9.0, *(position[i] for i in order)],
        "velocity": [8.0, *(float(i) for i in order)],
        "effort": [],
    }
    return Sent(time_ns, STATES, "sensor_msgs/msg/JointState", message | changed)


@cache
def jpeg(number: int, size: tuple[int, int] = SIZE) -> bytes:
    """A JPEG whose grey value is the number of the frame."""
    out = io.BytesIO()
    Image.fromarray(np.full((*size, 3), number % 256, np.uint8)).save(out, "JPEG", quality=90)
    return out.getvalue()


def frame(time_ns: int, number: int, data: bytes | None = None) -> Sent:
    message = {
        "header": header(time_ns),
        "format": "rgb8; jpeg compressed bgr8",
        "data": jpeg(number) if data is None else data,
    }
    return Sent(time_ns, CAMERA, "sensor_msgs/msg/CompressedImage", message)


def command(time_ns: int, *values: float, topic: str = COMMANDS) -> Sent:
    """A command; without values, the joints' own angles."""
    return Sent(time_ns, topic, "std_msgs/msg/Float64MultiArray", {"data": list(values) or angles(time_ns)})


def flag(time_ns: int, topic: str, value: bool) -> Sent:
    return Sent(time_ns, topic, "std_msgs/msg/Bool", {"data": value})


def joy(time_ns: int, held: bool) -> Sent:
    message = {"header": header(time_ns), "axes": [0.0], "buttons": [0, int(held)]}
    return Sent(time_ns, JOY, "sensor_msgs/msg/Joy", message)


def arm(start_ms: int, stop_ms: int) -> list[Sent]:
    """Joints at 100 Hz in changing order, frames at 10 Hz, commands at 50 Hz; all times in milliseconds."""
    orders = [(0, 1, 2), (2, 0, 1), (1, 2, 0)]
    sent = [joints(START + ms * MS, orders[ms // 10 % 3]) for ms in range(start_ms, stop_ms, 10)]
    sent += [frame(START + ms * MS, ms // 100) for ms in range(start_ms, stop_ms, 100)]
    sent += [command(START + ms * MS) for ms in range(start_ms, stop_ms, 20)]
    return sorted(sent, key=lambda each: each.time_ns)


def write_mcap(
    path: Path,
    sent: Iterable[Sent],
    chunk: int = 4_096,
    compression: CompressionType = CompressionType.ZSTD,
) -> Path:
    """Write messages in the given order, as the recorder of rosbag2 does."""
    with path.open("wb") as file, Writer(file, chunk_size=chunk, compression=compression) as writer:
        schemas: dict[str, Any] = {}
        for each in sent:
            if each.kind not in schemas:
                text = definition(each.kind)
                assert text is not None
                schemas[each.kind] = writer.register_msgdef(each.kind, text)
            writer.write_message(each.topic, schemas[each.kind], each.message, log_time=each.time_ns)
    return path


def write_directory(path: Path, sent: Sequence[Sent], storage: Literal["mcap", "sqlite3"]) -> Path:
    """The directory that another implementation of rosbag2 writes: metadata and one file."""
    store = get_typestore(Stores.ROS2_HUMBLE)
    plugin = {"mcap": StoragePlugin.MCAP, "sqlite3": StoragePlugin.SQLITE3}[storage]
    with BagWriter(path, version=9, storage_plugin=plugin) as writer:
        connections: dict[str, Any] = {}
        for each in sent:
            if each.topic not in connections:
                connections[each.topic] = writer.add_connection(each.topic, each.kind, typestore=store)
            message = _typed(store, each.kind, each.message)
            writer.write(connections[each.topic], each.time_ns, store.serialize_cdr(message, each.kind))
    return path


def _typed(store: Any, kind: str, values: dict[str, Any]) -> Any:
    """A message of rosbags from nested dictionaries; what is left out is empty."""
    made = store.types[kind]
    if kind == "std_msgs/msg/Float64MultiArray":
        layout = store.types["std_msgs/msg/MultiArrayLayout"](dim=[], data_offset=0)
        return made(layout=layout, data=np.asarray(values["data"], np.float64))
    fields: dict[str, Any] = {}
    for name, value in values.items():
        if name == "header":
            stamp = store.types["builtin_interfaces/msg/Time"](**value["stamp"])
            value = store.types["std_msgs/msg/Header"](stamp=stamp, frame_id=value["frame_id"])
        elif isinstance(value, bytes):
            value = np.frombuffer(value, np.uint8)
        elif name in ("position", "velocity", "effort"):
            value = np.asarray(value, np.float64)
        elif name in ("axes", "buttons"):
            value = np.asarray(value, {"axes": np.float32, "buttons": np.int32}[name])
        fields[name] = value
    return made(**fields)

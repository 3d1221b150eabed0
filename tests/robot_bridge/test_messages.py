"""From messages to numbers: by name, in the stated frame, and never from a message that is damaged."""

from __future__ import annotations

import math
from types import SimpleNamespace as Message
from typing import Any

import numpy as np
import pytest

from flowrl.errors import DataError
from robot_bridge.contract_commands import (
    ForwardCommand,
    JointLimit,
    PoseCommand,
    TrajectoryCommand,
    TwistCommand,
    Workspace,
)
from robot_bridge.contract_streams import ArrayPart, Camera, JointsPart, PosePart, TwistPart, WrenchPart
from robot_bridge.messages import (
    MessageFault,
    Picture,
    read_button,
    read_command,
    read_picture,
    read_state,
    stamp_of,
)
from tests.robot_bridge.scripted import jpeg

ARM = JointsPart(topic="/joints", joints=("a", "b"), values=("position", "effort"))
LIMITS = {joint: JointLimit(low=-1, high=1, velocity=1) for joint in ("a", "b")}
FORWARD = ForwardCommand(topic="/forward", joints=("a", "b"), limits=LIMITS)
TRAJECTORY = TrajectoryCommand(topic="/trajectory", joints=("a", "b"), limits=LIMITS)
FRAMED: dict[str, Any] = {"topic": "/t", "frame": "base"}


def joints(**fields: Any) -> Message:
    values = {
        "name": ["b", "lamp", "a"],
        "position": [2.0, 9.0, 1.0],
        "velocity": [],
        "effort": [4.0, 8.0, 3.0],
    }
    return Message(**{**values, **fields})


def stamped(frame: str = "base", **fields: Any) -> Message:
    return Message(header=Message(frame_id=frame, stamp=Message(sec=3, nanosec=5)), **fields)


def vector(*values: float) -> Message:
    return Message(**dict(zip("xyzw", values, strict=False)))


def pose(*turn: float, frame: str = "base") -> Message:
    return stamped(frame, pose=Message(position=vector(1, 2, 3), orientation=vector(*turn)))


def point(milliseconds: int, *positions: float) -> Message:
    return Message(
        positions=list(positions), time_from_start=Message(sec=0, nanosec=milliseconds * 1_000_000)
    )


def trajectory(*points: Message, names: tuple[str, ...] = ("b", "a")) -> Message:
    return Message(joint_names=list(names), points=list(points))


def test_joints_are_taken_by_name_in_any_order() -> None:
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        shuffled = {
            key: [values[i] for i in order] for key, values in vars(joints()).items() if len(values) == 3
        }
        np.testing.assert_array_equal(read_state(ARM, joints(**shuffled)), [1.0, 2.0, 3.0, 4.0])


def test_a_missing_joint_is_named() -> None:
    with pytest.raises(DataError, match=r"/joints lacks joint 'a'; it has b, lamp"):
        read_state(ARM, joints(name=["b", "lamp"]))


def test_another_publisher_on_the_topic_is_told_apart() -> None:
    assert read_state(ARM, joints(name=["x", "y", "z"])) is None


def test_a_value_that_the_driver_does_not_publish_is_named() -> None:
    with pytest.raises(DataError, match=r"/joints carries no effort; take it out"):
        read_state(ARM, joints(effort=[]))


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"position": [1.0, 2.0]}, "2 values of position for 3 joints"),
        ({"name": ["a", "b", "a"]}, "names a joint twice"),
        ({"position": [2.0, 9.0, math.nan]}, "not finite"),
        ({"effort": [4.0, 8.0, math.inf]}, "not finite"),
        ({"effort": [4.0, 8.0, 1e39]}, "not finite"),
    ],
)
def test_a_useless_message_is_a_fault(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(MessageFault, match=match):
        read_state(ARM, joints(**fields))


def test_what_is_not_asked_for_may_be_anything() -> None:
    np.testing.assert_array_equal(
        read_state(ARM, joints(position=[2.0, math.nan, 1.0])), [1.0, 2.0, 3.0, 4.0]
    )


def test_a_pose_has_one_quaternion_for_both_of_its_signs() -> None:
    part = PosePart(**FRAMED)
    expected = [1, 2, 3, 0.6, 0.0, 0.0, 0.8]
    for turn in ((0.6, 0.0, 0.0, 0.8), (-0.6, 0.0, 0.0, -0.8), (0.63, 0.0, 0.0, 0.84)):
        np.testing.assert_allclose(read_state(part, pose(*turn)), expected, atol=1e-15)


def test_a_quaternion_without_length_is_a_fault() -> None:
    with pytest.raises(MessageFault, match="quaternion of length 0"):
        read_state(PosePart(**FRAMED), pose(0, 0, 0, 0))


def test_twist_and_wrench() -> None:
    six = (vector(1, 2, 3), vector(4, 5, 6))
    twist = stamped(twist=Message(linear=six[0], angular=six[1]))
    wrench = stamped("/base", wrench=Message(force=six[0], torque=six[1]))
    np.testing.assert_array_equal(read_state(TwistPart(**FRAMED), twist), [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(read_state(WrenchPart(**FRAMED), wrench), [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize("frame", ["", "world"])
def test_another_frame_is_refused(frame: str) -> None:
    with pytest.raises(DataError, match=rf"/t is in frame '{frame}', the contract says 'base'"):
        read_state(PosePart(**FRAMED), pose(0, 0, 0, 1, frame=frame))


def test_an_array_has_its_length() -> None:
    part = ArrayPart(topic="/array", names=("p", "q"))
    np.testing.assert_array_equal(read_state(part, Message(data=[1.0, 2.0])), [1, 2])
    with pytest.raises(MessageFault, match="3 values, expected 2"):
        read_state(part, Message(data=[1.0, 2.0, 3.0]))


def test_commands_due_at_once_hold_at_every_age() -> None:
    box = Workspace(low=(0, 0, 0), high=(1, 1, 1), velocity=1, angular_velocity=1)
    twist = stamped(twist=Message(linear=vector(1, 2, 3), angular=vector(4, 5, 6)))
    for part, message, expected in (
        (FORWARD, Message(data=[1.0, 2.0]), [1, 2]),
        (PoseCommand(**FRAMED, limits=box), pose(0, 0, 0, -1), [1, 2, 3, 0, 0, 0, 1]),
        (TwistCommand(**FRAMED, velocity=1, angular_velocity=1), twist, [1, 2, 3, 4, 5, 6]),
    ):
        for age in (0, 10**9):
            np.testing.assert_array_equal(read_command(part, message).target(age), expected)


def test_a_trajectory_gives_its_next_target() -> None:
    read = read_command(TRAJECTORY, trajectory(point(20, 2, 1), point(40, 4, 3), point(60, 6, 5)))
    targets = {ms: read.target(ms * 1_000_000) for ms in (0, 20, 21, 40, 59, 61, 500)}
    expected = {0: [1, 2], 20: [1, 2], 21: [3, 4], 40: [3, 4], 59: [5, 6], 61: [5, 6], 500: [5, 6]}
    for ms, target in targets.items():
        np.testing.assert_array_equal(target, expected[ms])


def test_a_trajectory_without_points_stops_the_controller() -> None:
    assert read_command(TRAJECTORY, trajectory()).target(0) is None


def test_a_trajectory_that_a_controller_refuses() -> None:
    for names in (("b", "a", "c"), ("a",), ("c", "d")):
        with pytest.raises(DataError, match=r"/trajectory (moves|lacks joint 'b')"):
            read_command(TRAJECTORY, trajectory(point(1, *range(len(names))), names=names))
    with pytest.raises(MessageFault, match="do not increase"):
        read_command(TRAJECTORY, trajectory(point(20, 1, 2), point(20, 1, 2)))
    with pytest.raises(MessageFault, match="1 positions for 2 joints"):
        read_command(TRAJECTORY, trajectory(point(20, 1)))


COLOURS = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)


@pytest.mark.parametrize(
    ("encoding", "stored"),
    [
        ("rgb8", COLOURS),
        ("bgr8", COLOURS[:, :, ::-1]),
        ("rgba8", np.concatenate([COLOURS, COLOURS[:, :, :1]], axis=2)),
        ("bgra8", np.concatenate([COLOURS[:, :, ::-1], COLOURS[:, :, :1]], axis=2)),
    ],
)
@pytest.mark.parametrize("padding", [0, 5])
def test_raw_images_become_rgb(encoding: Any, stored: np.ndarray[Any, Any], padding: int) -> None:
    rows = stored.reshape(2, -1)
    data = np.pad(rows, ((0, 0), (0, padding)), constant_values=77).tobytes()
    message = stamped(height=2, width=3, step=rows.shape[1] + padding, encoding=encoding, data=data)
    read = read_picture(Camera(topic="/c", encoding=encoding, height=2, width=3), message)
    np.testing.assert_array_equal(read.pixels(), COLOURS)


def test_grey_becomes_three_equal_channels() -> None:
    pixels = Picture(bytes(range(6)), "mono8", 2, 3, 3).pixels()
    assert (pixels == np.arange(6, dtype=np.uint8).reshape(2, 3, 1)).all()


def test_images_that_are_no_such_images() -> None:
    camera = Camera(topic="/c", encoding="rgb8", height=2, width=3)
    good: dict[str, Any] = {"height": 2, "width": 3, "step": 9, "encoding": "rgb8", "data": bytes(18)}
    with pytest.raises(DataError, match=r"/c holds '16UC1', the contract says 'rgb8'.*read are rgb8"):
        read_picture(camera, stamped(**good | {"encoding": "16UC1"}))
    for wrong in ({"data": bytes(17)}, {"step": 8}, {"height": 0}):
        with pytest.raises(MessageFault, match="bytes for"):
            read_picture(camera, stamped(**good | wrong))


def test_compressed_frames_are_kept_as_they_are() -> None:
    camera = Camera(topic="/c", height=8, width=12)
    read = read_picture(camera, stamped(format="jpeg", data=jpeg(3)))
    assert (read.data, read.height, read.width) == (jpeg(3), 8, 12)
    for damaged in (jpeg(3)[:-20], b"", b"no file at all"):
        with pytest.raises(MessageFault, match="damaged frame"):
            read_picture(camera, stamped(format="jpeg", data=damaged))
    with pytest.raises(DataError, match="holds depth"):
        read_picture(camera, stamped(format="16UC1; compressedDepth png", data=jpeg(3)))


def test_buttons_and_stamps() -> None:
    message = stamped(buttons=[0, 1])
    assert [read_button("/joy", index, message) for index in (0, 1)] == [False, True]
    with pytest.raises(DataError, match=r"/joy has 2 buttons, the contract names button 2"):
        read_button("/joy", 2, message)
    assert stamp_of(message) == 3_000_000_005
    assert stamp_of(Message(data=1)) is None

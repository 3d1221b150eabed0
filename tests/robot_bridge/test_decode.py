"""Decoding by the definition in the bag, also of what other serialisers write, and the order of messages."""

from __future__ import annotations

import numpy as np
import pytest
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from flowrl.errors import DataError
from robot_bridge.bags import definitions
from robot_bridge.bags.decode import Decoder
from robot_bridge.bags.definitions import definition
from robot_bridge.bags.order import PAUSE, WINDOW, Break, Ordering, Timed
from robot_bridge.bags.records import Channel, Hole, Recorded
from robot_bridge.messages import MessageFault

JOINT_STATE = "sensor_msgs/msg/JointState"
# rclpy 9.1 with Fast CDR: names a, b; positions 1, 2; no velocity; effort 3, 4. It reserves eight bytes too
# many, and what is in them, as between values, is chance.
FAST_CDR = bytes.fromhex(
    "0001000000000000000000000100000000e595680200000002000000610000000200000062000000"
    "02000000000000000000f03f00000000000000400000000002000000000000000000084000000000"
    "00001040537f000030e89568"
)


def channel(kind: str = JOINT_STATE, **changed: str) -> Channel:
    text = definition(kind) or "bool data"
    fields = {"message_encoding": "cdr", "definition_encoding": "ros2msg", **changed}
    return Channel("/t", kind, fields["message_encoding"], fields["definition_encoding"], text.encode())


def recorded(time_ns: int, topic: str = "/t") -> Recorded:
    return Recorded(Channel(topic, "", "", "", b""), time_ns, b"")


def test_the_bytes_of_fast_cdr_are_read_in_spite_of_their_end() -> None:
    message = Decoder({"/t": JOINT_STATE}).decode(Recorded(channel(), 0, FAST_CDR))
    assert (list(message.name), list(message.position), list(message.velocity)) == (["a", "b"], [1, 2], [])
    assert list(message.effort) == [3, 4]


def test_bytes_that_are_no_message_are_a_fault() -> None:
    decoder = Decoder({"/t": JOINT_STATE})
    for length in (0, 3, 4, 20, 40, 70):
        with pytest.raises(MessageFault, match="cannot be decoded"):
            decoder.decode(Recorded(channel(), 0, FAST_CDR[:length]))
    for _ in range(3):
        assert decoder.decode(Recorded(channel(), 0, FAST_CDR)).effort[0] == 3


@pytest.mark.parametrize(
    ("made", "match"),
    [
        (
            channel("std_msgs/msg/Bool"),
            "topic /t has type std_msgs/msg/Bool, the contract expects sensor_msgs",
        ),
        (channel(message_encoding="json"), "is encoded as 'json', expected 'cdr'"),
        (channel(definition_encoding="ros2idl"), "is defined in 'ros2idl'"),
        (
            Channel("/t", JOINT_STATE, "cdr", "ros2msg", b"not a definition"),
            "its definition cannot be parsed",
        ),
    ],
)
def test_a_topic_that_cannot_be_decoded_is_refused(made: Channel, match: str) -> None:
    with pytest.raises(DataError, match=match):
        Decoder({"/t": JOINT_STATE}).decode(Recorded(made, 0, FAST_CDR))


def test_built_in_definitions_are_those_of_ros_2() -> None:
    store = get_typestore(Stores.ROS2_HUMBLE)
    for name in definitions._FIELDS:
        kind = name.replace("/", "/msg/")
        ours = get_types_from_msg(definition(kind) or "", kind)
        for part, fields in ours.items():
            assert fields[1] == store.fielddefs[part][1], part


def test_messages_come_out_by_time_and_equal_ones_as_they_came() -> None:
    times = [30, 10, 20, 20, 5]
    items = [Recorded(Channel(str(i), "", "", "", b""), at, b"") for i, at in enumerate(times)]
    found = list(Ordering({}).events(items))
    assert [(each.time_ns, each.message.channel.topic) for each in found if isinstance(each, Timed)] == [
        (5, "4"),
        (10, "1"),
        (20, "2"),
        (20, "3"),
        (30, "0"),
    ]


def test_an_order_within_the_window_is_no_break_and_beyond_it_is_one() -> None:
    for step, breaks in ((WINDOW, 0), (WINDOW + 1, 1)):
        ordering = Ordering({})
        found = list(ordering.events([recorded(10 * WINDOW), recorded(10 * WINDOW - step)]))
        assert [each.gap_ns for each in found if isinstance(each, Break)] == [-step] * breaks
        assert ordering.sorted_in == 1 - breaks
    for step, breaks in ((PAUSE, 0), (PAUSE + 1, 1)):
        found = list(Ordering({}).events([recorded(0), recorded(step)]))
        assert [each.gap_ns for each in found if isinstance(each, Break)] == [step] * breaks


def test_only_what_is_certain_comes_before_a_hole() -> None:
    ordering = Ordering({"/late": 7})
    items = [
        recorded(0),
        recorded(100, "/late"),
        recorded(200),
        recorded(WINDOW + 107),
        Hole("f", "", 0),
        recorded(1),
    ]
    found = list(ordering.events(items))
    # Below WINDOW + 107 - WINDOW - 7 = 100 everything is there: at 200 and 107 something may be missing.
    assert [each.time_ns if isinstance(each, Timed) else each for each in found] == [
        0,
        93,
        Break("hole", 100, 0),
        1,
    ]
    assert ordering.unused == 2


def test_a_shuffle_within_the_window_is_undone() -> None:
    generator = np.random.default_rng(0)
    times = np.sort(generator.integers(0, 20 * WINDOW, 500))
    shuffled = times[np.argsort(times + generator.integers(0, WINDOW, 500))]
    found = list(Ordering({}).events([recorded(int(each)) for each in shuffled]))
    assert [each.time_ns for each in found if isinstance(each, Timed)] == times.tolist()

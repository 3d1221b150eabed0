"""Importing bags: exact rows for known times, counts of everything that is dropped, and every refusal."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flowrl.errors import DataError, FlowRLError, ReplayError, UsageError
from flowrl.replay.frames import FrameCodec
from flowrl.replay.importers.report import ImportReport, read_report
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import EPISODE, NO_INTERVENTION, Outcome, OutcomeBy, Source
from flowrl.replay.verify import verify
from robot_bridge.assembler import Assembler, Row
from robot_bridge.bags.importer import BagOptions, import_bag
from tests.robot_bridge import scripted
from tests.robot_bridge.scripted import (
    CAMERA,
    COMMANDS,
    MS,
    RUNNING,
    START,
    STATES,
    SUCCESS,
    Sent,
    angles,
    arm,
    command,
    contract,
    flag,
    frame,
    joints,
    joy,
    jpeg,
    write_directory,
    write_mcap,
)

WRIST = "observation.images.wrist"
TAKEOVER = "intervention={kind: takeover, topic: /episode}"


def run(
    folder: Path,
    sent: Sequence[Sent],
    *overrides: str,
    name: str = "bag",
    text: str = scripted.CONTRACT,
    **options: Any,
) -> tuple[ImportReport, ReplayReader]:
    """Write the messages to a bag in this order and import it into a replay of its own."""
    path = write_mcap(folder / f"{name}.mcap", sent)
    replay = folder / f"replay-{name}"
    report = import_bag(path, replay, name, contract(folder, *overrides, text=text), BagOptions(**options))
    assert verify(replay).ok
    return report, ReplayReader(replay)


def times(reader: ReplayReader) -> list[float]:
    """Milliseconds of every row since the recording began."""
    return [(stamp - START) / MS for stamp in reader.column("stamp_ns").tolist()]


def dropped(report: ImportReport) -> dict[tuple[str, str], int]:
    return {(each.what, each.reason): each.count for each in report.dropped}


def at(ms: float) -> int:
    return START + round(ms * MS)


def by_time(sent: Sequence[Sent]) -> list[Sent]:
    return sorted(sent, key=lambda each: each.time_ns)


def without(sent: Sequence[Sent], topic: str, start: float, stop: float) -> list[Sent]:
    """What is left when a topic falls silent from ``start`` to before ``stop`` ms."""
    return [each for each in sent if not (each.topic == topic and at(start) <= each.time_ns < at(stop))]


# Rows


def test_hand_made_times_give_the_rows_worked_out_by_hand(tmp_path: Path) -> None:
    # The first row is possible at 7 ms; then every 50 ms: 7, 57, 107. At 107 the newest joints are those of 107
    # itself, the newest frame that of 90 and the newest command that of 106.
    sent = [
        joints(at(0)),
        frame(at(3), 1),
        command(at(7), 1, 1, 1),
        joints(at(56.999999)),
        command(at(57.000001), 2, 2, 2),
        frame(at(90), 2),
        command(at(106), 3, 3, 3),
        joints(at(107), (2, 1, 0)),
        joints(at(108)),
    ]
    report, reader = run(tmp_path, sent)
    assert times(reader) == [7.0, 57.0, 107.0]
    newest = [0, 56.999999, 107]
    expected = [[*angles(at(ms)), 0, 1, 2] for ms in newest]
    np.testing.assert_array_equal(reader.state, np.asarray(expected, np.float32))
    np.testing.assert_array_equal(reader.action, [[1, 1, 1], [1, 1, 1], [3, 3, 3]])
    assert reader.column("age_ns").tolist() == [7 * MS, 54 * MS, 17 * MS]
    pixels = reader.frames.pixels(WRIST, range(3))[:, 0, 0, 0].tolist()
    assert pixels == [1, 1, 2]
    assert (report.episodes, report.steps, report.format) == (1, 3, "rosbag2 MCAP")


def test_a_30_hz_camera_and_100_hz_joints_make_rows_at_20_hz(tmp_path: Path) -> None:
    frames = [frame(at(1000 * k / 30), k) for k in range(60)]
    sent = by_time([each for each in arm(0, 2000) if each.topic != CAMERA] + frames)
    _, reader = run(tmp_path, sent)
    assert times(reader) == [50.0 * k for k in range(40)]
    rows = np.arange(40)
    np.testing.assert_array_equal(reader.state[:, 0], np.float32(50 * rows / 1024))
    # A frame at 1000 k / 30 ms is the newest not newer than 50 r where k = floor(1.5 r).
    newest = reader.frames.pixels(WRIST, range(40))[:, 0, 0, 0].numpy()
    np.testing.assert_array_equal(newest, rows * 3 // 2)


def test_frames_of_the_right_size_are_kept_byte_for_byte(tmp_path: Path) -> None:
    _, reader = run(tmp_path, arm(0, 500))
    stored = reader.frames.encoded(WRIST, range(10))
    assert stored == [jpeg(row // 2) for row in range(10)]


def test_raw_images_keep_every_bit_through_png(tmp_path: Path) -> None:
    def raw(ms: int) -> Sent:
        bgr = np.full((8, 12, 3), (ms, 2, 250), np.uint8)
        message = {
            "header": scripted.header(at(ms)),
            "height": 8,
            "width": 12,
            "encoding": "bgr8",
            "step": 36,
        }
        return Sent(
            at(ms), CAMERA, "sensor_msgs/msg/Image", message | {"is_bigendian": 0, "data": bgr.tobytes()}
        )

    sent = [each for each in arm(0, 200) if each.topic != CAMERA] + [raw(ms) for ms in range(0, 200, 50)]
    text = scripted.CONTRACT.replace("height: 8", "encoding: bgr8, height: 8")
    _, reader = run(tmp_path, by_time(sent), text=text, codec=FrameCodec("png"))
    pixels = reader.frames.pixels(WRIST, range(4)).numpy()
    expected = np.array([[250, 2, ms] for ms in range(0, 200, 50)], np.uint8)
    np.testing.assert_array_equal(pixels, np.broadcast_to(expected[:, :, None, None], (4, 3, 8, 12)))


def test_frames_of_another_size_are_resized_and_named(tmp_path: Path) -> None:
    sent = [
        frame(each.time_ns, 0, jpeg(99, (16, 36))) if each.topic == CAMERA else each for each in arm(0, 200)
    ]
    report, reader = run(tmp_path, sent)
    assert np.abs(reader.frames.pixels(WRIST, range(4)).numpy().astype(int) - 99).max() <= 2, "JPEG, twice"
    assert any(
        "wrist is resized from 16 x 36 to 8 x 12 pixels, which changes their proportions" in warning
        for warning in report.warnings
    )


def test_a_live_assembler_gives_the_rows_of_the_bag(tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    sent = [replace(each, time_ns=each.time_ns + int(generator.integers(0, 9 * MS))) for each in arm(0, 1000)]
    sent, late = by_time(sent), ("cameras.wrist.max_age_ms=120", "max_skew_ms=120")
    _, reader = run(tmp_path, sent, *late)
    live, waiting = Assembler(contract(tmp_path, *late)), iter(sent)
    following = next(waiting)
    for row, now in enumerate(reader.column("stamp_ns").tolist()):
        while following is not None and following.time_ns <= now:
            live.put(following.topic, spoken(following.message), following.time_ns)
            following = next(waiting, None)
        made = live.row(now)
        assert isinstance(made, Row)
        np.testing.assert_array_equal(made.observed.observation["observation.state"], reader.state[row])
        np.testing.assert_array_equal(made.commanded.action, reader.action[row])
        assert made.observed.observation[WRIST] == reader.frames.encoded(WRIST, [row])[0]
        assert made.observed.age_ns == reader.column("age_ns")[row]
    assert len(reader.state) == 20


def spoken(value: Any) -> Any:
    """A message as rclpy delivers it: an object with fields."""
    if isinstance(value, dict):
        return SimpleNamespace(**{key: spoken(each) for key, each in value.items()})
    return value


def test_commands_may_be_read_later_than_observations(tmp_path: Path) -> None:
    # Each command answers the observation 20 ms before it.
    sent = [each for each in arm(0, 1000) if each.topic != COMMANDS]
    sent += [command(at(50 * k + 20), k, k, k) for k in range(20)]
    _, held = run(tmp_path, by_time(sent), name="held")
    _, answered = run(tmp_path, by_time(sent), "command_after_ms=30", name="answered")
    assert times(held)[0] == 20.0, "nothing is commanded before"
    assert times(answered) == [50.0 * k for k in range(20)]
    assert answered.action[:, 0].tolist() == list(range(20))


def test_a_trajectory_controller_is_read_by_its_next_target(tmp_path: Path) -> None:
    def window(ms: int) -> Sent:
        points = [
            {"positions": [ms + due, 0.0, -1.0], "time_from_start": {"sec": 0, "nanosec": due * MS}}
            for due in (40, 80, 120)
        ]
        message = {"joint_names": ["wrist", "shoulder", "elbow"], "points": points}
        return Sent(at(ms), COMMANDS, "trajectory_msgs/msg/JointTrajectory", message)

    sent = [each for each in arm(0, 400) if each.topic != COMMANDS] + [window(ms) for ms in (0, 200)]
    text = scripted.CONTRACT.replace("kind: forward", "kind: trajectory").replace(
        "-100, high: 100", "-1e3, high: 1e3"
    )
    _, reader = run(tmp_path, by_time(sent), text=text)
    # At 0, 50, 100, 150 ms the first target that is not yet due is at 40, 80, 120 and, past the last, 120.
    assert reader.action[:, 2].tolist() == [40, 80, 120, 120, 240, 280, 320, 320]
    assert reader.action[0].tolist() == [0.0, -1.0, 40.0]


# Gaps, ages, jumps


def test_few_missing_rows_stay_inside_an_episode(tmp_path: Path) -> None:
    # Joints are silent from 210 to 340 ms: older than 50 ms at 300 alone (the last were at 200).
    report, reader = run(tmp_path, without(arm(0, 1000), STATES, 210, 350))
    assert times(reader) == [50.0 * k for k in range(20) if k != 6]
    assert report.episodes == 1
    assert dropped(report) == {("rows", "observation.state: older than 50 ms"): 1}


def test_a_longer_gap_cuts_the_episode(tmp_path: Path) -> None:
    # Silent from 210 to 590 ms: refused are 300, 350 and 400, which is one too many; joints come again at 590.
    report, reader = run(tmp_path, without(arm(0, 1000), STATES, 210, 590))
    assert times(reader) == [50.0 * k for k in range(6)] + [590.0 + 50 * k for k in range(9)]
    assert reader.table[:, EPISODE["length"]].tolist() == [6, 9]
    assert reader.table[:, EPISODE["outcome"]].tolist() == [Outcome.INTERRUPTED, Outcome.UNKNOWN]
    assert reader.column("truncated").tolist() == [0] * 5 + [1] + [0] * 8 + [1]
    assert dropped(report)["rows", "observation.state: older than 50 ms"] == 3
    assert dropped(report)["milliseconds", "inside episodes, while a stream was missing or too old"] == 190
    assert any("cut by a gap in a stream (1)" in warning for warning in report.warnings)


def test_streams_that_end_at_different_times_do_not_cut_the_episode(tmp_path: Path) -> None:
    report, reader = run(tmp_path, without(arm(0, 1000), STATES, 400, 1000))
    assert times(reader)[-1] == 400.0
    assert reader.table[:, EPISODE["outcome"]].tolist() == [Outcome.UNKNOWN]
    assert dropped(report)["rows", "observation.state: older than 50 ms"] == 3


@pytest.mark.parametrize("jump_ms", [-3_600_000, -600, 3_600_000, 1_600_000_000_000])
def test_a_clock_that_jumps_splits_and_is_reported(tmp_path: Path, jump_ms: int) -> None:
    late = [replace(each, time_ns=each.time_ns + jump_ms * MS) for each in arm(1000, 2000)]
    report, reader = run(tmp_path, [*arm(0, 1000), *late])
    expected = [50.0 * k for k in range(20)]
    assert times(reader) == expected + [1000 + jump_ms + each for each in expected]
    np.testing.assert_array_equal(reader.state[:, 0], np.float32(50 * np.arange(40) / 1024))
    assert reader.table[:, EPISODE["outcome"]].tolist() == [Outcome.INTERRUPTED, Outcome.UNKNOWN]
    word = "was set back by" if jump_ms < 0 else "the clock was set forward"
    assert sum(word in warning for warning in report.warnings) == 1
    moved = any("the clock that stamps /joint_states moved" in warning for warning in report.warnings)
    assert moved == (abs(jump_ms) > 1000)


def test_messages_out_of_order_are_sorted(tmp_path: Path) -> None:
    ordered = arm(0, 1000)
    mixed = ordered.copy()
    generator = np.random.default_rng(0)
    delay = generator.uniform(0, 400 * MS, len(mixed))
    mixed = [
        ordered[i] for i in np.argsort([each.time_ns + d for each, d in zip(ordered, delay, strict=True)])
    ]
    _, straight = run(tmp_path, ordered, name="straight")
    report, reader = run(tmp_path, mixed, name="mixed")
    np.testing.assert_array_equal(reader.state, straight.state)
    np.testing.assert_array_equal(reader.action, straight.action)
    assert times(reader) == times(straight)
    newest, late = 0, 0
    for each in mixed:
        late += each.time_ns < newest
        newest = max(newest, each.time_ns)
    assert any(f"{late} messages were out of order" in warning for warning in report.warnings)


def test_source_stamps_that_go_back_are_reported_and_change_no_row(tmp_path: Path) -> None:
    sent = arm(0, 1000)
    late = next(i for i, each in enumerate(sent) if each.topic == STATES and each.time_ns == at(500))
    sent[late] = joints(at(500), header=scripted.header(at(410)))
    report, reader = run(tmp_path, sent)
    assert len(times(reader)) == 20
    assert any("the stamps of /joint_states go back 1 times" in warning for warning in report.warnings)


# Episodes, outcomes, takeovers


def test_a_running_topic_says_where_episodes_are(tmp_path: Path) -> None:
    flags = [flag(at(ms), RUNNING, ms in (200, 400, 900)) for ms in (0, 200, 400, 600, 700, 900, 1300)]
    report, reader = run(tmp_path, by_time([*arm(0, 1500), *flags]), f"episodes.running={RUNNING}")
    # Running from 200 to before 600 and from 900 to before 1300; each has its own grid.
    assert times(reader) == [*np.arange(200, 600, 50), *np.arange(900, 1300, 50)]
    assert report.demonstrations == ("episode_0", "episode_1")
    assert reader.table[:, EPISODE["outcome"]].tolist() == [Outcome.UNKNOWN] * 2
    assert {reader.tasks[i] for i in reader.table[:, EPISODE["task"]]} == {"follow the script"}


def test_somebody_says_how_episodes_went(tmp_path: Path) -> None:
    flags = [
        flag(at(ms), RUNNING, value) for ms, value in ((0, True), (300, False), (500, True), (800, False))
    ]
    flags += [flag(at(1000), RUNNING, True), flag(at(1300), RUNNING, False)]
    # Said after the first, during the second and nothing about the third.
    flags += [flag(at(400), SUCCESS, True), flag(at(700), SUCCESS, False)]
    overrides = (f"episodes.running={RUNNING}", f"episodes.success={SUCCESS}")
    report, reader = run(tmp_path, by_time([*arm(0, 1500), *flags]), *overrides)
    assert reader.table[:, EPISODE["outcome"]].tolist() == [Outcome.SUCCESS, Outcome.FAILURE, Outcome.UNKNOWN]
    by = [OutcomeBy.HUMAN, OutcomeBy.HUMAN, OutcomeBy.NONE]
    assert reader.table[:, EPISODE["outcome_by"]].tolist() == by
    assert np.flatnonzero(reader.reward).tolist() == [5], "on the last row of the success"
    assert np.flatnonzero(reader.column("terminated")).tolist() == [5]
    assert np.flatnonzero(reader.column("truncated")).tolist() == [11, 17]
    assert report.successes == 1
    assert any("nothing was said about 1 episodes" in warning for warning in report.warnings)


def test_a_takeover_marks_exactly_its_rows(tmp_path: Path) -> None:
    # Twenty rows; a person is in charge from 250 to 500 ms and from 700 to 750: 5 rows and 1.
    sent = [*arm(0, 1000), flag(at(0), RUNNING, False)]
    sent += [
        flag(at(ms), RUNNING, value) for ms, value in ((250, True), (500, False), (700, True), (750, False))
    ]
    _, reader = run(tmp_path, by_time(sent), TAKEOVER)
    human = [5 <= k < 10 or k == 14 for k in range(20)]
    assert reader.column("source").tolist() == [Source.HUMAN if h else Source.POLICY for h in human]
    number = [0 if 5 <= k < 10 else 1 if k == 14 else NO_INTERVENTION for k in range(20)]
    assert reader.column("intervention_id").tolist() == number
    proposed = reader.policy_action
    assert np.isnan(proposed).all(axis=1).tolist() == human
    np.testing.assert_array_equal(proposed[~np.array(human)], reader.action[~np.array(human)])


def test_a_held_button_is_a_takeover(tmp_path: Path) -> None:
    presses = [joy(at(ms), held) for ms, held in ((0, False), (251, True), (401, False))]
    joystick = "intervention={kind: joy, button: 1, release_ms: 100}"
    _, reader = run(tmp_path, by_time([*arm(0, 1000), *presses]), joystick)
    # From 251 until 401 + 100: the rows at 300, 350, 400, 450, 500.
    assert np.flatnonzero(reader.column("source") == Source.HUMAN).tolist() == [6, 7, 8, 9, 10]


def test_without_an_intervention_a_person_acts_throughout(tmp_path: Path) -> None:
    _, reader = run(tmp_path, arm(0, 300))
    assert set(reader.column("source").tolist()) == {Source.HUMAN}
    _, reader = run(tmp_path, arm(0, 300), name="scripted", source=Source.SCRIPTED)
    assert set(reader.column("source").tolist()) == {Source.SCRIPTED}


def test_silence_on_the_intervention_needs_somebody_who_acted(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing on /episode.*say who acted with --source"):
        run(tmp_path, arm(0, 300), TAKEOVER)
    report, reader = run(tmp_path, arm(0, 300), TAKEOVER, name="said", source=Source.HUMAN)
    assert set(reader.column("source").tolist()) == {Source.HUMAN}
    assert any("has nothing on /episode" in warning for warning in report.warnings)


def test_a_limit_stops_after_so_many_episodes(tmp_path: Path) -> None:
    flags = [flag(at(ms), RUNNING, ms % 500 == 0) for ms in (0, 200, 500, 700, 1000, 1200)]
    report, reader = run(tmp_path, by_time([*arm(0, 1500), *flags]), f"episodes.running={RUNNING}", limit=2)
    assert (report.episodes, report.steps, len(reader.state)) == (2, 8, 8)
    assert any("up to episode 2, the limit" in warning for warning in report.warnings)


# Messages that are no use


def test_what_is_dropped_is_counted(tmp_path: Path) -> None:
    sent = [
        *arm(0, 1000),
        Sent(at(11), "/rosout", "std_msgs/msg/Bool", {"data": True}),
        Sent(at(12), "/rosout", "std_msgs/msg/Bool", {"data": True}),
        joints(at(13), name=["lid", "lamp"], position=[1.0, 2.0], velocity=[0.0, 0.0]),
        joints(at(14), position=[0.0] * 4, velocity=[0.0, float("nan"), 0.0, 0.0]),
        frame(at(15), 0, jpeg(0)[:-30]),
        command(at(16), 1.0, 2.0),
    ]
    report, reader = run(tmp_path, by_time(sent))
    assert len(reader.state) == 20
    found = dropped(report)
    assert found.pop((f"messages on {CAMERA}", next(r for w, r in found if w.endswith(CAMERA)))) == 1
    assert found == {
        ("messages on /joint_states", "a value that is not finite"): 1,
        ("messages on /joint_states", "none of the contract's joints: another publisher"): 1,
        ("messages on /arm/commands", "2 values, expected 3"): 1,
        ("messages on /rosout", "the contract does not name the topic"): 2,
    }
    assert {each.name: each.messages for each in report.streams} == {
        "observation.state": 102,
        WRIST: 11,
        "action": 51,
    }


def test_the_report_states_the_ages_of_every_stream(tmp_path: Path) -> None:
    report, _ = run(tmp_path, arm(0, 1000))
    ages = {each.name: (each.p50_ms, each.p99_ms, each.max_ms) for each in report.streams}
    # Rows at 0, 50, ...: joints every 10 ms, frames every 100, commands every 20.
    assert ages == {"observation.state": (0, 0, 0), WRIST: (25, 50, 50), "action": (5, 10, 10)}
    assert read_report(tmp_path / "replay-bag" / "bag") == report
    # Reports of earlier versions have no streams.
    earlier = {key: value for key, value in report.to_json().items() if key != "streams"}
    assert ImportReport.from_json(earlier) == replace(report, streams=())


def test_a_message_that_cannot_be_decoded_is_dropped(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "bag", arm(0, 1000), "sqlite3")
    with sqlite3.connect(path / "bag.db3") as database:
        database.execute("UPDATE messages SET data = x'0001' WHERE id = 40")
    report = import_bag(path, tmp_path / "r", "bag", contract(tmp_path))
    assert report.steps == 20
    (entry,) = report.dropped
    assert (entry.count, entry.reason) == (1, "bytes that cannot be decoded")


# Other storages


@pytest.mark.parametrize("storage", ["mcap", "sqlite3", "humble"])
def test_a_directory_of_another_implementation_gives_the_same_rows(tmp_path: Path, storage: Any) -> None:
    sent = [*arm(0, 500), *(joy(at(ms), ms == 200) for ms in (0, 200, 300))]
    joystick = ("intervention={kind: joy, button: 1, release_ms: 0}",)
    _, expected = run(tmp_path, by_time(sent), *joystick, name="expected")
    kind = "mcap" if storage == "mcap" else "sqlite3"
    path = write_directory(tmp_path / "directory", by_time(sent), kind)
    if storage == "humble":
        with sqlite3.connect(path / "directory.db3") as database:
            database.execute("DROP TABLE message_definitions")
    report = import_bag(path, tmp_path / "r", "bag", contract(tmp_path, *joystick))
    reader = ReplayReader(tmp_path / "r")
    assert report.format == f"rosbag2 {'MCAP' if kind == 'mcap' else 'SQLite'}"
    assert (report.dropped, report.source) == ((), "directory")
    for name in ("state", "action"):
        np.testing.assert_array_equal(getattr(reader, name), getattr(expected, name))
    for name in ("stamp_ns", "age_ns", "source", "intervention_id"):
        np.testing.assert_array_equal(reader.column(name), expected.column(name))
    assert reader.frames.encoded(WRIST, range(10)) == [jpeg(row // 2) for row in range(10)]


def split(folder: Path, sent: Sequence[Sent], parts: int) -> list[Path]:
    folder.mkdir()
    size = -(-len(sent) // parts)
    return [
        write_mcap(folder / f"bag_{part}.mcap", sent[part * size : (part + 1) * size])
        for part in range(parts)
    ]


@pytest.mark.parametrize("metadata", [True, False])
def test_a_bag_in_many_files_is_one(tmp_path: Path, metadata: bool) -> None:
    _, expected = run(tmp_path, arm(0, 3000), name="expected")
    paths = split(tmp_path / "bag", arm(0, 3000), 12)
    if metadata:
        # Old metadata name the files from outside the directory.
        names = "".join(f"    - bag/{path.name}\n" for path in paths)
        (tmp_path / "bag" / "metadata.yaml").write_text(
            f"rosbag2_bagfile_information:\n  version: 5\n  relative_file_paths:\n{names}"
        )
        (tmp_path / "bag" / "left_0.mcap").write_bytes(b"")
    report = import_bag(tmp_path / "bag", tmp_path / "r", "bag", contract(tmp_path))
    np.testing.assert_array_equal(ReplayReader(tmp_path / "r").state, expected.state)
    assert report.episodes == 1
    note = "does not name left_0.mcap" if metadata else "its recorder was killed"
    assert any(note in warning for warning in report.warnings)


# Refusals


def refuse(
    folder: Path,
    sent: Sequence[Sent],
    match: str,
    *overrides: str,
    error: type[FlowRLError] = DataError,
    **more: Any,
) -> None:
    with pytest.raises(error, match=match):
        run(folder, sent, *overrides, **more)
    assert not (folder / "replay-bag").exists()


def test_a_missing_topic_is_named_with_the_nearest(tmp_path: Path) -> None:
    wrong = [replace(each, topic="/joint_state") if each.topic == STATES else each for each in arm(0, 300)]
    refuse(
        tmp_path, wrong, r"nothing on /joint_states, .*JointState; the nearest that it has is /joint_state\."
    )


def test_a_topic_of_another_type_is_named(tmp_path: Path) -> None:
    sent = [each for each in arm(0, 300) if each.topic != STATES]
    sent += [replace(each, topic=STATES) for each in sent if each.topic == COMMANDS]
    refuse(
        tmp_path, sent, r"/joint_states has type std_msgs/msg/Float64MultiArray, the contract expects sensor"
    )


def test_a_joint_that_the_bag_lacks_is_named(tmp_path: Path) -> None:
    text = scripted.CONTRACT.replace(
        "joints: [shoulder, elbow, wrist], values", "joints: [shoulder, elbow, thumb], values"
    )
    refuse(tmp_path, arm(0, 300), "/joint_states lacks joint 'thumb'; it has lamp, shoulder", text=text)


def test_a_bag_that_makes_no_row_says_why(tmp_path: Path) -> None:
    sent = [
        replace(each, time_ns=each.time_ns + MS) if each.topic == CAMERA else each for each in arm(0, 300)
    ]
    refuse(tmp_path, by_time(sent), r"no row could be made \(.*more than 0.5 ms behind", "max_skew_ms=0.5")


def test_commands_beyond_the_limits_need_a_rule(tmp_path: Path) -> None:
    sent = [
        command(each.time_ns, 100.0, -150.0, 3.0) if each.topic == COMMANDS else each for each in arm(0, 300)
    ]
    refuse(
        tmp_path, sent, r"1 of 3 action dimensions leave the contract's limits:\n  elbow.pos +-150 .. -150"
    )
    report, reader = run(tmp_path, sent, actions="clip")
    assert reader.action[0].tolist() == [100.0, -100.0, 3.0]
    assert [each.minimum for each in report.ranges] == [100.0, -150.0, 3.0]


def test_a_command_at_its_limit_is_inside(tmp_path: Path) -> None:
    # 1.74 is no 32-bit number: what is stored lies a little above it.
    text = scripted.CONTRACT.replace("low: -100, high: 100", "low: -1.74, high: 1.74")
    sent = [
        command(each.time_ns, 1.74, -1.74, 0.0) if each.topic == COMMANDS else each for each in arm(0, 300)
    ]
    _, reader = run(tmp_path, sent, text=text)
    assert reader.action[0].tolist() == np.float32([1.74, -1.74, 0.0]).tolist()


def test_the_same_bag_twice_is_refused(tmp_path: Path) -> None:
    path = write_mcap(tmp_path / "bag.mcap", arm(0, 300))
    loaded = contract(tmp_path)
    import_bag(path, tmp_path / "r", "a", loaded)
    with pytest.raises(ReplayError, match=r"bag.mcap is already in replay .* stream 'a'"):
        import_bag(path, tmp_path / "r", "b", loaded)
    with pytest.raises(ReplayError, match="stream 'a' already exists"):
        import_bag(path, tmp_path / "r", "a", loaded)
    import_bag(path, tmp_path / "r", "a", loaded, BagOptions(replace=True))
    import_bag(path, tmp_path / "r", "b", loaded, BagOptions(allow_duplicate=True))
    assert ReplayReader(tmp_path / "r").rows == 12


def test_what_is_no_readable_bag_is_refused(tmp_path: Path) -> None:
    loaded = contract(tmp_path)

    def refused(path: Path, error: type[FlowRLError], match: str) -> None:
        with pytest.raises(error, match=match):
            import_bag(path, tmp_path / "r", "bag", loaded)
        assert not (tmp_path / "r").exists()

    refused(tmp_path / "none.mcap", UsageError, "there is no bag at")
    (tmp_path / "text.mcap").write_text("no bag, but text")
    refused(tmp_path / "text.mcap", DataError, r"text\.mcap is no MCAP file: it begins with b'no bag, '")
    (tmp_path / "text.db3").write_text("no bag, but text")
    refused(tmp_path / "text.db3", DataError, r"text\.db3 is no SQLite bag")
    folder = tmp_path / "bag"
    folder.mkdir()
    refused(folder, UsageError, "holds neither .mcap nor .db3 files")
    (folder / "bag_0.mcap.zstd").write_bytes(b"")
    refused(folder, UsageError, r"compressed as a whole; unpack it first: zstd -d bag_0\.mcap\.zstd")
    information = "rosbag2_bagfile_information:\n  "
    (folder / "metadata.yaml").write_text(information + "relative_file_paths: [../../secret.mcap]\n")
    refused(folder, DataError, r"bag lacks secret\.mcap, which its metadata\.yaml names")
    (folder / "metadata.yaml").write_text(information + "compression_mode: MESSAGE\n")
    refused(folder, UsageError, "messages compressed one by one")
    (folder / "metadata.yaml").write_text(information + "relative_file_paths: []\n")
    refused(folder, DataError, "names no files")
    (folder / "metadata.yaml").write_text("{")
    refused(folder, DataError, "cannot be read")

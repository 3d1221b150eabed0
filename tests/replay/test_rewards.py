"""Reward columns: what is labelled comes back exactly, what was recorded stays bit for bit."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import icechunk
import numpy as np
import pytest
import zarr
from rich.console import Console

from flowrl.errors import ConfigError, ReplayError
from flowrl.replay import reward_writer
from flowrl.replay.info import info, render_info
from flowrl.replay.reader import ReplayReader
from flowrl.replay.reward_writer import RewardWriter
from flowrl.replay.rewards import ColumnId, Labels, Provenance, columns_of, next_version
from flowrl.replay.sampler import ChunkSampler, SamplerConfig
from flowrl.replay.schema import EPISODE, Kind, Outcome, OutcomeBy
from flowrl.replay.storage import BRANCH, open_repository
from flowrl.replay.verify import verify
from flowrl.replay.writer import StreamWriter
from tests.replay.processes import labels_of_version
from tests.replay.streams import ONLY_BY_HAND, SPEC, Child, new_stream, step, write_episode
from tests.replay.test_frames import CAMERAS, told
from tests.replay.test_frames import new_stream as new_camera_stream
from tests.replay.test_frames import write_episode as write_camera_episode

RULE = Provenance("classifier", {"digest": "d" * 64, "threshold": 0.5})
ONE = ColumnId("success", 1)
SUCCESS, FAILURE, TIMEOUT = int(Outcome.SUCCESS), int(Outcome.FAILURE), int(Outcome.TIMEOUT)
CLASSIFIER = int(OutcomeBy.CLASSIFIER)

LABELS = Labels(
    np.array([0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], np.float32),
    np.array([[2, 1, SUCCESS, CLASSIFIER], [3, 0, FAILURE, CLASSIFIER], [4, 0, TIMEOUT, 1]], np.int64),
)
"""Of `replay`: the timeout of 5 steps succeeds after 2, the success of 3 steps is denied, the last one stays."""


@pytest.fixture
def replay(tmp_path: Path) -> Path:
    with new_stream(tmp_path) as writer:
        write_episode(writer, range(5), Outcome.TIMEOUT, final=5)
        write_episode(writer, range(10, 13), Outcome.SUCCESS, final=13)
        write_episode(writer, range(20, 24), Outcome.TIMEOUT, final=24)
    return tmp_path


def write(replay: Path, labels: Labels, column: ColumnId = ONE, rule: Provenance = RULE) -> None:
    with RewardWriter(replay / "w0") as writer:
        writer.write(column, labels, rule, source="classifiers/lift")


def recorded_bytes(replay: Path, stream: str = "w0") -> dict[str, bytes]:
    """All arrays that a writer of steps writes."""
    session = open_repository(replay / stream).readonly_session(BRANCH)
    names = ("steps/float", "steps/int", "episodes/table", "episodes/final")
    return {name: zarr.open_array(session.store, path=name, mode="r")[:].tobytes() for name in names}


def test_a_reader_shows_the_episodes_as_the_column_says(replay: Path) -> None:
    before = recorded_bytes(replay)
    write(replay, LABELS)
    assert recorded_bytes(replay) == before
    reader = ReplayReader(replay, reward="success@1")
    # 2 of the 5 steps of episode 0 count.
    assert (reader.episodes, reader.rows) == (3, 9)
    assert reader.state[:, 0].tolist() == [0, 1, 10, 11, 12, 20, 21, 22, 23]
    assert reader.reward.tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert reader.column("terminated").tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert reader.column("truncated").tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert reader.table[:, EPISODE["first_row"]].tolist() == [0, 2, 5]
    assert reader.table[:, EPISODE["outcome"]].tolist() == [SUCCESS, FAILURE, TIMEOUT]
    assert reader.table[:, EPISODE["outcome_by"]].tolist() == [CLASSIFIER, CLASSIFIER, 1]
    # What followed step 2 is the final observation now.
    assert reader.final[:, 0].tolist() == [2, 13, 24]
    assert reader.episode(0).outcome is Outcome.SUCCESS
    plain = ReplayReader(replay)
    assert plain.reward.tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert plain.table[:, EPISODE["outcome"]].tolist() == [TIMEOUT, SUCCESS, TIMEOUT]


def test_a_sampler_draws_exactly_those_rewards_and_successes(replay: Path) -> None:
    write(replay, LABELS)
    reader = ReplayReader(replay, reward="success@1")
    sampler = ChunkSampler(reader, SamplerConfig(batch_size=64, chunk=2, discount=0.5, end_rule="padded"))
    batch = sampler.batch()
    #                 row 0        1       2       3       5       6       7
    expected = {0: [0.0, 0.5], 1: [1.0, 1.0]}
    for row, rewards, mask in zip(batch.row.tolist(), batch.rewards, batch.mask, strict=True):
        assert rewards.tolist() == expected.get(row, [0.0, 0.0])
        assert mask.tolist() == {0: [1.0, 0.0], 1: [0.0, 0.0]}.get(row, [1.0, 1.0])
    assert set(batch.row.tolist()) == {0, 1, 2, 3, 5, 6, 7}
    # After the success the last action that counts goes on, not what the arm did afterwards.
    padded = batch.action[batch.row == 1][0, :, 0]
    assert padded.tolist() == pytest.approx([0.01, 0.01])
    successes = sampler.batch("successes")
    assert set(successes.row.tolist()) == {0, 1}
    assert successes.success.tolist() == [1.0] * 64


def test_frames_of_a_shortened_episode_end_with_its_new_final_observation(tmp_path: Path) -> None:
    with new_camera_stream(tmp_path) as writer:
        write_camera_episode(writer, range(0, 5))
        write_camera_episode(writer, range(100, 103))
    labels = Labels(
        np.zeros(8, np.float32), np.array([[2, 1, SUCCESS, CLASSIFIER], [3, 0, TIMEOUT, 1]], np.int64)
    )
    write(tmp_path, labels)
    frames = ReplayReader(tmp_path, reward="success@1").frames
    assert told(frames.pixels(CAMERAS[0], range(5))) == [0, 1, 100, 101, 102]
    assert told(frames.pixels(CAMERAS[1], [-1, -2])) == [2, 103]


def test_the_order_of_arrival_is_repeated_with_a_column(replay: Path) -> None:
    with new_stream(replay, "other") as writer:
        write_episode(writer, range(50, 54), Outcome.TIMEOUT, final=54)
    write(replay, LABELS)
    other = Labels(np.array([0, 1, 0, 0], np.float32), np.array([[2, 1, SUCCESS, CLASSIFIER]], np.int64))
    with RewardWriter(replay / "other") as writer:
        writer.write(ONE, other, RULE)
    reader = ReplayReader(replay, reward="success@1")
    again = ReplayReader(replay, ["other"], reward="success@1")
    again.load_state_dict(reader.state_dict())
    assert np.array_equal(again.state, reader.state)
    assert np.array_equal(again.reward, reader.reward)
    assert reader.reward.sum() == 2


def test_a_stream_that_grew_is_refused_and_then_only_the_missing_rows_are_written(replay: Path) -> None:
    write(replay, LABELS)
    reader = ReplayReader(replay, reward="success@1")
    with StreamWriter.open(replay, "w0", SPEC, ONLY_BY_HAND) as writer:
        write_episode(writer, range(30, 32), Outcome.TIMEOUT, final=32)
    with pytest.raises(ReplayError, match=r"labels the first 3; .*: flowrl reward complete success@1 --rep"):
        reader.refresh()
    with pytest.raises(ReplayError, match=r"'w0' .* has 4 closed episodes"):
        ReplayReader(replay, reward="success@1")
    assert verify(replay).ok
    more = Labels(np.array([1, 0], np.float32), np.array([[1, 1, SUCCESS, CLASSIFIER]], np.int64))
    write(replay, more)
    assert reader.refresh() == 1
    assert reader.reward.tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 0, 1]
    assert np.array_equal(ReplayReader(replay, reward="success@1").state, reader.state)
    provenance = columns_of(replay)[ONE]["w0"].provenance
    assert [part["episodes"] for part in provenance.parts] == [[0, 3], [3, 4]]
    assert [part["rows"] for part in provenance.parts] == [[0, 12], [12, 14]]
    assert {part["source"] for part in provenance.parts} == {"classifiers/lift"}
    assert len({part["snapshot"] for part in provenance.parts}) == 2
    assert verify(replay).ok


def test_what_a_run_collects_itself_is_taken_as_recorded_where_nobody_labelled_it(replay: Path) -> None:
    first = Labels(LABELS.reward[:5], LABELS.episodes[:1])
    write(replay, first)
    reader = ReplayReader(replay, reward="success@1", own="w")
    assert reader.reward.tolist() == [0, 1, 0, 0, 1, 0, 0, 0, 0]
    assert reader.table[:, EPISODE["outcome"]].tolist() == [SUCCESS, SUCCESS, TIMEOUT]
    with pytest.raises(ReplayError, match="labels the first 1"):
        ReplayReader(replay, reward="success@1", own="worker-")


def test_versions_are_numbered_over_all_streams_and_kept(replay: Path) -> None:
    new_stream(replay, "empty").close()
    assert next_version(replay, "success") == ONE
    for version in (1, 2, 10):
        write(replay, LABELS, ColumnId("success", version))
    assert next_version(replay, "success") == ColumnId("success", 11)
    assert next_version(replay, "human") == ColumnId("human", 1)
    assert list(map(str, columns_of(replay))) == ["success@1", "success@2", "success@10"]
    # A stream without a closed episode needs no label.
    assert ReplayReader(replay, reward="success@10").rows == 9


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("succes@1", r"no reward column 'succes@1'; it has recorded, success@1; did you mean 'success@1'"),
        ("success@2", r"no reward column 'success@2'; it has recorded, success@1"),
        ("success", r"'success': expected 'recorded' or <name>@<version>"),
        ("success@0", "expected 'recorded'"),
        ("a/b@1", "expected 'recorded'"),
    ],
)
def test_an_unknown_column_is_refused_with_what_is_there(replay: Path, name: str, message: str) -> None:
    write(replay, LABELS)
    with pytest.raises(ConfigError, match=message):
        ReplayReader(replay, reward=name)


def test_a_stream_without_the_column_is_named(replay: Path) -> None:
    write(replay, LABELS)
    with new_stream(replay, "other") as writer:
        write_episode(writer, range(3), final=3)
    with pytest.raises(ReplayError, match=r"'other' .* has 1 closed episodes, .* labels the first 0"):
        ReplayReader(replay, reward="success@1")
    assert ReplayReader(replay, ["w0"], reward="success@1").episodes == 3


def test_a_writer_refuses_labels_that_do_not_fit_another_rule_and_a_live_writer(replay: Path) -> None:
    with pytest.raises(ReplayError, match=r"3 labels with 11 rows .* has 3 such episodes with 12 rows"):
        write(replay, Labels(LABELS.reward[1:], LABELS.episodes))
    write(replay, LABELS)
    with pytest.raises(ReplayError, match=r"1 labels with 5 rows .* has 0 such episodes"):
        write(replay, Labels(LABELS.reward[:5], LABELS.episodes[:1]))
    other = Provenance("classifier", {"digest": "e" * 64, "threshold": 0.5})
    with pytest.raises(ReplayError, match=r"made by a classifier \(digest d+, .*not by .*digest e+"):
        write(replay, Labels(LABELS.reward[:0], LABELS.episodes[:0]), rule=other)
    with (
        StreamWriter.open(replay, "w0", SPEC, ONLY_BY_HAND),
        pytest.raises(ReplayError, match="already has a writer"),
    ):
        RewardWriter(replay / "w0")


def test_an_open_episode_waits_for_its_label(replay: Path) -> None:
    writer = StreamWriter.open(replay, "w0", SPEC, ONLY_BY_HAND)
    writer.begin_episode()
    writer.append(step(40.0))
    writer.commit()
    writer._lock.release()  # its process died
    write(replay, LABELS)
    assert ReplayReader(replay, reward="success@1").episodes == 3
    assert verify(replay).ok


def test_rows_come_and_go_beside_the_columns(replay: Path) -> None:
    write(replay, LABELS)
    with StreamWriter.open(replay, "w0", SPEC, ONLY_BY_HAND) as writer:
        labelled = writer.snapshot_id
        write_episode(writer, range(600), final=0)
        writer.commit()
        writer.rollback(labelled)
        writer.compact(grace_s=0.0)
    assert ReplayReader(replay, reward="success@1").reward.tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert verify(replay).ok


def test_info_shows_the_columns(replay: Path) -> None:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(render_info(info(replay)))
    assert "reward columns" not in console.export_text()
    write(replay, LABELS)
    write(replay, Labels(LABELS.reward[:5], LABELS.episodes[:1]), ColumnId("human", 1))
    (stream,) = info(replay)
    assert stream.rewards == {ColumnId("human", 1): 1, ONE: 3}
    console.print(render_info([stream]))
    assert "human@1 (1 of 3), success@1" in console.export_text()


def corrupt(replay: Path, name: str, place: tuple[int, ...], value: float) -> None:
    session = open_repository(replay / "w0").writable_session(BRANCH)
    zarr.open_array(session.store, path=f"rewards/success@1/{name}", mode="r+")[place] = value
    session.commit("corruption")


@pytest.mark.parametrize(
    ("name", "place", "value", "message", "episode", "step"),
    [
        ("reward", (6,), np.nan, "is not finite", 1, 1),
        ("episodes", (1, 0), 4, "counts more steps than the episode has, or none", 1, -1),
        ("episodes", (2, 0), 0, "counts more steps than the episode has, or none", 2, -1),
        ("episodes", (0, 1), 2, "has an end flag that is not 0 or 1", 0, -1),
        ("episodes", (2, 2), 9, "has an outcome that is not known", 2, -1),
        ("episodes", (2, 3), 9, "has an outcome that is not known", 2, -1),
        ("episodes", (0, 2), FAILURE, "ends an episode early that is no success", 0, -1),
        ("episodes", (0, 1), 0, "ends an episode early without terminating it", 0, -1),
        ("episodes", (2, 1), 1, "terminates an episode that neither succeeds nor was recorded", 2, -1),
    ],
)
def test_verify_places_a_corruption(
    replay: Path, name: str, place: tuple[int, ...], value: float, message: str, episode: int, step: int
) -> None:
    write(replay, LABELS)
    assert verify(replay).ok
    corrupt(replay, name, place, value)
    found = verify(replay).violations
    assert any(
        v.message.startswith(f"reward success@1: {message}") and (v.episode, v.step) == (episode, step)
        for v in found
    ), found


def resize(session: icechunk.Session) -> None:
    zarr.open_array(session.store, path="rewards/success@1/reward", mode="r+").resize((11,))


def lose_provenance(session: icechunk.Session) -> None:
    zarr.open_group(session.store, path="rewards/success@1", mode="r+").attrs.put({"format": 1})


def change_provenance(session: icechunk.Session, **changes: object) -> None:
    attributes = zarr.open_group(session.store, path="rewards/success@1", mode="r+").attrs
    attributes.put({**attributes.asdict(), **changes})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (resize, "has 11 rewards for episodes with 12 steps"),
        (lose_provenance, "cannot be read: its provenance lacks judged, labeller, parts, rule"),
        (
            lambda session: change_provenance(session, parts=[]),
            "its provenance covers 0 episodes, it labels 3",
        ),
        (lambda session: change_provenance(session, parts=[{}]), "a part of its provenance lacks episodes"),
        (lambda session: change_provenance(session, labeller="oracle"), "its labeller is 'oracle'"),
        (lambda session: change_provenance(session, rule={}), "lacks digest, threshold of its rule"),
    ],
)
def test_verify_requires_the_length_and_a_whole_provenance(
    replay: Path, damage: Callable[[icechunk.Session], object], message: str
) -> None:
    write(replay, LABELS)
    session = open_repository(replay / "w0").writable_session(BRANCH)
    damage(session)
    session.commit("damage")
    found = [violation.message for violation in verify(replay).violations]
    assert any(re.search(message, text) for text in found), found


def test_a_kill_before_the_commit_leaves_the_old_state(replay: Path) -> None:
    write(replay, LABELS)
    before = recorded_bytes(replay)
    child = Child("label_and_hang", replay, "w0")
    # Everything of version 2 is written, only the commit is missing.
    assert child.line() == "written"
    child.kill()
    assert list(map(str, columns_of(replay))) == ["success@1"]
    assert recorded_bytes(replay) == before
    assert verify(replay).ok
    assert ReplayReader(replay, reward="success@1").reward.sum() == 1
    # The lock of the dead process is taken over, and the same version is written.
    write(replay, LABELS, next_version(replay, "success"))
    assert list(map(str, columns_of(replay))) == ["success@1", "success@2"]


def test_a_kill_at_any_moment_leaves_whole_versions(replay: Path) -> None:
    child = Child("label_versions", replay, "w0")
    said = [child.line() for _ in range(5)]
    said += child.kill()
    versions = [column.version for column in columns_of(replay)]
    assert versions == list(range(1, len(versions) + 1))
    # The newest may have been committed without a word.
    assert len(said) <= len(versions) <= len(said) + 1
    assert verify(replay).ok
    for version in versions:
        reader = ReplayReader(replay, reward=f"success@{version}")
        assert reader.reward.tolist() == labels_of_version(12, 3, version).reward.tolist()


def test_a_column_of_many_chunks_keeps_every_value_over_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward_writer, "CHUNK_ROWS", 16)
    monkeypatch.setattr(reward_writer, "CHUNK_EPISODES", 2)
    random = np.random.default_rng(0)
    parts: list[Labels] = []
    for _ in range(2):
        with StreamWriter.open_or_create(tmp_path, "w0", SPEC, Kind.POLICY, ONLY_BY_HAND) as writer:
            for _ in range(3):
                write_episode(writer, range(41), Outcome.TIMEOUT, final=0)
        reward = random.standard_normal(3 * 41).astype(np.float32)
        parts.append(Labels(reward, np.array([[41, 0, TIMEOUT, 1]] * 3, np.int64)))
        write(tmp_path, parts[-1])
    reader = ReplayReader(tmp_path, reward="success@1")
    assert np.array_equal(reader.reward, np.concatenate([part.reward for part in parts]))
    assert reader.column("truncated").sum() == 6

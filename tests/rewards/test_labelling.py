"""Relabelling a replay: exact rewards, the record untouched, versions, growth, people, and who may read it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flowrl.errors import ConfigError, DataError, ReplayError, UsageError
from flowrl.replay.reader import ReplayReader
from flowrl.replay.rewards import ColumnId, columns_of
from flowrl.replay.sampler import ChunkSampler, SamplerConfig
from flowrl.replay.schema import EPISODE, Outcome, OutcomeBy
from flowrl.replay.verify import verify
from flowrl.replay.writer import StreamWriter
from flowrl.rewards.frames import succeeded
from flowrl.rewards.labelling import apply, complete, label
from flowrl.rewards.listing import columns
from flowrl.rewards.training import train
from flowrl.spec import Feature
from tests.replay.streams import ONLY_BY_HAND
from tests.replay.test_rewards import recorded_bytes
from tests.rewards.conftest import Trained
from tests.rewards.scenes import CAMERA, SIZE, SMALL, SPEC, new_stream, write_episode

ONE = ColumnId("success", 1)


@pytest.fixture
def replay(tmp_path: Path) -> Path:
    """Recorded wrongly: a failure that shows success after step 3 of 6, a success that shows nothing, and one that
    is right."""
    random = np.random.default_rng(1)
    with new_stream(tmp_path, "arm") as writer:
        write_episode(writer, random, 6, [3], Outcome.TIMEOUT)
        write_episode(writer, random, 5, [], Outcome.SUCCESS)
        write_episode(writer, random, 4, [4], Outcome.SUCCESS)
    return tmp_path


def grow(replay: Path, shows: list[int], outcome: Outcome = Outcome.TIMEOUT, stream: str = "arm") -> None:
    with StreamWriter.open(replay, stream, SPEC, ONLY_BY_HAND) as writer:
        write_episode(writer, np.random.default_rng(2), 5, shows, outcome)


def outcomes(reader: ReplayReader) -> list[bool]:
    return [succeeded(reader, episode) for episode in range(reader.episodes)]


def test_a_classifier_labels_what_can_be_seen_and_the_record_stays(trained: Trained, replay: Path) -> None:
    before = recorded_bytes(replay, "arm")
    (written,) = apply(trained.classifier, replay, "success")
    assert (written.column, written.episodes) == (ONE, 3)
    # As many successes as before, but not the same ones.
    assert (written.recorded, written.added, written.denied, written.successes) == (2, 1, 1, 2)
    assert recorded_bytes(replay, "arm") == before
    reader = ReplayReader(replay, reward="success@1")
    assert reader.reward.tolist() == [0, 0, 1] + [0] * 5 + [0, 0, 0, 1]
    assert outcomes(reader) == [True, False, True]
    assert reader.table[:, EPISODE["outcome_by"]].tolist() == [OutcomeBy.CLASSIFIER] * 3
    assert outcomes(ReplayReader(replay)) == [False, True, True]
    provenance = columns_of(replay)[ONE]["arm"].provenance
    assert dict(provenance.rule) == {
        "digest": trained.classifier.digest,
        "threshold": trained.classifier.threshold,
    }
    assert provenance.parts[0]["source"] == str(trained.directory.resolve())
    assert verify(replay).ok


def test_the_sampler_draws_exactly_those_rewards(trained: Trained, replay: Path) -> None:
    apply(trained.classifier, replay, "success")
    reader = ReplayReader(replay, reward="success@1")
    batch = ChunkSampler(reader, SamplerConfig(batch_size=128, chunk=1)).batch()
    assert set(batch.row.tolist()) == set(range(12))
    assert np.array_equal(batch.rewards[:, 0].numpy(), reader.reward[batch.row.numpy()])
    terminal = (batch.mask[:, 0] == 0).numpy()
    assert set(batch.row.numpy()[terminal].tolist()) == {2, 11}


def test_every_labelling_is_a_new_version(trained: Trained, replay: Path) -> None:
    for version in (1, 2):
        (written,) = apply(trained.classifier, replay, "success")
        assert written.column == ColumnId("success", version)
    stricter = replace(trained.classifier, validation=replace(trained.classifier.validation, threshold=1.1))
    assert apply(stricter, replay, "success")[0].successes == 0
    assert apply(trained.classifier, replay, "other")[0].column == ColumnId("other", 1)
    sums = [ReplayReader(replay, reward=f"success@{version}").reward.sum() for version in (1, 2, 3)]
    assert sums == [2, 2, 0]
    with pytest.raises(ConfigError, match="a name begins with a letter"):
        apply(trained.classifier, replay, "success@1")


def test_completing_writes_the_missing_episodes_alone(trained: Trained, replay: Path) -> None:
    apply(trained.classifier, replay, "success")
    assert complete(replay, ONE) == []
    random = np.random.default_rng(3)
    grow(replay, [2])
    with new_stream(replay, "later") as writer:
        write_episode(writer, random, 4, [4], Outcome.SUCCESS)
    with pytest.raises(
        ReplayError, match=r"label the others with: flowrl reward complete success@1 --replay"
    ):
        ReplayReader(replay, reward="success@1")
    before = columns_of(replay)[ONE]["arm"].provenance.parts
    written = complete(replay, ONE)
    assert [(w.stream, w.episodes, w.successes) for w in written] == [("arm", 1, 1), ("later", 1, 1)]
    provenance = columns_of(replay)[ONE]["arm"].provenance
    assert provenance.parts[:1] == before
    assert provenance.parts[1]["episodes"] == [3, 4]
    reader = ReplayReader(replay, ["arm"], reward="success@1")
    assert reader.reward.tolist() == [0, 0, 1] + [0] * 5 + [0, 0, 0, 1] + [0, 1]
    assert ReplayReader(replay, reward="success@1").reward.sum() == 4
    assert verify(replay).ok


def test_a_moved_classifier_is_named_and_another_one_refused(trained: Trained, replay: Path) -> None:
    moved = replay.parent / "moved"
    shutil.copytree(trained.directory, moved)
    apply(replace(trained.classifier, place=replay / "gone"), replay, "success")
    grow(replay, [])
    assert complete(replay, ONE, moved)[0].episodes == 1
    apply(replace(trained.classifier, digest="0" * 64), replay, "success")
    grow(replay, [])
    with pytest.raises(
        ReplayError, match=r"made by the classifier 0{12}, .* make a new version with: flowrl"
    ):
        complete(replay, ColumnId("success", 2))
    with pytest.raises(
        ConfigError, match=r"no reward column 'success@7'; it has recorded, success@1, success@2"
    ):
        complete(replay, ColumnId("success", 7))


def test_a_person_corrects_a_classifier(trained: Trained, replay: Path) -> None:
    apply(trained.classifier, replay, "success")
    (written,) = label(replay, "arm", {0: False}, "success", base="success@1")
    assert (written.column, written.successes) == (ColumnId("success", 2), 1)
    reader = ReplayReader(replay, reward="success@2")
    assert reader.reward.tolist() == [0] * 11 + [0, 0, 0, 1]
    assert outcomes(reader) == [False, False, True]
    # The classifier's own version is as it was.
    assert ReplayReader(replay, reward="success@1").reward.sum() == 2
    # What comes later is labelled by the classifier, so its column comes first.
    grow(replay, [2])
    with pytest.raises(ReplayError, match="label the others with: flowrl reward complete success@1"):
        complete(replay, ColumnId("success", 2))
    complete(replay, ONE)
    complete(replay, ColumnId("success", 2))
    assert ReplayReader(replay, reward="success@2").reward.tolist() == [0] * 11 + [0, 0, 0, 1] + [0, 1]
    assert verify(replay).ok


def test_people_label_episode_by_episode_in_versions(replay: Path) -> None:
    before = recorded_bytes(replay, "arm")
    label(replay, "arm", {0: True})
    label(replay, "arm", {1: False})
    first, second = (ReplayReader(replay, reward=f"human@{version}") for version in (1, 2))
    assert outcomes(first) == [True, True, True]
    assert outcomes(second) == [True, False, True]
    assert second.reward.tolist() == [0] * 5 + [1] + [0] * 5 + [0, 0, 0, 1]
    assert second.column("terminated").tolist() == [0] * 5 + [1] + [0] * 5 + [0, 0, 0, 1]
    # The environment ended it, so it is a cut now.
    assert second.column("truncated")[10] == 1
    assert second.table[:, EPISODE["outcome_by"]].tolist() == [2, 2, 1]
    provenance = columns_of(replay)[ColumnId("human", 2)]["arm"].provenance
    assert dict(provenance.rule) == {"base": "human@1", "rest": "recorded"}
    assert dict(provenance.judged) == {"0": True, "1": False}
    # Later episodes are as recorded, until somebody judges them.
    grow(replay, [], Outcome.SUCCESS)
    complete(replay, ColumnId("human", 2))
    assert outcomes(ReplayReader(replay, reward="human@2")) == [True, False, True, True]
    assert recorded_bytes(replay, "arm") != before
    label(replay, "arm", {3: False, 0: False})
    assert outcomes(ReplayReader(replay, reward="human@3")) == [False, False, True, False]
    label(replay, "arm", {3: False}, base="recorded")
    assert outcomes(ReplayReader(replay, reward="human@4")) == [False, True, True, False]
    assert verify(replay).ok


def test_a_label_in_one_stream_covers_the_others(replay: Path) -> None:
    with new_stream(replay, "other") as writer:
        write_episode(writer, np.random.default_rng(4), 3, [], Outcome.SUCCESS)
    label(replay, "arm", {0: True})
    reader = ReplayReader(replay, reward="human@1")
    assert outcomes(reader) == [True, True, True, True]
    assert reader.reward.sum() == 4


def test_labels_for_what_is_not_there_are_refused(replay: Path) -> None:
    with StreamWriter.open(replay, "arm", SPEC, ONLY_BY_HAND) as writer:
        write_episode(writer, np.random.default_rng(5), 3, [], Outcome.DISCARDED)
    with pytest.raises(UsageError, match=r"no stream 'leg'; it has arm"):
        label(replay, "leg", {0: True})
    with pytest.raises(UsageError, match="no closed episode 4; its episodes are 0 to 3"):
        label(replay, "arm", {4: True})
    with pytest.raises(UsageError, match="episode 3 was discarded by a person"):
        label(replay, "arm", {3: True})
    with pytest.raises(ConfigError, match="no reward column 'success@1'; it has recorded"):
        label(replay, "arm", {0: True}, base="success@1")
    assert columns_of(replay) == {}


def test_a_classifier_can_learn_from_what_people_said(trained: Trained, tmp_path: Path) -> None:
    copy = tmp_path / "replay"
    shutil.copytree(trained.replay, copy)
    label(copy, "good", dict.fromkeys(range(9), False))
    with pytest.raises(DataError, match="has 1 successful episodes of 20"):
        train(ReplayReader(copy, reward="human@1"), SMALL)


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ((Feature("observation.state", (1,)), Feature(CAMERA, (3, 8, 8), "uint8")),
         rf"its {CAMERA} has shape \(3, 8, 8\), the classifier saw \(3, {SIZE}, {SIZE}\)"),
        ((Feature("observation.state", (1,)), Feature("observation.images.side", (3, 8, 8), "uint8")),
         f"it lacks {CAMERA}"),
    ],
)  # fmt: skip
def test_frames_that_the_classifier_cannot_see_are_refused(
    trained: Trained, tmp_path: Path, observation: tuple[Feature, ...], message: str
) -> None:
    from flowrl.replay.schema import OutcomeBy, Step

    spec = replace(SPEC, observation=observation)
    seen = {
        feature.name: np.zeros(feature.shape, np.uint8 if feature.is_image else np.float32)
        for feature in observation
    }
    with new_stream(tmp_path, "arm", spec=spec) as writer:
        writer.begin_episode()
        writer.append(Step(seen, np.zeros(1, np.float32), 0.0))
        writer.close_episode(Outcome.UNKNOWN, OutcomeBy.NONE)
    with pytest.raises(DataError, match=message):
        apply(trained.classifier, tmp_path, "success")
    assert columns_of(tmp_path) == {}


def test_a_live_writer_keeps_its_stream(trained: Trained, replay: Path) -> None:
    with (
        StreamWriter.open(replay, "arm", SPEC, ONLY_BY_HAND),
        pytest.raises(ReplayError, match="already has a writer"),
    ):
        apply(trained.classifier, replay, "success")
    apply(trained.classifier, replay, "success")


def test_the_list_counts_what_is_labelled(trained: Trained, replay: Path) -> None:
    assert columns(replay) == []
    apply(trained.classifier, replay, "success")
    label(replay, "arm", {0: True, 1: True})
    grow(replay, [])
    human, success = columns(replay)
    assert (human.column, human.episodes, human.closed) == (ColumnId("human", 1), 3, 4)
    assert (human.recorded, human.added, human.denied) == (2, 1, 0)
    assert human.made_by == "a human, 2 episodes; recorded elsewhere"
    assert success.made_by.startswith(f"classifier {trained.classifier.digest[:12]} at 0.")
    assert (success.recorded, success.added, success.denied) == (2, 1, 1)

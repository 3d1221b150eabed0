"""A classifier learns what can be seen, on whole episodes apart, and says why it cannot where it cannot."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flowrl.config import load
from flowrl.errors import ConfigError, DataError
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import EPISODE, Kind, Outcome
from flowrl.rewards.config import ClassifierConfig
from flowrl.rewards.frames import episode_frames, find_cameras, select, split_episodes
from flowrl.rewards.metrics import Counts
from flowrl.rewards.network import SuccessNetwork
from flowrl.rewards.training import train
from tests.replay.streams import new_stream as new_blind_stream
from tests.replay.streams import write_episode as write_blind_episode
from tests.rewards.conftest import Trained
from tests.rewards.scenes import CAMERA, SMALL, SPEC, new_stream, write_episode, write_replay


def test_a_square_that_shows_success_is_told_apart_exactly(trained: Trained) -> None:
    validation = trained.classifier.validation
    # 4 of 10 successes of 9 observations and 4 of 10 failures of 11 validate; only the last of a success shows it.
    assert validation.auc == 1.0
    assert validation.frames == Counts(4, 0, 0, 4 * 8 + 4 * 11)
    assert validation.episodes == Counts(4, 0, 0, 4)
    assert [result.detected for result in validation.results if result.success] == [8] * 4
    assert [result.detected for result in validation.results if not result.success] == [None] * 4
    assert validation.early == [0] * 4
    assert 0 < validation.threshold < 1


def test_the_provenance_names_episodes_of_both_parts_and_the_snapshots(trained: Trained) -> None:
    provenance, reader = trained.classifier.provenance, ReplayReader(trained.replay)
    parts = provenance["episodes"]
    for stream in ("good", "bad"):
        assert sorted(parts["training"][stream] + parts["validation"][stream]) == list(range(10))
        assert len(parts["validation"][stream]) == 4
    assert provenance["snapshots"] == reader.state_dict()["snapshots"]
    assert provenance["frames"] == {"positive": 6, "negative": 6 * 8 + 6 * 11}
    assert (provenance["reward"], provenance["seed"]) == ("recorded", 0)
    validated = {(result.stream, result.episode) for result in trained.classifier.validation.results}
    assert validated == {(s, e) for s in ("good", "bad") for e in parts["validation"][s]}


def test_the_same_seed_gives_the_same_bits(trained: Trained) -> None:
    state = torch.random.get_rng_state()
    again = train(ReplayReader(trained.replay), SMALL)
    assert torch.equal(torch.random.get_rng_state(), state)
    first, second = trained.classifier.network.state_dict(), again.network.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert again.validation == trained.classifier.validation


def test_frames_are_chosen_by_their_place_in_the_episode(trained: Trained) -> None:
    reader = ReplayReader(trained.replay, ["good", "bad"])  # good first
    assert episode_frames(reader, 1).tolist() == [*range(8, 16), -2]
    frames = select(reader, np.array([1, 10]), positives=2, margin=3)
    # Of 9 observations the last 2 show success, 3 before them say nothing, 4 are left.
    assert frames.positive.tolist() == [15, -2]
    assert frames.negative.tolist() == [8, 9, 10, 11, *range(80, 90), -11]
    short = select(reader, np.array([0, 10]), positives=3, margin=20)
    assert (len(short.positive), len(short.negative)) == (3, 11)


def test_an_episode_without_a_final_observation_ends_with_its_last_row(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    with new_stream(tmp_path, "good") as writer:
        write_episode(writer, random, 4, [3], Outcome.SUCCESS, final=False)
    assert episode_frames(ReplayReader(tmp_path), 0).tolist() == [0, 1, 2, 3]


def test_the_split_keeps_the_share_of_each_class_and_every_episode_once(tmp_path: Path) -> None:
    with new_blind_stream(tmp_path) as writer:
        for outcome, count in ((Outcome.SUCCESS, 10), (Outcome.TIMEOUT, 20), (Outcome.UNKNOWN, 5)):
            for _ in range(count):
                write_blind_episode(writer, range(3), outcome, final=3)
    reader = ReplayReader(tmp_path)
    split = split_episodes(reader, 0.3, seed=1)
    outcomes = reader.table[:, EPISODE["outcome"]]
    assert Counter(outcomes[split.validation].tolist()) == {Outcome.SUCCESS: 3, Outcome.TIMEOUT: 6}
    assert Counter(outcomes[split.training].tolist()) == {Outcome.SUCCESS: 7, Outcome.TIMEOUT: 14}
    assert not set(split.training.tolist()) & set(split.validation.tolist())
    assert not np.array_equal(split_episodes(reader, 0.3, seed=2).validation, split.validation)
    # However small the share, both parts have both classes.
    assert len(split_episodes(reader, 0.001, seed=1).validation) == 2
    assert len(split_episodes(reader, 0.999, seed=1).training) == 2


@pytest.mark.parametrize(
    ("successes", "failures", "message"),
    [
        (0, 4, "has 0 successful episodes of 4; .*flowrl reward label"),
        (4, 0, "has 0 failed episodes of 4; .*early policy"),
        # One episode of a class leaves none for the other part.
        (1, 4, "has 1 successful episodes of 5; .*one to train and one to validate"),
        (4, 1, "has 1 failed episodes of 5; .*one to train and one to validate"),
    ],
)
def test_too_few_episodes_of_a_class_are_refused(
    tmp_path: Path, successes: int, failures: int, message: str
) -> None:
    write_replay(tmp_path, successes, failures)
    with pytest.raises(DataError, match=message):
        train(ReplayReader(tmp_path), SMALL)


def test_cameras_are_found_by_either_name_and_missing_ones_named(tmp_path: Path) -> None:
    assert find_cameras(SPEC.cameras, ["front"]) == find_cameras(SPEC.cameras, [CAMERA]) == SPEC.cameras
    with pytest.raises(
        DataError, match=r"no camera observation.images.wrist; it has observation.images.front"
    ):
        find_cameras(SPEC.cameras, ["front", "wrist"])
    with new_blind_stream(tmp_path) as writer:
        write_blind_episode(writer, range(3), final=3)
    with pytest.raises(
        DataError, match="no camera at all; it has none: a success classifier looks at frames"
    ):
        train(ReplayReader(tmp_path), SMALL)


def test_frames_that_tell_nothing_find_no_threshold(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    with new_stream(tmp_path, "good", Kind.DEMONSTRATION) as writer:
        for _ in range(3):
            write_episode(writer, random, 4, [], Outcome.SUCCESS)
    with new_stream(tmp_path, "bad") as writer:
        for _ in range(20):
            write_episode(writer, random, 10, [], Outcome.TIMEOUT)
    with pytest.raises(DataError, match=r"calls at most 0 of the .* and finds one .* \(ROC AUC 0\.\d+\)"):
        train(ReplayReader(tmp_path), replace(SMALL, steps=1))


def test_a_state_that_shows_success_is_learned_without_the_camera(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    with new_stream(tmp_path, "good") as writer:
        for _ in range(4):
            write_episode(writer, random, 30, [], Outcome.SUCCESS)
    with new_stream(tmp_path, "bad") as writer:
        for _ in range(4):
            write_episode(writer, random, 10, [], Outcome.TIMEOUT)
    # The state counts the steps, and only successes come beyond 20.
    config = replace(SMALL, state=True, positives=5, margin=8, learning_rate=1e-2)
    classifier = train(ReplayReader(tmp_path), config)
    assert classifier.validation.auc == 1.0
    assert classifier.state == SPEC.state_features


def test_a_constant_state_dimension_counts_for_nothing() -> None:
    network = SuccessNetwork(SPEC.cameras, 2, SMALL)
    network.fit_state(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    scaled = (torch.tensor([[3.0, 9.0]]) - network.mean) / network.scale
    assert scaled.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"positives": 0}, "positives is 0"),
        ({"margin": -1}, "margin is -1"),
        ({"batch_size": 1}, "batch_size 1"),
        ({"validation": 1.0}, "validation is 1"),
        ({"false_positives": 1.0}, "false_positives is 1"),
        ({"stepz": 3}, "nearest valid key is 'steps'"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(ClassifierConfig, settings)

"""A classifier on disk: the same scores again, and every damage refused by file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flowrl.checkpoint import Disk, directory
from flowrl.errors import CheckpointError, UsageError
from flowrl.replay.reader import ReplayReader
from flowrl.rewards.io import load_classifier, save_classifier
from tests.rewards.conftest import Trained
from tests.rewards.scenes import CAMERA


def test_a_loaded_classifier_gives_the_same_scores_and_says_the_same(trained: Trained) -> None:
    loaded = load_classifier(trained.directory)
    reader = ReplayReader(trained.replay)
    rows = np.array([0, 7, -1, 150, -18])
    assert np.array_equal(loaded.scores(reader, rows), trained.classifier.scores(reader, rows))
    assert (loaded.validation, loaded.config) == (trained.classifier.validation, trained.classifier.config)
    assert (loaded.cameras, loaded.state) == (trained.classifier.cameras, trained.classifier.state)
    assert dict(loaded.provenance) == dict(trained.classifier.provenance)
    assert loaded.digest == trained.classifier.digest
    assert len(loaded.digest) == 64
    assert loaded.place == trained.directory


def test_the_directory_is_readable_without_flowrl(trained: Trained) -> None:
    names = {path.relative_to(trained.directory).as_posix() for path in trained.directory.rglob("*.*")}
    assert names == {
        "manifest.json",
        "state.json",
        "state.safetensors",
        *(f"figures/{name}.{kind}" for name in ("roc", "scores") for kind in ("svg", "png")),
    }
    state = json.loads((trained.directory / "state.json").read_text())
    assert (state["kind"], state["format"]) == ("success_classifier", 1)
    assert state["cameras"][0]["name"] == CAMERA
    assert state["threshold"] == trained.classifier.threshold
    svg = (trained.directory / "figures" / "roc.svg").read_text()
    assert "ROC AUC 1.000" in svg


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def edit(path: Path) -> None:
    path.write_text(path.read_text().replace('"threshold": 0.', '"threshold": 1.'))


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("state.safetensors", flip, "state.safetensors does not hold the bytes"),
        ("state.json", edit, "state.json does not hold the bytes"),
        ("figures/roc.svg", Path.unlink, "figures/roc.svg is missing"),
        ("manifest.json", Path.unlink, "manifest.json is missing"),
    ],
)
def test_damage_is_named(
    trained: Trained, tmp_path: Path, name: str, damage: Callable[[Path], None], message: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained.directory, copy)
    assert load_classifier(copy).digest == trained.classifier.digest
    damage(copy / name)
    with pytest.raises(CheckpointError, match=message):
        load_classifier(copy)


def test_what_is_no_classifier_is_refused(trained: Trained, tmp_path: Path) -> None:
    directory.save(tmp_path / "other", {"kind": "learner"})
    with pytest.raises(CheckpointError, match="is no success classifier; make one with: flowrl reward train"):
        load_classifier(tmp_path / "other")
    directory.save(tmp_path / "newer", {"kind": "success_classifier", "format": 2})
    with pytest.raises(CheckpointError, match="has format 2, this flowrl reads 1"):
        load_classifier(tmp_path / "newer")
    directory.save(tmp_path / "bare", {"kind": "success_classifier", "format": 1})
    with pytest.raises(CheckpointError, match="'config'"):
        load_classifier(tmp_path / "bare")
    with pytest.raises(UsageError, match="exists already; choose another directory"):
        save_classifier(trained.classifier, trained.directory)


def test_a_failure_while_saving_leaves_nothing(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Disk, operation: str, path: Path) -> None:
        if operation == "write second half":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Disk, "step", fail)
    with pytest.raises(CheckpointError, match="No space left"):
        save_classifier(trained.classifier, tmp_path / "classifier")
    assert list(tmp_path.iterdir()) == []

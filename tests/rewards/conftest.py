"""One trained classifier for the tests that only use it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from flowrl.replay.reader import ReplayReader
from flowrl.rewards.classifier import SuccessClassifier
from flowrl.rewards.io import save_classifier
from flowrl.rewards.training import train
from tests.rewards.scenes import SMALL, write_replay


@dataclass(frozen=True)
class Trained:
    """A replay and the classifier that was trained on it and saved."""

    replay: Path
    classifier: SuccessClassifier
    directory: Path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Do not write into either."""
    root = tmp_path_factory.mktemp("rewards")
    write_replay(root / "replay")
    classifier = train(ReplayReader(root / "replay"), SMALL)
    return Trained(root / "replay", save_classifier(classifier, root / "classifier"), root / "classifier")

"""A trained success classifier, and what it says of observations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flowrl.errors import DataError
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import Ints
from flowrl.rewards.config import ClassifierConfig
from flowrl.rewards.frames import observe
from flowrl.rewards.metrics import Scores
from flowrl.rewards.network import SuccessNetwork
from flowrl.rewards.validation import Validation
from flowrl.spec import Feature, Spec

_BATCH = 256


@dataclass(frozen=True)
class SuccessClassifier:
    """Scores in [0, 1]; at ``threshold`` and above an observation shows success.

    ``cameras`` and ``state`` are the features it sees. ``digest`` and ``place`` are those of the directory it
    was read from.
    """

    network: SuccessNetwork
    config: ClassifierConfig
    cameras: tuple[Feature, ...]
    state: tuple[Feature, ...]
    validation: Validation
    provenance: Mapping[str, Any]
    digest: str = ""
    place: Path | None = None

    @property
    def threshold(self) -> float:
        """Where success begins, chosen on the validation episodes."""
        return self.validation.threshold

    def scores(self, reader: ReplayReader, rows: Ints, done: Callable[[int], None] | None = None) -> Scores:
        """Scores (N,) of the observations at rows, -(e + 1) for the final one of episode e.

        ``done`` is told how many there are so far.
        """
        return score(self.network, reader, self.cameras, rows, done)


def score(
    network: SuccessNetwork,
    reader: ReplayReader,
    cameras: tuple[Feature, ...],
    rows: Ints,
    done: Callable[[int], None] | None = None,
) -> Scores:
    """Probabilities of success (N,) at rows, in batches of one size, without augmentation."""
    network.eval()
    found = np.empty(len(rows), np.float64)
    with torch.no_grad():
        for start in range(0, len(rows), _BATCH):
            chosen = rows[start : start + _BATCH]
            logits = network(observe(reader, cameras, chosen)).double()
            found[start : start + _BATCH] = torch.sigmoid(logits).numpy()
            if done is not None:
                done(start + len(chosen))
    return found


def require_sees(classifier: SuccessClassifier, spec: Spec, name: str) -> None:
    """Raise DataError naming each feature that the classifier needs and data of this spec lack."""
    have = {feature.name: feature for feature in spec.observation}
    faults: list[str] = []
    for feature in (*classifier.cameras, *classifier.state):
        found = have.get(feature.name)
        if found is None:
            faults.append(f"it lacks {feature.name}")
        elif found.shape != feature.shape:
            faults.append(f"its {feature.name} has shape {found.shape}, the classifier saw {feature.shape}")
    if classifier.state and classifier.state != spec.state_features:
        faults.append(f"its state features are {[feature.name for feature in spec.state_features]}")
    if faults:
        where = "" if classifier.place is None else f" {classifier.place}"
        raise DataError(
            f"classifier{where} cannot label {name}: {'; '.join(faults)}. Record or import the same features at "
            "the same size, or train another classifier"
        )

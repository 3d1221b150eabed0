"""A success classifier on disk: a checkpoint directory (`flowrl.checkpoint`) with its drawings.

``state.json`` holds format, settings, the features it sees, threshold, validation and provenance,
``state.safetensors`` the weights, ``figures/`` the drawings, ``manifest.json`` the hash of each file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from flowrl import checkpoint
from flowrl.checkpoint.directory import Writer
from flowrl.config import load as load_config
from flowrl.config import to_mapping
from flowrl.errors import CheckpointError, ConfigError, DataError, UsageError
from flowrl.rewards.classifier import SuccessClassifier
from flowrl.rewards.config import ClassifierConfig
from flowrl.rewards.figures import write_figures
from flowrl.rewards.network import SuccessNetwork
from flowrl.rewards.validation import Validation
from flowrl.spec import Feature

KIND = "success_classifier"
FORMAT = 1
FIGURES = "figures"


def require_free(directory: Path) -> None:
    """Raise UsageError when a classifier cannot go there: columns name the one that labelled them for good."""
    if directory.exists():
        raise UsageError(f"{directory} exists already; choose another directory for the classifier")


def save_classifier(classifier: SuccessClassifier, directory: Path) -> SuccessClassifier:
    """Write a new directory, whole or not at all; returns the classifier with its digest and place.

    Raises UsageError when something is there, CheckpointError when the disk refuses.
    """
    require_free(directory)
    state = {
        "kind": KIND,
        "format": FORMAT,
        "config": to_mapping(classifier.config),
        "cameras": [asdict(feature) for feature in classifier.cameras],
        "state": [asdict(feature) for feature in classifier.state],
        "threshold": classifier.threshold,
        "validation": classifier.validation.to_json(),
        "provenance": dict(classifier.provenance),
        "network": dict(classifier.network.state_dict()),
    }
    figures: Writer = lambda place: write_figures(classifier.validation, place)  # noqa: E731
    checkpoint.save(directory, state, extra_dirs={FIGURES: figures})
    return replace(classifier, digest=checkpoint.read_manifest(directory)["digest"], place=directory)


def load_classifier(directory: Path) -> SuccessClassifier:
    """Read a classifier and verify every file. Raises CheckpointError naming what is wrong."""
    state = checkpoint.load(directory)
    if state.get("kind") != KIND:
        raise CheckpointError(
            f"{directory} is no success classifier; make one with: flowrl reward train --to {directory}"
        )
    if state.get("format") != FORMAT:
        raise CheckpointError(
            f"{directory} has format {state.get('format')}, this flowrl reads {FORMAT}; upgrade it, or train again"
        )
    try:
        classifier = _build(state)
    except (KeyError, TypeError, ValueError, RuntimeError, ConfigError, DataError) as error:
        raise CheckpointError(
            f"{directory}: {error}; it was written by a version of flowrl that knows more: train again"
        ) from error
    return replace(classifier, digest=checkpoint.read_manifest(directory)["digest"], place=directory)


def _build(state: Mapping[str, Any]) -> SuccessClassifier:
    config = load_config(ClassifierConfig, state["config"])
    cameras, features = (_features(state[key]) for key in ("cameras", "state"))
    network = SuccessNetwork(cameras, sum(feature.size for feature in features), config)
    network.load_state_dict(state["network"])
    return SuccessClassifier(
        network.eval(),
        config,
        cameras,
        features,
        Validation.from_json(state["validation"]),
        state["provenance"],
    )


def _features(data: object) -> tuple[Feature, ...]:
    return tuple(
        Feature(f["name"], tuple(f["shape"]), f["dtype"], tuple(f["names"]), f["unit"])
        for f in cast("list[dict[str, Any]]", data)
    )

"""A spec with unequal bounds, so that a wrong normalisation shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flowrl.normalisation import fit
from flowrl.spec import ActionSpec, Feature, Spec


@pytest.fixture
def spec() -> Spec:
    """S = 3, H = 4, A = 2, so D = 8."""
    features = (Feature("observation.state", (2,), names=("x", "y")), Feature("observation.grip", (1,)))
    bare = Spec(features, ActionSpec(("dx", "dy"), (-1.0, 0.0), (1.0, 4.0)), control_hz=20.0).with_chunk(4)
    states = np.random.default_rng(0).normal(size=(200, 3))
    names = bare.state_dimension_names()
    return replace(bare, normalisation=fit(states, bare.action.low, bare.action.high, names))

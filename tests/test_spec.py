"""The spec: compared by name, stored as JSON, identified by a stable digest."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from flowrl.errors import DataError, SpecMismatch
from flowrl.normalisation import fit
from flowrl.spec import ActionSpec, Feature, Spec, compare, require_match

ARM = Feature("observation.state", (2,), names=("x", "y"), unit="m")
OBJECT = Feature("observation.object", (3,))
FRONT = Feature("observation.images.front", (3, 84, 84), "uint8")
WRIST = Feature("observation.images.wrist", (3, 84, 84), "uint8")


def spec(*features: Feature, **changes: object) -> Spec:
    base = Spec(
        observation=features or (ARM, OBJECT, FRONT),
        action=ActionSpec(("dx", "grip"), (-1.0, 0.0), (1.0, 1.0)),
        control_hz=20.0,
        settings={"decimation": 5},
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_equal_specs_have_no_difference() -> None:
    assert compare(spec(), spec()) == []
    require_match(spec(), spec(), "policy", "environment")


def test_every_difference_is_named() -> None:
    other = spec(
        Feature("observation.state", (3,), names=("x", "y", "z"), unit="mm"),
        WRIST,
        action=ActionSpec(("dx", "grip"), (-2.0, 0.0), (1.0, 1.0)),
        control_hz=10.0,
        settings={"decimation": 1, "mode": "benchmark"},
    )
    wheres = {difference.where for difference in compare(spec(), other)}
    assert wheres == {
        "observation.state.shape",
        "observation.state.names",
        "observation.state.unit",
        "observation.object",
        "observation.images.front",
        "observation.images.wrist",
        "action.low",
        "control_hz",
        "settings.decimation",
        "settings.mode",
    }


def test_mismatch_message_lists_both_sides_and_every_difference() -> None:
    with pytest.raises(SpecMismatch) as caught:
        require_match(spec(), spec(control_hz=10.0, settings={"decimation": 1}), "the policy", "the stream")
    text = str(caught.value)
    for part in (
        "the policy",
        "the stream",
        "control_hz: 20.0 against 10.0",
        "settings.decimation: 5 against 1",
    ):
        assert part in text


def test_cameras_are_matched_by_name_and_not_by_position() -> None:
    assert compare(spec(ARM, FRONT, WRIST), spec(ARM, WRIST, FRONT)) == []
    (difference,) = compare(spec(ARM, FRONT, WRIST), spec(ARM, WRIST))
    assert (difference.where, difference.left, difference.right) == (
        "observation.images.front",
        "present",
        "missing",
    )


def test_order_of_state_features_matters_because_they_are_concatenated() -> None:
    (difference,) = compare(spec(ARM, OBJECT), spec(OBJECT, ARM))
    assert difference.where == "order of state features"
    assert difference.left == ["observation.state", "observation.object"]


def test_chunk_and_normalisation_are_compared_only_where_both_state_them() -> None:
    policy = spec().with_chunk(5, 3)
    assert compare(policy, spec()) == []
    assert [d.where for d in compare(policy, spec().with_chunk(5))] == ["chunk.executed"]
    names = policy.state_dimension_names()
    first, second = (
        fit(np.random.default_rng(i).normal(size=(9, 5)), (-1, 0), (1, 1), names) for i in (0, 1)
    )
    differing = compare(replace(policy, normalisation=first), replace(policy, normalisation=second))
    assert {d.where for d in differing} >= {"normalisation.state_mean", "normalisation.state_scale"}
    assert compare(replace(policy, normalisation=first), policy) == []


def test_json_round_trip_is_exact() -> None:
    names = spec().state_dimension_names()
    states = np.random.default_rng(0).normal(size=(50, 5))
    full = replace(spec().with_chunk(5, 3), normalisation=fit(states, (-1, 0), (1, 1), names))
    for original in (spec(), full):
        assert Spec.from_json(json.loads(json.dumps(original.to_json()))) == original


def test_json_of_another_version_is_refused_by_key() -> None:
    data = spec().to_json()
    with pytest.raises(DataError, match="flavour"):
        Spec.from_json(data | {"flavour": 1})
    del data["control_hz"]
    with pytest.raises(DataError, match="control_hz"):
        Spec.from_json(data)


def test_digest_is_stable_and_belongs_to_the_interface_alone() -> None:
    assert spec().digest() == "95701be94aee39e0"
    assert spec().with_chunk(5).digest() == spec().digest()
    assert Spec.from_json(json.loads(json.dumps(spec().to_json()))).digest() == spec().digest()
    assert spec(settings={"decimation": 1}).digest() != spec().digest()
    assert (
        len({spec(settings=dict(pair)).digest() for pair in ([("a", 1), ("b", 2)], [("b", 2), ("a", 1)])})
        == 1
    )


def test_sizes_and_labels_of_the_flat_state() -> None:
    assert spec().state_size == 5
    assert spec().state_dimension_names()[:3] == [
        "observation.state[0] (x)",
        "observation.state[1] (y)",
        "observation.object[0]",
    ]
    assert [f.is_image for f in spec().observation] == [False, False, True]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Feature("f", (2,), names=("x",)), "1 dimension names"),
        (lambda: ActionSpec(("a",), (0.0,), (0.0,)), "'a'"),
        (lambda: ActionSpec(("a", "b"), (0.0,), (1.0,)), "2 names"),
        (lambda: spec().with_chunk(3, 4), "1..3"),
        (lambda: spec(ARM, ARM), "repeat"),
        (lambda: Feature("observation.images.top", (3, 8, 8)), "top' is float32 of shape"),
        (
            lambda: Feature("observation.images.top", (8, 8, 3), "uint8"),
            r"uint8 of shape \(3, height, width\)",
        ),
    ],
)
def test_impossible_specs_are_refused_with_the_reason(build: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        build()  # type: ignore[operator]

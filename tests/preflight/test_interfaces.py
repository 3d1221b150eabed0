"""Differences of two sides, by name, each with its remedy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowrl.preflight import check
from flowrl.spec import ActionSpec, Feature, Spec
from tests.preflight.replays import SEEING, SPEC, STATE, WRIST, faults

OTHER = "observation.images.front"


def with_features(*features: Feature) -> Spec:
    return replace(SEEING, observation=features)


CAMERAS = SEEING.cameras


@pytest.mark.parametrize(
    ("other", "messages"),
    [
        (
            with_features(STATE, CAMERAS[0]),
            [f"camera {WRIST} is present in environment and missing in interface; record it"],
        ),
        (
            with_features(STATE, CAMERAS[0], Feature(OTHER, (3, 16, 16), "uint8")),
            [
                f"camera {OTHER} is present in interface and missing in environment; names decide: if {WRIST}",
                f"camera {WRIST} is present in environment and missing in interface; names decide: if {OTHER}",
            ],
        ),
        (
            with_features(STATE, CAMERAS[0], Feature(WRIST, (3, 32, 16), "uint8")),
            [f"{WRIST}.shape: environment (3, 16, 16), interface (3, 32, 16); both must see the same size"],
        ),
        (
            with_features(replace(STATE, names=("y", "x", "grip")), *CAMERAS),
            ["observation.state.names: environment ('x', 'y', 'grip'), interface ('y', 'x', 'grip'); values"],
        ),
        (replace(SEEING, control_hz=10.0), ["control_hz: environment 20.0, interface 10.0; an action lasts"]),
        (
            replace(SEEING, action=ActionSpec(("delta_x", "delta_y"), (-1.0, -0.05), (1.0, 1.0))),
            ["action.low: delta_y is -1 in environment and -0.05 in interface; the same action means"],
        ),
        (
            replace(SEEING, settings={"action_frame": "base"}),
            ["settings.action_frame: environment None, interface 'base'; use data and policy of the same"],
        ),
    ],
)
def test_a_difference_is_an_error_with_its_remedy(other: Spec, messages: list[str]) -> None:
    checked = check(environment=SEEING, interface=other)
    assert faults(checked) == [("error", "environment against interface")] * len(messages)
    for found, expected in zip(sorted(f.message for f in checked.findings), sorted(messages), strict=True):
        assert found.startswith(expected), found


def test_cameras_and_chunks_may_stand_in_another_order_or_be_left_out() -> None:
    turned = with_features(CAMERAS[1], STATE, CAMERAS[0])
    assert faults(check(environment=SEEING.with_chunk(4), interface=turned)) == []


def test_a_chunk_that_both_state_must_agree() -> None:
    checked = check(environment=SPEC.with_chunk(10), interface=SPEC.with_chunk(10, 5))
    assert [f.message for f in checked.findings] == [
        "chunk.executed: environment 10, interface 5; serve and train with the chunk the policy was made for"
    ]

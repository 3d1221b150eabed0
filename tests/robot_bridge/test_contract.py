"""The contract: the spec it describes, the examples, and a refusal of every mistake by key, file and remedy."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from typer.testing import CliRunner

from flowrl.cli.app import build
from flowrl.config import load, show, to_mapping, yaml_text
from flowrl.errors import EXIT_FAILED, ConfigError
from flowrl.replay.schema import Kind, Outcome, OutcomeBy, Source, Step
from flowrl.replay.writer import StreamWriter
from flowrl.spec import ActionSpec, Feature, Spec, compare
from robot_bridge.contract import (
    Contract,
    EpisodesConfig,
    JoyIntervention,
    ServicesConfig,
    TakeoverIntervention,
    load_contract,
)
from robot_bridge.contract_commands import CommandPart, JointLimit, Workspace
from robot_bridge.contract_streams import Camera, QoS, StatePart
from tests.robot_bridge import scripted

EXAMPLES = sorted((Path(__file__).parents[2] / "configs" / "robots").glob("*.yaml"))


def refuse(folder: Path, old: str, new: str, match: str) -> None:
    """The scripted arm's contract with one change is refused; the message names the file."""
    assert old in scripted.CONTRACT
    with pytest.raises(ConfigError, match=match) as caught:
        scripted.contract(folder, text=scripted.CONTRACT.replace(old, new, 1))
    assert "contract.yaml" in str(caught.value)


def test_the_spec_has_joints_cameras_and_limits(tmp_path: Path) -> None:
    names = [f"{joint}.{value}" for value in ("pos", "vel") for joint in scripted.JOINTS]
    assert scripted.contract(tmp_path).spec() == Spec(
        (
            Feature("observation.state", (6,), names=tuple(names), unit="rad"),
            Feature("observation.images.wrist", (3, 8, 12), "uint8"),
        ),
        ActionSpec(tuple(names[:3]), (-100.0,) * 3, (100.0,) * 3, "rad"),
        20.0,
        settings={"robot": "scripted"},
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_complete_and_reads_back(path: Path) -> None:
    loaded = load_contract(path)
    spec = loaded.spec()
    assert Spec.from_json(spec.to_json()) == spec
    assert load(Contract, to_mapping(loaded)) == loaded
    assert load(Contract, yaml_text.parse(show(loaded), path.name)) == loaded
    assert all(feature.unit and feature.names for feature in spec.state_features)
    assert len(spec.cameras) == 2
    assert loaded.intervention is not None


def test_the_examples_are_the_three_robots_and_differ() -> None:
    specs = [load_contract(path).spec() for path in EXAMPLES]
    assert [spec.settings["robot"] for spec in specs] == ["franka_fr3", "so101", "ur5e"]
    assert [spec.action.size for spec in specs] == [8, 6, 7]
    assert compare(specs[0], specs[1])


def test_parts_of_a_feature_and_commands_follow_the_file() -> None:
    spec = load_contract(EXAMPLES[0]).spec()
    (state, joints), action = spec.state_features, spec.action
    assert state.names == ("x", "y", "z", "qx", "qy", "qz", "qw", "fr3_finger_joint1.pos")
    assert joints.names[6:8] == ("fr3_joint7.pos", "fr3_joint1.vel")
    assert action.low == (0.3, -0.4, 0.01, -1.0, -1.0, -1.0, 0.0, 0.0)
    assert action.high == (0.7, 0.4, 0.6, 1.0, 1.0, 1.0, 1.0, 0.04)
    assert spec.settings["action.frame"] == spec.settings["observation.state.frame"] == "base"


def test_a_frame_makes_specs_incomparable(tmp_path: Path) -> None:
    text = EXAMPLES[0].read_text()
    other = tmp_path / "other.yaml"
    other.write_text(
        text.replace("topic: /target_pose\n    frame: base", "topic: /target_pose\n    frame: world")
    )
    found = compare(load_contract(EXAMPLES[0]).spec(), load_contract(other).spec())
    assert [difference.where for difference in found] == ["settings.action.frame"]


def test_a_twist_is_bounded_in_both_directions(tmp_path: Path) -> None:
    start = scripted.CONTRACT.index("command:")
    twist = """
command:
  - {kind: twist, topic: /servo/twist, frame: tool0, velocity: 0.2, angular_velocity: 0.5, prefix: left}
"""
    spec = scripted.contract(tmp_path, text=scripted.CONTRACT[:start] + twist).spec()
    assert spec.action.names[0] == "left.vx"
    assert spec.action.low == (-0.2, -0.2, -0.2, -0.5, -0.5, -0.5)
    assert spec.action.high == (0.2, 0.2, 0.2, 0.5, 0.5, 0.5)


def test_topics_have_their_types(tmp_path: Path) -> None:
    overrides = ("episodes.running=/episode", "intervention={kind: joy, button: 4}")
    raw = scripted.CONTRACT.replace("height: 8", "encoding: bgr8, height: 8")
    assert scripted.contract(tmp_path, *overrides, text=raw).topics() == {
        "/joint_states": "sensor_msgs/msg/JointState",
        "/camera/wrist/image_raw/compressed": "sensor_msgs/msg/Image",
        "/arm/commands": "std_msgs/msg/Float64MultiArray",
        "/joy": "sensor_msgs/msg/Joy",
        "/episode": "std_msgs/msg/Bool",
    }


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("rate_hz: 20", "rate_hs: 20", r"unknown key 'rate_hs'; the nearest valid key is 'rate_hz'"),
        ("rate_hz: 20", "", "rate_hz is missing and has no default"),
        ("rate_hz: 20", "rate_hz: .inf", "rate_hz is inf; it must be a finite number above 0"),
        ("rate_hz: 20", "rate_hz: 200", "command_hz is 100 and rate_hz 200"),
        ("rate_hz: 20", "rate_hz: 20\ncommand_after_ms: 51", "between 0 and the time of a row, 50 ms"),
        ("rate_hz: 20", 'rate_hz: "20"', "rate_hz is '20'; expected a valid number"),
        ("robot: scripted", "", "robot is missing"),
        ("task: follow", "task: follow\nrobot: b #", "the key 'robot' is stated twice"),
        # Limits are required, finite, and of the joints there are.
        ("limits:", "limit:", r"unknown key 'command\.0\.limit'; the nearest valid key is 'command\.0\.limits'"),
        ("      wrist: {low: -100, high: 100, velocity: 1}\n", "", "lacks joint 'wrist'; every joint needs low, high"),
        ("elbow: {low", "elbo: {low", "lacks joint 'elbow'"),
        ("joints: [shoulder, elbow, wrist]\n", "joints: [shoulder, elbow]\n", "has 'wrist', which is none of joints"),
        ("low: -100", "low: -.inf", r"from -inf to 100.*cannot be switched off"),
        ("low: -100", "low: 100", "from 100.0 to 100.0; give two finite numbers, the lower one first"),
        ("low: -100, high: 100, velocity: 1", "low: -100, high: 100", r"shoulder\.velocity is missing"),
        ("velocity: 1}", "velocity: 0}", "velocity is 0.0; it must be a finite number above 0"),
        ("velocity: 1}", "velocity: .inf}", "velocity is inf"),
        # Kinds, topics and names.
        ("kind: joints", "kind: joint", r"unknown state\.observation\.state\.0\.kind 'joint'; the nearest is 'joints'"),
        ("kind: forward", "", r"command\.0\.kind is missing; expected one of forward, trajectory, pose, twist"),
        ("topic: /arm/commands", "topic: arm/commands", "no full name of a topic"),
        ("topic: /arm/commands", "topic: /arm//commands", "no full name of a topic"),
        ("topic: /arm/commands", "topic: /joint_states", "named for sensor_msgs/msg/JointState and for std_msgs"),
        ("observation.state:", "state:", "a feature is observation.<name>"),
        ("observation.state:", "observation.images.top:", "a feature is observation.<name>"),
        ("  wrist: {topic", "  Wrist Cam: {topic", "a camera's name is one word in lower case"),
        ("[shoulder, elbow, wrist], values", "[shoulder, elbow, elbow], values", "has 'elbow' twice"),
        ("[shoulder, elbow, wrist], values", "[], values", "joints is empty"),
        ("values: [position, velocity]", "values: [positions]", r"values\.0 is 'positions'"),
        ("height: 8", "encoding: bayer_rggb8, height: 8", r"encoding is 'bayer_rggb8'; expected"),
        ("height: 8", "height: 0", "height is 0"),
        ("height: 8, ", "", r"cameras\.wrist\.height is missing"),
        ("height: 8", "max_age_ms: null, height: 8", "max_age_ms is None"),
        ("height: 8", "qos: {depth: 0}, height: 8", "depth is 0; it must be at least 1"),
        ("task:", "intervention: {kind: joy, button: -1}\ntask:", "buttons are counted from 0"),
        ("task:", "intervention: {kind: pedal}\ntask:", r"unknown intervention\.kind 'pedal'"),
        ("task:", "episodes: {running: on}\ntask:", "no full name of a topic"),
        ("task:", "services: {reset: home}\ntask:", "no full name of a topic"),
        ("task:", "episodes: {max_gap_rows: -1}\ntask:", "max_gap_rows is -1"),
    ],
)  # fmt: skip
def test_a_mistake_is_refused(tmp_path: Path, old: str, new: str, match: str) -> None:
    refuse(tmp_path, old, new, match)


def test_dimensions_that_repeat_need_a_prefix(tmp_path: Path) -> None:
    part = "    - {kind: pose, topic: /left, frame: base}\n    - {kind: pose, topic: /right, frame: base%s}\n"
    old = "cameras:"
    refuse(tmp_path, old, part % "" + old, "has the dimension 'x' twice; give one of its parts a prefix")
    text = scripted.CONTRACT.replace(old, part % ", prefix: right" + old)
    names = scripted.contract(tmp_path, text=text).spec().observation[0].names
    assert names[6:9] + names[13:15] == ("x", "y", "z", "right.x", "right.y")


def test_the_page_explains_every_key() -> None:
    page = (Path(__file__).parents[2] / "docs" / "contract.md").read_text()
    classes = [
        Contract,
        EpisodesConfig,
        ServicesConfig,
        JoyIntervention,
        TakeoverIntervention,
        QoS,
        Camera,
        Workspace,
    ]
    classes += [JointLimit, *get_args(StatePart), *get_args(CommandPart)]
    keys = {name for each in classes for name in (field.name for field in fields(each))}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


def test_a_contract_extends_another(tmp_path: Path) -> None:
    scripted.contract(tmp_path)
    (tmp_path / "second.yaml").write_text("extends: contract.yaml\nrobot: second\nrate_hz: 10\n")
    second = load_contract(tmp_path / "second.yaml")
    assert (second.robot, second.rate_hz) == ("second", 10.0)
    assert second.state == scripted.contract(tmp_path).state


def test_flowrl_check_holds_a_contract_against_a_replay(tmp_path: Path) -> None:
    contract = scripted.contract(tmp_path)
    spec = contract.spec()
    turned = replace(spec, action=replace(spec.action, high=(2.0,) * 3))
    for name, recorded in (("same", spec), ("other", turned)):
        with StreamWriter.create(tmp_path / name, "demos", recorded, Kind.DEMONSTRATION) as writer:
            writer.begin_episode(seed=0, task="hold")
            frame = np.zeros((3, 8, 12), np.uint8)
            for _ in range(3):
                seen = {"observation.state": np.zeros(6, np.float32), "observation.images.wrist": frame}
                writer.append(Step(seen, np.zeros(3, np.float32), 0.0, source=Source.HUMAN))
            writer.close_episode(Outcome.SUCCESS, OutcomeBy.HUMAN, seen)

    def check(replay: str) -> tuple[int, str]:
        arguments = [
            "check",
            "--replay",
            str(tmp_path / replay),
            "--contract",
            str(tmp_path / "contract.yaml"),
        ]
        result = CliRunner().invoke(build(), arguments, env={"COLUMNS": "200"})
        return result.exit_code, result.output

    assert "action.high" not in check("same")[1]
    code, output = check("other")
    assert code == EXIT_FAILED
    assert "action.high" in output

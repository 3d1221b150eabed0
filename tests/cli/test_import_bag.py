"""``flowrl import`` of a ROS 2 bag: recognised, imported by a contract, refused with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl.cli.import_sources import default_stream, kind_of
from flowrl.errors import ConfigError, FlowRLError, UsageError
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import Source
from tests.cli.test_import import invoke
from tests.robot_bridge.scripted import arm, contract, write_mcap


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    contract(tmp_path)
    return write_mcap(tmp_path / "drive 1.mcap", arm(0, 500))


def test_bags_are_recognised(bag: Path, tmp_path: Path) -> None:
    assert [kind_of(Path(name)) for name in ("a.mcap", "b.db3", "c_0.mcap.zstd")] == ["bag"] * 3
    folder = tmp_path / "recording"
    folder.mkdir()
    (folder / "recording_0.db3").write_bytes(b"")
    assert kind_of(folder) == "bag"
    assert default_stream(bag) == "drive_1"


def test_a_bag_is_imported_by_its_contract(bag: Path, tmp_path: Path) -> None:
    where = ("--to", tmp_path / "r", "--contract", tmp_path / "contract.yaml")
    output = invoke(bag, *where)
    for words in (
        "episode_0: 10 steps, outcome unknown",
        "rosbag2 MCAP",
        "/joint_states",
        "25.0 ms",
        "replay info",
    ):
        assert words in output
    reader = ReplayReader(tmp_path / "r")
    assert (reader.streams.keys(), reader.rows) == ({"drive_1"}, 10)
    assert set(reader.column("source").tolist()) == {Source.HUMAN}
    invoke(bag, *where, "--replace", "--source", "scripted", "--actions", "clip", "--limit", 1)
    assert set(ReplayReader(tmp_path / "r").column("source").tolist()) == {Source.SCRIPTED}


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        (
            (),
            UsageError,
            r"is a ROS 2 bag: say what its topics mean with --contract FILE\. Examples.*so101\.yaml",
        ),
        (("--contract", "nowhere.yaml"), ConfigError, r"'nowhere\.yaml' does not exist"),
        (("--actions", "rescale"), UsageError, "a scaled target is another place. Use --actions clip"),
        (
            ("--control-hz", 10),
            UsageError,
            "--control-hz does not apply.*the contract says what a bag becomes",
        ),
        (("--camera", "wrist"), UsageError, "--camera does not apply.*the contract says"),
        (("--env", "lift"), UsageError, "--env does not apply"),
        (("--salvage",), UsageError, "--salvage does not apply.*always imported"),
    ],
)
def test_what_does_not_apply_is_refused(
    bag: Path, tmp_path: Path, options: tuple[object, ...], error: type[FlowRLError], match: str
) -> None:
    given = options and options[0] != "--contract"
    by = ("--contract", tmp_path / "contract.yaml") if given else ()
    with pytest.raises(error, match=match):
        invoke(bag, "--to", tmp_path / "r", *by, *options)
    assert not (tmp_path / "r").exists()


def test_a_contract_is_for_bags_only(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--contract does not apply.*it is for a ROS 2 bag"):
        invoke(tmp_path / "demos.hdf5", "--to", tmp_path / "r", "--contract", "ur.yaml")

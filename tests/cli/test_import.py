"""``flowrl import`` recognises its source, imports a replay buffer, and refuses options that do not apply."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from flowrl.cli import import_ as command
from flowrl.cli.import_buffer import parse_features
from flowrl.cli.import_sources import default_stream, kind_of
from flowrl.errors import FlowRLError, Interrupted, UsageError
from flowrl.replay.importers import diffusion_policy
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import Outcome
from flowrl.spec import ActionSpec, Feature, Spec
from sim import registry
from tests.replay.buffer_files import arrays, write_buffer, zipped


def invoke(*arguments: object) -> str:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    command.register(app)
    result = CliRunner().invoke(app, ["import", *map(str, arguments)], env={"COLUMNS": "160"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def buffer(tmp_path: Path) -> Path:
    return write_buffer(tmp_path / "push.zarr")


@pytest.fixture
def lerobot(tmp_path: Path) -> Path:
    folder = tmp_path / "dataset"
    (folder / "meta").mkdir(parents=True)
    (folder / "meta" / "info.json").write_text("{}")
    (folder / "data").mkdir()
    return folder


@pytest.fixture
def hdf5(tmp_path: Path) -> Path:
    path = tmp_path / "demos.hdf5"
    with h5py.File(path, "w") as file:
        file["data/demo_0/actions"] = np.zeros((2, 7))
    return path


def test_a_source_is_recognised_by_what_it_holds(
    buffer: Path, lerobot: Path, hdf5: Path, tmp_path: Path
) -> None:
    assert [kind_of(path) for path in (buffer, zipped(buffer), lerobot, hdf5)] == [
        "buffer",
        "buffer",
        "lerobot",
        "hdf5",
    ]
    assert kind_of(tmp_path / "missing.hdf5") == "hdf5"
    around = tmp_path / "around"
    around.mkdir()
    with pytest.raises(UsageError, match=r"nothing that can be imported.*robomimic.*LeRobot"):
        kind_of(around)
    (around / "replay_buffer.zarr").mkdir()
    assert kind_of(around) == "buffer"


def test_a_stream_is_named_after_its_source() -> None:
    names = [default_stream(Path(name)) for name in ("a/push t.zarr", "push.zarr.zip", "demo.hdf5", "b/set")]
    assert names == ["push_t", "push", "demo", "set"]


@pytest.mark.parametrize("archived", [False, True])
def test_a_buffer_is_imported_as_the_options_say(buffer: Path, tmp_path: Path, archived: bool) -> None:
    features = ("--feature", "state=observation.state", "--feature", "img=observation.images.top")
    options = ("--control-hz", 10, "--camera", "top", "--image-size", 4, "--success", "--source", "scripted")
    source = zipped(buffer) if archived else buffer
    output = invoke(source, "--to", tmp_path / "r", *features, *options, "--limit", 1)
    for word in (
        "episode_0: 3 steps, success",
        "array keypoint",
        "resized from 6 x 8 to 4 x 4",
        "replay info",
    ):
        assert word in output
    reader = ReplayReader(tmp_path / "r")
    assert (reader.streams.keys(), reader.rows) == ({"push"}, 3)
    assert reader.frames.pixels("observation.images.top", range(3)).shape == (3, 3, 4, 4)
    np.testing.assert_array_equal(reader.state, arrays()["state"][:3].astype(np.float32))
    assert reader.episode(0).outcome is Outcome.SUCCESS


def test_an_environment_gives_the_spec(buffer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = ActionSpec(("x", "y"), (-9.0, -9.0), (99.0, 99.0))
    interface = Spec((Feature("observation.state", (5,)),), bounds, 20.0)
    asked: list[Any] = []

    def make(name: str, **settings: Any) -> Any:
        asked.append((name, settings))
        return SimpleNamespace(interface=interface, close=lambda: asked.append("closed"))

    monkeypatch.setattr(registry, "make", make)
    output = invoke(buffer, "--to", tmp_path / "r", "--env", "pusht", "--set", "max_steps=5")
    assert asked == [("pusht", {"max_steps": 5}), "closed"]
    assert "array img" in output, "dropped"
    assert ReplayReader(tmp_path / "r").rows == 7


@pytest.mark.parametrize(
    ("source", "options", "match"),
    [
        ("buffer", ("--filter", "train"), r"--filter does not apply to push\.zarr, which is a replay buffer"),
        ("buffer", ("--until-success",), "--until-success does not apply"),
        ("buffer", ("--observations", "auto"), "--observations does not apply"),
        ("buffer", ("--allow-mismatch",), "--allow-mismatch does not apply"),
        ("hdf5", ("--control-hz", 10), "--control-hz does not apply to demos.hdf5, which is HDF5"),
        ("hdf5", ("--feature", "a=b"), "--feature does not apply.*it is for a replay buffer"),
        ("hdf5", ("--success",), "--success does not apply"),
        ("hdf5", ("--camera", "front"), "--camera does not apply.*--set cameras=agentview"),
        ("hdf5", ("--image-size", 84), "--image-size does not apply.*--set image_size=84"),
        ("lerobot", ("--control-hz", 10), "--control-hz does not apply to dataset, which is a LeRobot"),
        ("lerobot", ("--env", "lift"), "--env does not apply"),
        ("buffer", ("--set", "decimation=1", "--control-hz", 10), "name one with --env"),
        ("buffer", (), "does not state its control rate"),
        ("buffer", ("--control-hz", 10, "--feature", "img"), "expected KEY=NAME"),
        ("buffer", ("--env", "pushtt"), "unknown environment 'pushtt'; did you mean 'pusht'"),
    ],
)
def test_what_does_not_apply_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, source: str, options: tuple[object, ...], match: str
) -> None:
    with pytest.raises(UsageError, match=match):
        invoke(request.getfixturevalue(source), "--to", tmp_path / "r", *options)
    assert not (tmp_path / "r").exists()


def test_features_are_parsed() -> None:
    assert parse_features(["a=observation.a", "b=observation.b=c"]) == {
        "a": "observation.a",
        "b": "observation.b=c",
    }
    for wrong in (["a"], ["=b"], ["a="], ["a=b", "a=c"]):
        with pytest.raises(UsageError):
            parse_features(wrong)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, FlowRLError])
def test_an_import_that_breaks_off_leaves_nothing(
    buffer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: type[BaseException]
) -> None:
    def fail(*arguments: object) -> None:
        raise raised

    monkeypatch.setattr(diffusion_policy, "encoded_rows", fail)
    expected = Interrupted if raised is KeyboardInterrupt else FlowRLError
    with pytest.raises(expected):
        invoke(buffer, "--to", tmp_path / "r", "--control-hz", 10)
    assert not (tmp_path / "r").exists()

"""Camera frames of robomimic files, and of a simulator that replays states: exact pixels at the right rows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from flowrl.errors import DataError
from flowrl.replay.frames import FrameCodec
from flowrl.replay.importers.episodes import commit_rule
from flowrl.replay.importers.hdf5 import DemonstrationDone, ImportOptions, import_hdf5
from flowrl.replay.importers.images import StoredImages, resized
from flowrl.replay.importers.report import ImportReport
from flowrl.replay.importers.target import Target
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import Outcome
from flowrl.replay.verify import verify
from flowrl.spec import Feature
from tests.replay.import_files import SPEC, ToySimulator, demonstration, recorded, target, write_file

SOLVED = [0.0, 0.4, 0.8, 1.2, 1.3]
FRONT, WRIST = "observation.images.front", "observation.images.wrist"
CAMERA_SPEC = replace(
    SPEC,
    # Not in the order of the file: cameras go by name.
    observation=(Feature(WRIST, (3, 6, 4), "uint8"), *SPEC.observation, Feature(FRONT, (3, 4, 4), "uint8")),
)
LOSSLESS = FrameCodec("png")


class CameraSimulator(ToySimulator):
    """Shows 100 x as the red of its front camera, and 200 - 100 x of its wrist camera."""

    def observation(self) -> dict[str, NDArray[Any]]:
        red = round(100 * float(self.state[1]))
        frames = {FRONT: np.zeros((3, 4, 4), np.uint8), WRIST: np.zeros((3, 6, 4), np.uint8)}
        frames[FRONT][0], frames[WRIST][0] = red, 200 - red
        return {**super().observation(), **frames}


def camera_target(simulator: bool = False) -> Target:
    return replace(target(), interface=CAMERA_SPEC, replayer=CameraSimulator() if simulator else None)


def pictures(count: int, height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """Noise, so that a flipped, shifted or exchanged image shows."""
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), np.uint8)


def images(count: int = len(SOLVED)) -> dict[str, NDArray[np.uint8]]:
    return {"front_image": pictures(count, 4, 4, 1), "wrist_image": pictures(count, 6, 4, 2)}


def demo(obs: Mapping[str, Any] | None = None, xs: list[float] = SOLVED, **more: Any) -> dict[str, Any]:
    """A demonstration without states, whose rewards tell success; None leaves an observation out."""
    solved = np.array([*(x >= 1 for x in xs[1:]), xs[-1] >= 1], float)
    seen = {**recorded(xs), **images(len(xs)), **(obs or {})}
    kept = {key: value for key, value in seen.items() if value is not None}
    return {"actions": demonstration(xs)["actions"], "rewards": solved, "obs": kept, **more}


def run(source: Path, replay: Path, to: Target | None = None, **options: Any) -> ImportReport:
    return import_hdf5(source, replay, "toy", to or camera_target(), ImportOptions(codec=LOSSLESS, **options))


def stored(replay: Path, camera: str, rows: Any) -> NDArray[np.uint8]:
    """Frames as (B, height, width, 3), as files hold them."""
    return ReplayReader(replay).frames.pixels(camera, rows).numpy().transpose(0, 2, 3, 1)


def test_images_of_the_file_come_back_by_name_at_their_rows(tmp_path: Path) -> None:
    second = demo({"front_image": pictures(2, 4, 4, 7)}, xs=[0.0, 0.1])
    report = run(write_file(tmp_path / "a.hdf5", {"demo_1": demo(), "demo_2": second}), tmp_path / "r")
    assert (report.observations, report.steps, report.successes) == ("file", 7, 1)
    assert report.dropped == ()
    front = np.concatenate([images()["front_image"], pictures(2, 4, 4, 7)])
    np.testing.assert_array_equal(stored(tmp_path / "r", FRONT, range(7)), front)
    np.testing.assert_array_equal(stored(tmp_path / "r", WRIST, range(5)), images()["wrist_image"])
    episode = ReplayReader(tmp_path / "r").episode(0)
    np.testing.assert_array_equal(episode.state[:, 0], np.float32(SOLVED))
    assert episode.outcome is Outcome.SUCCESS
    assert episode.final is None, "the file does not say what came after the last action"
    assert verify(tmp_path / "r").ok


def test_next_obs_gives_the_last_frame(tmp_path: Path) -> None:
    after = {**recorded([*SOLVED[1:], 9.0]), "front_image": pictures(5, 4, 4, 8)}
    complete = {**after, "wrist_image": pictures(5, 6, 4, 9)}
    demos = {"demo_1": demo(next_obs=complete), "demo_2": demo(next_obs=after)}
    report = run(write_file(tmp_path / "a.hdf5", demos), tmp_path / "r")
    np.testing.assert_array_equal(stored(tmp_path / "r", FRONT, [-1])[0], pictures(5, 4, 4, 8)[4])
    np.testing.assert_array_equal(stored(tmp_path / "r", WRIST, [-1])[0], pictures(5, 6, 4, 9)[4])
    reader = ReplayReader(tmp_path / "r")
    finals = [reader.episode(0).final, reader.episode(1).final]
    assert finals[0] is not None
    assert finals[0][0] == 9.0
    assert finals[1] is None, "no frame of the wrist camera"
    assert any("next_obs of 1 demonstrations lacks images" in warning for warning in report.warnings)
    assert verify(tmp_path / "r").ok


def test_a_cut_at_the_first_success_takes_the_frame_after_it(tmp_path: Path) -> None:
    run(write_file(tmp_path / "a.hdf5", {"demo_1": demo()}), tmp_path / "r", until_success=True)
    assert ReplayReader(tmp_path / "r").rows == 3
    np.testing.assert_array_equal(stored(tmp_path / "r", FRONT, [0, 1, 2, -1]), images()["front_image"][:4])


def test_images_of_another_size_are_resized_and_that_is_said(tmp_path: Path) -> None:
    large = pictures(5, 8, 8, 3)
    report = run(write_file(tmp_path / "a.hdf5", {"d": demo({"front_image": large})}), tmp_path / "r")
    expected = [np.asarray(Image.fromarray(each).resize((4, 4), Image.Resampling.BILINEAR)) for each in large]
    np.testing.assert_array_equal(stored(tmp_path / "r", FRONT, range(5)), expected)
    assert report.warnings[-1:] == (f"{FRONT} is resized from 8 x 8 to 4 x 4 pixels",)


def test_resizing_keeps_constant_images_sides_and_brightness() -> None:
    np.testing.assert_array_equal(resized(np.full((7, 9, 3), 93, np.uint8), 4, 5), np.full((3, 4, 5), 93))
    image = np.zeros((8, 12, 3), np.uint8)
    image[:4, :, 0], image[:, 6:, 1] = 200, 100
    small = resized(image, 2, 4)
    assert small.shape == (3, 2, 4)
    assert (small[0, 0] > small[0, 1]).all(), "the first row stays on top"
    assert (small[1, :, 3] > small[1, :, 0]).all(), "the right stays right"
    noise = pictures(1, 64, 64)[0]
    # A filter that skips pixels would keep the noise's deviation of 74; the average over 16 x 16 has about 5.
    assert resized(noise, 4, 4).std() < 15
    assert abs(float(resized(noise, 4, 4).mean()) - float(noise.mean())) < 5


def test_other_proportions_are_said(tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.hdf5", {"d": demo({"wrist_image": pictures(5, 8, 12)})})
    warning = run(source, tmp_path / "r").warnings[-1]
    assert warning == f"{WRIST} is resized from 8 x 12 to 6 x 4 pixels, which changes their proportions"


def test_only_the_newest_block_of_a_file_is_in_memory(tmp_path: Path) -> None:
    reads: list[slice] = []

    class Watched:
        shape, dtype, chunks = (10, 4, 4, 3), np.dtype(np.uint8), (3, 4, 4, 3)

        def __getitem__(self, rows: slice) -> NDArray[np.uint8]:
            reads.append(rows)
            return pictures(10, 4, 4)[rows]

    found = StoredImages(Watched(), "a", lambda where: nullcontext())
    shown = np.stack([found.frame(row, 4, 4) for row in range(10)])
    np.testing.assert_array_equal(shown.transpose(0, 2, 3, 1), pictures(10, 4, 4))
    assert reads == [slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 12)], "each row once"


def test_the_simulator_shows_the_frames_of_replayed_states(tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.hdf5", {"demo_1": demonstration(SOLVED)})
    report = run(source, tmp_path / "r", camera_target(simulator=True))
    assert report.observations == "states"
    red = [0, 40, 80, 120, 130]
    assert stored(tmp_path / "r", FRONT, range(5))[:, 0, 0, 0].tolist() == red
    assert stored(tmp_path / "r", WRIST, range(5))[:, 5, 3, 0].tolist() == [200 - each for each in red]
    # The last action moves x by 0.1.
    assert stored(tmp_path / "r", FRONT, [-1])[0, 0, 0, 0] == 140
    assert verify(tmp_path / "r").ok


def test_states_replace_missing_images_and_that_is_said(tmp_path: Path) -> None:
    incomplete = demo({"wrist_image": None}, states=demonstration(SOLVED)["states"])
    source = write_file(tmp_path / "a.hdf5", {"demo_1": incomplete})
    report = run(source, tmp_path / "r", camera_target(simulator=True))
    assert report.observations == "states"
    assert "states were replayed, because the file has no images wrist_image" in report.warnings
    assert stored(tmp_path / "r", FRONT, [1])[0, 0, 0, 0] == 40, "drawn, not the file's"
    report = run(write_file(tmp_path / "b.hdf5", {"demo_1": demo()}), tmp_path / "q")
    assert report.observations == "file"


def test_images_that_nobody_wants_are_dropped_and_said(tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.hdf5", {"demo_1": demo({"side_image": pictures(5, 4, 4)})})
    dropped = {each.what for each in run(source, tmp_path / "r").dropped}
    assert dropped == {"observation side_image"}
    without = run(source, tmp_path / "q", target(simulator=False))
    assert {each.what for each in without.dropped} == {
        f"observation {name}_image" for name in ("front", "wrist", "side")
    }
    assert ReplayReader(tmp_path / "q").frames.features == ()


@pytest.mark.parametrize(
    ("obs", "match"),
    [
        ({"front_image": None}, r"demo_2: obs lacks front_image; its images are wrist_image"),
        (
            {"front_image": np.zeros((5, 4, 4, 3), np.float32)},
            r"obs/front_image holds float32, expected uint8",
        ),
        ({"front_image": pictures(4, 4, 4)}, r"obs/front_image has 4 images for 5 actions"),
        ({"front_image": np.zeros((5, 4, 4), np.uint8)}, r"obs/front_image has shape \(5, 4, 4\), expected"),
        ({"front_image": np.zeros((5, 48), np.uint8)}, r"obs/front_image has shape \(5, 48\), expected"),
        ({"front_image": np.zeros((5, 3, 4, 4), np.uint8)}, r"has shape \(5, 3, 4, 4\), expected images of"),
    ],
    ids=["missing", "dtype", "length", "grey", "flat", "channels first"],
)
def test_images_that_do_not_fit_are_refused_by_name(tmp_path: Path, obs: dict[str, Any], match: str) -> None:
    source = write_file(tmp_path / "a.hdf5", {"demo_1": demo(), "demo_2": demo(obs)})
    with pytest.raises(DataError, match=match):
        run(source, tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_wrong_images_after_the_last_step_are_refused(tmp_path: Path) -> None:
    after = {**recorded(SOLVED), **images(3)}
    source = write_file(tmp_path / "a.hdf5", {"demo_1": demo(next_obs=after)})
    with pytest.raises(DataError, match=r"demo_1: next_obs/wrist_image has 3 images for 5 actions"):
        run(source, tmp_path / "r")


def test_a_camera_that_no_demonstration_has_is_named(tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.hdf5", {"demo_1": demo({"wrist_image": None})})
    with pytest.raises(DataError, match=r"cannot be recovered.*obs lacks wrist_image"):
        run(source, tmp_path / "r")
    with pytest.raises(DataError, match=r"obs lacks wrist_image; it holds front_image, object"):
        run(source, tmp_path / "r", observations="file")


def test_damaged_images_are_refused(tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.hdf5", {"demo_1": demo()})
    with h5py.File(source, "a") as file:
        del file["data/demo_1/obs/front_image"]
        dataset = file["data/demo_1/obs"].create_dataset(
            "front_image", data=images()["front_image"], chunks=(5, 4, 4, 3), compression="gzip"
        )
        chunk = dataset.id.get_chunk_info(0)
    content = bytearray(source.read_bytes())
    content[chunk.byte_offset : chunk.byte_offset + chunk.size] = b"\xff" * chunk.size
    source.write_bytes(content)
    with pytest.raises(DataError, match=r"demo_1: obs/front_image cannot be read: .*truncated or damaged"):
        run(source, tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_an_interrupt_between_frames_leaves_nothing(tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.hdf5", {"demo_1": demo(), "demo_2": demo()})

    def interrupt(done: DemonstrationDone) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_hdf5(source, tmp_path / "r", "toy", camera_target(), ImportOptions(), interrupt)
    assert not (tmp_path / "r").exists()


def test_frames_are_jpeg_unless_asked_otherwise(tmp_path: Path) -> None:
    flat = {key: np.full_like(value, 120) for key, value in images().items()}
    source = write_file(tmp_path / "a.hdf5", {"demo_1": demo(flat)})
    import_hdf5(source, tmp_path / "r", "toy", camera_target())
    (data,) = ReplayReader(tmp_path / "r").frames.encoded(FRONT, [0])
    assert data.startswith(b"\xff\xd8")
    np.testing.assert_allclose(stored(tmp_path / "r", FRONT, range(5)), 120, atol=1)


def test_many_large_frames_are_committed_in_smaller_parts() -> None:
    def spec(*shapes: tuple[int, int, int]) -> Any:
        cameras = [Feature(f"observation.images.{i}", shape, "uint8") for i, shape in enumerate(shapes)]
        return replace(SPEC, observation=(*SPEC.observation, *cameras))

    assert commit_rule(SPEC).rows == 16_384
    assert commit_rule(spec((3, 8, 8))).rows == 16_384
    # 256 MiB of pixels, 900 KiB each.
    assert commit_rule(spec((3, 480, 640))).rows == 291
    assert commit_rule(spec((3, 480, 640), (3, 480, 640))).rows == 145
    assert commit_rule(spec((3, 4096, 4096))).rows == 64

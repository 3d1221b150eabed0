"""Offscreen frames, and messages that say what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from flowrl.errors import UsageError
from sim import rendering
from sim.base import SimEnv
from sim.registry import make


@pytest.fixture(scope="module")
def lift() -> Iterator[SimEnv]:
    env = make("lift")
    env.reset(seed=0)
    yield env
    env.close()


@pytest.fixture
def _no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)


def can_draw() -> bool:
    return any(rendering.backend_failure(backend) is None for backend in rendering.BACKENDS)


needs_a_backend = pytest.mark.skipif(
    not can_draw(), reason=f"no rendering backend here; {'; '.join(rendering.REMEDIES.values())}"
)


@needs_a_backend
@pytest.mark.usefixtures("_no_choice")
def test_a_frame_shows_the_scene_and_its_changes(lift: SimEnv) -> None:
    lift.reset(seed=0)
    first = lift.render_frame(84, 60)
    assert first.shape == (60, 84, 3)
    assert first.dtype == np.uint8
    assert first.std() > 20
    # The cube is the only strongly red thing, and it stands in the middle of the picture.
    red = (first[..., 0].astype(int) - first[..., 1]) > 60
    rows, columns = np.nonzero(red)
    assert 20 < rows.mean() < 45
    assert 30 < columns.mean() < 55
    for _ in range(8):
        lift.step(np.array([0, 0, -1, 0, 0, 0, -1], np.float32))
    assert np.abs(lift.render_frame(84, 60).astype(int) - first).max() > 50


@needs_a_backend
@pytest.mark.usefixtures("_no_choice")
def test_sizes_and_cameras_can_change_between_frames(lift: SimEnv) -> None:
    small = lift.render_frame(32, 32)
    assert lift.render_frame(48, 64, "frontview").shape == (64, 48, 3)
    np.testing.assert_array_equal(lift.render_frame(32, 32), small)
    assert lift.render().shape == (256, 256, 3)


@needs_a_backend
@pytest.mark.usefixtures("_no_choice")
def test_shadows_are_off_unless_asked_for(lift: SimEnv) -> None:
    shaded = make("lift", shadows=True)
    shaded.reset(seed=0)
    lift.reset(seed=0)
    assert not np.array_equal(shaded.render_frame(84, 84), lift.render_frame(84, 84))
    shaded.close()


@needs_a_backend
@pytest.mark.usefixtures("_no_choice")
def test_rendering_does_not_touch_the_episode(lift: SimEnv) -> None:
    def end_state(draw: bool) -> list[float]:
        lift.reset(seed=5)
        for _ in range(4):
            lift.step(np.full(7, 0.5, np.float32))
            if draw:
                lift.render_frame(16, 16)
        return lift.get_state().tolist()

    assert end_state(True) == end_state(False)


@needs_a_backend
@pytest.mark.usefixtures("_no_choice")
@pytest.mark.parametrize("name", ["cube_single", "fetch_push", "pusht"])
def test_other_simulators_draw_too(name: str) -> None:
    env = make(name)
    env.reset(seed=0)
    frame = env.render_frame(64, 48)
    assert frame.shape == (48, 64, 3)
    assert frame.std() > 5
    env.close()


@needs_a_backend
@pytest.mark.usefixtures("_no_choice")
def test_an_unknown_camera_names_the_nearest(lift: SimEnv) -> None:
    with pytest.raises(UsageError, match="did you mean 'agentview'"):
        lift.render_frame(8, 8, "agentvew")


def test_a_simulator_without_a_scene_says_so() -> None:
    env = make("metaworld_push")
    env.reset(seed=0)
    with pytest.raises(UsageError, match="metaworld_push cannot be rendered"):
        env.render_frame()
    with pytest.raises(UsageError, match="metaworld_push gives no access"):
        env.get_state()
    env.close()


def test_a_bogus_backend_names_itself_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "bogus")
    with pytest.raises(UsageError, match=r"'bogus'.*egl, osmesa or none.*libegl1.*libosmesa6"):
        rendering.choose_backend()


def test_rendering_turned_off_says_how_to_turn_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "none")
    with pytest.raises(UsageError, match=r"MUJOCO_GL=none; unset it or set it to egl or osmesa"):
        rendering.choose_backend()


def test_a_backend_that_does_not_work_names_itself_and_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_backend: str) -> str:
        return "libEGL.so.1 not found"

    monkeypatch.setattr(rendering, "_probe", broken)
    monkeypatch.setenv("MUJOCO_GL", "egl")
    with pytest.raises(UsageError, match=r"'egl' does not work \(libEGL.so.1 not found\).*libegl-mesa0"):
        rendering.choose_backend()
    monkeypatch.delenv("MUJOCO_GL")
    with pytest.raises(UsageError, match=r"(?s)'egl'.*'osmesa'.*libosmesa6"):
        rendering.choose_backend()


def test_a_backend_that_crashes_its_process_is_a_message_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "_PROBE", "import os; os.abort() # {path} {backend}")
    rendering._probe.cache_clear()
    reason = rendering.backend_failure("egl")
    rendering._probe.cache_clear()
    assert reason is not None
    assert "status -6" in reason


@pytest.mark.parametrize("choice", ["none", "bogus"])
def test_physics_runs_whatever_the_backend_variable_says(choice: str) -> None:
    code = (
        "import os; from sim.rendering import import_mujoco; mujoco = import_mujoco()\n"
        "model = mujoco.MjModel.from_xml_string('<mujoco/>')\n"
        "mujoco.mj_step(model, mujoco.MjData(model)); print(os.environ['MUJOCO_GL'])"
    )
    ran = run_python(code, {"MUJOCO_GL": choice})
    assert ran.stdout.strip() == choice
    assert ran.stderr == ""


@needs_a_backend
@pytest.mark.usefixtures("_no_choice")
def test_a_process_that_drew_ends_without_noise() -> None:
    code = (
        "from sim.rendering import Renderer, import_mujoco; mujoco = import_mujoco()\n"
        "model = mujoco.MjModel.from_xml_string('<mujoco/>'); renderer = Renderer(model)\n"
        "data = mujoco.MjData(model); mujoco.mj_forward(model, data)\n"
        "print(renderer.frame(data, 16, 16, None).shape)"
    )
    ran = run_python(code, {})
    assert ran.stdout.strip() == "(16, 16, 3)"
    assert ran.stderr == ""


def run_python(code: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )

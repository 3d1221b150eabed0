"""Offscreen rendering of MuJoCo scenes without a display.

Backends are ``egl`` and ``osmesa`` (both work in software) and ``none``. The environment variable
``MUJOCO_GL`` chooses; without it the first that works is taken. A backend is tried in a child
process first, because a broken graphics driver may end the process that loads it. Nothing here runs
until the first frame is asked for.

Shadow maps and multisampling make software rendering 20 to 100 times slower, so both are off
unless asked for.
"""

from __future__ import annotations

import atexit
import difflib
import importlib
import os
import subprocess
import sys
import weakref
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowrl.errors import MissingExtra, UsageError

BACKENDS = ("egl", "osmesa")
OFF = ("none", "disable", "disabled", "off", "false", "0")
REMEDIES: Mapping[str, str] = {
    "egl": "install it with: apt install libegl1 libgl1 libegl-mesa0 libgl1-mesa-dri",
    "osmesa": "install it with: apt install libosmesa6",
}
_PROBE = """
import sys
sys.path[:0] = {path!r}
from sim.rendering import try_frame
try_frame({backend!r})
"""
_PROBE_SECONDS = 60
_open_renderers: weakref.WeakSet[Renderer] = weakref.WeakSet()


@cache
def import_mujoco() -> Any:
    """The ``mujoco`` module, whatever ``MUJOCO_GL`` says.

    MuJoCo loads the backend of ``MUJOCO_GL`` while it is imported and fails if that does not work,
    or for a name it does not know. Physics needs none, so a failing import is repeated without.
    Raises MissingExtra when MuJoCo is not installed.
    """
    try:
        return importlib.import_module("mujoco")
    except ModuleNotFoundError as error:
        if error.name == "mujoco":
            raise MissingExtra("mujoco", "sim") from error
        return _import_mujoco_without_backend()
    except (ImportError, AttributeError, RuntimeError):
        return _import_mujoco_without_backend()


def backend_failure(backend: str) -> str | None:
    """None when a backend can draw here, else the reason in one line. Tried once, in a child process.

    Raises UsageError for a name that is not in `BACKENDS`.
    """
    if backend not in BACKENDS:
        raise UsageError(
            f"unknown rendering backend {backend!r} (MUJOCO_GL); choose {', '.join(BACKENDS)} or none. "
            f"For egl, {REMEDIES['egl']}; for osmesa, {REMEDIES['osmesa']}"
        )
    return _probe(backend)


def choose_backend() -> str:
    """The backend to draw with: the one ``MUJOCO_GL`` names, else the first that works.

    Raises UsageError naming the backend and the remedy when there is none.
    """
    wanted = os.environ.get("MUJOCO_GL", "").lower().strip()
    if wanted in OFF:
        raise UsageError(
            f"rendering is turned off by MUJOCO_GL={wanted}; unset it or set it to {' or '.join(BACKENDS)}"
        )
    failures: list[str] = []
    for backend in (wanted,) if wanted else BACKENDS:
        reason = backend_failure(backend)
        if reason is None:
            return backend
        failures.append(f"rendering backend {backend!r} does not work ({reason}); {REMEDIES[backend]}")
    raise UsageError("\n".join(failures))


@contextmanager
def backend_off() -> Generator[None]:
    """Set ``MUJOCO_GL`` to off for a block, for packages that load a backend while they are imported."""
    before = os.environ.get("MUJOCO_GL")
    os.environ["MUJOCO_GL"] = "disable"
    try:
        yield
    finally:
        # Not only undoing the line above: robosuite forces egl, which would decide for every child.
        os.environ.pop("MUJOCO_GL")
        if before is not None:
            os.environ["MUJOCO_GL"] = before


class Renderer:
    """Draws one MuJoCo model into memory.

    ``shadows`` turns on the model's shadow maps and multisampling. ``visible_groups`` are the
    geometry groups to draw (None: MuJoCo's default).
    """

    def __init__(
        self, model: Any, *, shadows: bool = False, visible_groups: tuple[int, ...] | None = None
    ) -> None:
        self._mujoco = import_mujoco()
        self._backend = choose_backend()
        self._model = model
        self._shadows = shadows
        self._options = self._mujoco.MjvOption()
        if visible_groups is not None:
            self._options.geomgroup[:] = [group in visible_groups for group in range(6)]
        self._scene = self._mujoco.MjvScene(model, maxgeom=10_000)
        self._size = (0, 0)
        self._gl: Any = None
        self._context: Any = None

    def frame(self, data: Any, width: int, height: int, camera: str | None) -> NDArray[np.uint8]:
        """The scene of ``data`` as an image (height, width, 3), RGB, first row on top.

        Raises UsageError for an unknown camera, a size below 1, or when drawing fails.
        """
        if width < 1 or height < 1:
            raise UsageError(f"a frame of {width} x {height} pixels cannot be drawn; both must be at least 1")
        view = self._camera(camera)
        try:
            self._open(width, height)
            self._gl.make_current()
            return self._draw(data, width, height, view)
        except Exception as error:  # whatever the driver raises, the user needs the backend's name
            raise UsageError(
                f"rendering backend {self._backend!r} failed ({error}); {REMEDIES[self._backend]}, "
                "or choose another with MUJOCO_GL"
            ) from error

    def close(self) -> None:
        """Free the graphics context."""
        if self._context is not None:
            self._gl.make_current()
            self._context.free()
            self._gl.free()
        self._context = self._gl = None
        self._size = (0, 0)

    def _draw(self, data: Any, width: int, height: int, view: Any) -> NDArray[np.uint8]:
        mujoco = self._mujoco
        area = mujoco.MjrRect(0, 0, width, height)
        mujoco.mjv_updateScene(
            self._model, data, self._options, None, view, mujoco.mjtCatBit.mjCAT_ALL, self._scene
        )
        mujoco.mjr_render(area, self._scene, self._context)
        pixels = np.empty((height, width, 3), np.uint8)
        mujoco.mjr_readPixels(pixels, None, area, self._context)
        return np.ascontiguousarray(pixels[::-1])

    def _open(self, width: int, height: int) -> None:
        """Make a graphics context at least this large, unless there is one."""
        if self._context is not None and self._size[0] >= width and self._size[1] >= height:
            return
        width, height = max(width, self._size[0]), max(height, self._size[1])
        self.close()
        self._gl = _context_class(self._backend)(width, height)
        # The backend registers its exit handler with its first context. Ours comes after, so it
        # runs before: a context freed after the display is gone prints errors as the process ends.
        if not _open_renderers:
            atexit.register(_close_open_renderers)
        _open_renderers.add(self)
        self._gl.make_current()
        self._context = self._make_context(width, height)
        self._size = (width, height)

    def _make_context(self, width: int, height: int) -> Any:
        """The context copies the model's visual settings, which are put back afterwards."""
        visual = self._model.vis
        before = (
            visual.global_.offwidth,
            visual.global_.offheight,
            visual.quality.shadowsize,
            visual.quality.offsamples,
        )
        visual.global_.offwidth, visual.global_.offheight = width, height
        if not self._shadows:
            visual.quality.shadowsize = visual.quality.offsamples = 0
        try:
            context = self._mujoco.MjrContext(self._model, self._mujoco.mjtFontScale.mjFONTSCALE_150.value)
            self._mujoco.mjr_setBuffer(self._mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, context)
            return context
        finally:
            visual.global_.offwidth, visual.global_.offheight = before[:2]
            visual.quality.shadowsize, visual.quality.offsamples = before[2:]

    def _camera(self, name: str | None) -> Any:
        mujoco = self._mujoco
        view = mujoco.MjvCamera()
        if name is None:
            mujoco.mjv_defaultFreeCamera(self._model, view)
            return view
        index = mujoco.mj_name2id(self._model, mujoco.mjtObj.mjOBJ_CAMERA, name)
        if index < 0:
            known = [self._model.camera(i).name for i in range(self._model.ncam)]
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise UsageError(f"no camera {name!r}{hint}; the scene has {', '.join(known) or 'none'}")
        view.type, view.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, index
        return view


def try_frame(backend: str) -> None:
    """Draw an 8x8 frame of a small scene with a backend, letting every error through."""
    mujoco = import_mujoco()
    context = _context_class(backend)(8, 8)
    context.make_current()
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><light pos='0 0 2'/><geom size='1'/></worldbody></mujoco>"
    )
    mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150.value).free()
    context.free()


@cache
def _probe(backend: str) -> str | None:
    # The child starts from a clean choice: another backend may already be loaded in this process.
    environment = {**os.environ, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}
    code = _PROBE.format(path=sys.path, backend=backend)
    try:
        child = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no frame within {_PROBE_SECONDS} s"
    if child.returncode == 0:
        return None
    lines = child.stderr.strip().splitlines()
    return lines[-1] if lines else f"the trial process ended with status {child.returncode}"


def _context_class(backend: str) -> Any:
    """MuJoCo's own context class for a backend, independent of what ``import mujoco`` selected."""
    loaded = os.environ.setdefault("PYOPENGL_PLATFORM", backend)
    if loaded != backend:
        raise RuntimeError(f"this process already draws with {loaded} (PYOPENGL_PLATFORM); start a new one")
    return importlib.import_module(f"mujoco.{backend}").GLContext


def _import_mujoco_without_backend() -> Any:
    with backend_off():
        return importlib.import_module("mujoco")


def _close_open_renderers() -> None:
    for renderer in list(_open_renderers):
        renderer.close()

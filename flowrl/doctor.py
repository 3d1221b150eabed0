"""What this machine has and lacks, each with the command that helps: data for ``flowrl doctor``.

Nothing heavy is imported here: torch, MuJoCo and its renderers are tried in child processes, which a
broken driver may kill; packages are looked up by their metadata.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

Status = Literal["ok", "warn", "missing"]

_PROBE_SECONDS = 60
_GIB = 2**30
_RENDERERS = {
    "egl": "apt install libegl1 libgl1 libegl-mesa0 libgl1-mesa-dri",
    "osmesa": "apt install libosmesa6",
}
_TORCH_PROBE = """
import json, torch
cuda = torch.cuda
print(json.dumps({
    "version": torch.__version__,
    "devices": [f"cuda:{i} ({cuda.get_device_name(i)})" for i in range(cuda.device_count())]
    + (["mps"] if torch.backends.mps.is_available() else []),
}))
"""
_RENDER_PROBE = """
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='.1'/></worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 16, 16)
renderer.update_scene(data)
assert renderer.render().any(), "the frame is black"
"""


@dataclass(frozen=True)
class Check:
    """One finding. ``remedy`` says what to type when it is not ``ok``; ``required`` if nothing runs without."""

    group: str
    name: str
    status: Status
    found: str
    remedy: str = ""
    required: bool = False


def run_checks(runs: Path = Path("runs")) -> list[Check]:
    """Every check, in the order in which they read best. ``runs`` is where runs will be written."""
    slow: list[Callable[[], Check]] = [check_torch]
    slow += [lambda backend=backend: check_renderer(backend) for backend in _RENDERERS]
    with ThreadPoolExecutor(len(slow)) as pool:
        probes = [pool.submit(check) for check in slow]
        cheap = [check_threads(), check_memory(), check_disk(runs), check_writable(runs)]
        extras = [*check_extras(), check_ros()]
        torch, *renderers = [probe.result() for probe in probes]
    return [check_python(), torch, *cheap, *extras, *renderers]


def check_python() -> Check:
    """The interpreter's version."""
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Check("core", "Python", "ok", found, required=True)


def check_torch() -> Check:
    """Torch and the devices it sees."""
    output, problem = _python(_TORCH_PROBE)
    if problem:
        return Check("core", "torch", "missing", problem, "pip install flowrl", required=True)
    seen = json.loads(output)
    devices = ", ".join(seen["devices"]) or "CPU only"
    return Check("core", "torch", "ok", f"{seen['version']}; {devices}", required=True)


def check_threads() -> Check:
    """The number of threads that each process starts."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    setting = os.environ.get("OMP_NUM_THREADS")
    if setting:
        return Check("core", "threads", "ok", f"OMP_NUM_THREADS={setting}; {cores} cores")
    return Check(
        "core",
        "threads",
        "warn",
        f"OMP_NUM_THREADS is unset; {cores} cores",
        "export OMP_NUM_THREADS=1 (learner and workers are processes of their own)",
    )


def check_memory() -> Check:
    """Memory that is free, within the limit of a container."""
    available, total = _memory()
    found = f"{available / _GIB:.1f} of {total / _GIB:.1f} GiB free"
    if available >= 4 * _GIB:
        return Check("core", "memory", "ok", found)
    return Check("core", "memory", "warn", found, "close other programs, or use fewer workers")


def check_disk(runs: Path) -> Check:
    """Free space where runs are written."""
    usage = shutil.disk_usage(_existing(runs))
    found = f"{usage.free / _GIB:.1f} of {usage.total / _GIB:.1f} GiB free for {runs}/"
    if usage.free >= 5 * _GIB:
        return Check("core", "disk", "ok", found)
    return Check("core", "disk", "warn", found, "free space, or run from another directory")


def check_writable(runs: Path) -> Check:
    """Whether runs can be written."""
    where = _existing(runs)
    try:
        with tempfile.NamedTemporaryFile(dir=where):
            pass
    except OSError as error:
        remedy = f"chmod u+w {where}, or run from another directory"
        return Check("core", "runs", "missing", f"{where} refuses a file: {error.strerror}", remedy, True)
    return Check("core", "runs", "ok", f"{runs}/ can be written", required=True)


def check_extras(distribution: str = "flowrl") -> list[Check]:
    """Each extra of ``distribution`` with the packages it needs, by their metadata."""
    try:
        metadata = importlib.metadata.metadata(distribution)
    except importlib.metadata.PackageNotFoundError:
        remedy = "pip install --editable ."
        return [Check("extras", "flowrl", "missing", "the package itself is not installed", remedy)]
    wanted = [Requirement(text) for text in importlib.metadata.requires(distribution) or []]
    checks: list[Check] = []
    for extra in metadata.get_all("Provides-Extra") or []:
        here = [each for each in wanted if each.marker and _only_for(each, extra)]
        checks.append(_extra(distribution, extra, here))
    return checks


def check_renderer(backend: str) -> Check:
    """Draw one frame with a MuJoCo backend, in a child process."""
    if find_spec("mujoco") is None:
        return Check("renderers", backend, "missing", "MuJoCo is not installed", _install("flowrl", "sim"))
    _, problem = _python(_RENDER_PROBE, MUJOCO_GL=backend)
    if problem:
        return Check("renderers", backend, "missing", problem, _RENDERERS[backend])
    return Check("renderers", backend, "ok", f"draws; chosen by MUJOCO_GL={backend}")


def check_ros() -> Check:
    """ROS 2's Python client."""
    distro = os.environ.get("ROS_DISTRO", "")
    if find_spec("rclpy") is not None:
        return Check("ROS 2", "rclpy", "ok", f"found{f'; ROS_DISTRO={distro}' if distro else ''}")
    remedy = f"{_install('flowrl', 'ros')}, or source /opt/ros/{distro or '<distro>'}/setup.bash"
    return Check("ROS 2", "rclpy", "missing", "not importable", remedy)


def _only_for(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


def _extra(distribution: str, extra: str, wanted: Iterable[Requirement]) -> Check:
    present: list[str] = []
    lacking: list[str] = []
    outdated: list[str] = []
    for requirement in wanted:
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            lacking.append(requirement.name)
            continue
        fits = requirement.specifier.contains(version, prereleases=True)
        wants = "" if fits else f" (expected {requirement.specifier})"
        (present if fits else outdated).append(f"{requirement.name} {version}{wants}")
    if lacking:
        found = f"not installed: {', '.join(lacking)}"
        return Check("extras", extra, "missing", found, _install(distribution, extra))
    if outdated:
        return Check("extras", extra, "warn", ", ".join(outdated), _install(distribution, extra))
    return Check("extras", extra, "ok", ", ".join(present))


def _install(distribution: str, extra: str) -> str:
    return f"pip install '{distribution}[{extra}]'"


def _python(code: str, **environment: str) -> tuple[str, str]:
    """Run code in a child; its output, and in one line what went wrong."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {_PROBE_SECONDS} s"
    if done.returncode == 0:
        return done.stdout, ""
    lines = [line for line in done.stderr.splitlines() if line and not line[0].isspace()]
    errors = [line for line in lines if "Error" in line.split(":")[0]]
    reason = (errors or lines or [f"the probe ended with status {done.returncode}"])[-1 if errors else 0]
    return "", reason[:200]


def _existing(path: Path) -> Path:
    """The nearest directory that exists."""
    resolved = path.resolve()
    return next(each for each in (resolved, *resolved.parents) if each.is_dir())


def _memory() -> tuple[float, float]:
    """Available and total bytes."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    available = page * os.sysconf("SC_AVPHYS_PAGES") if "SC_AVPHYS_PAGES" in os.sysconf_names else total
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        # Free pages leave out the cache that Linux gives back on demand.
        rows = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        available = int(rows["MemAvailable"].split()[0]) * 1024
    control = Path("/sys/fs/cgroup")
    try:
        bound = int((control / "memory.max").read_text())
        in_use = int((control / "memory.current").read_text())
    except (OSError, ValueError):  # not in a container, or one without a limit
        return available, total
    return min(available, bound - in_use), min(total, bound)

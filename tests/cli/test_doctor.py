"""The doctor's checks: what is found, what is missing, and the remedy."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest

from flowrl import doctor


def test_every_check_that_is_not_ok_has_a_remedy(tmp_path: Path) -> None:
    checks = doctor.run_checks(tmp_path / "runs")
    assert {check.name for check in checks} >= {"Python", "torch", "threads", "memory", "disk", "runs"}
    assert {check.name for check in checks} >= {"sim", "ros", "service", "vla", "ray", "s3"}
    assert {check.name for check in checks} >= {"egl", "osmesa", "rclpy"}
    assert [check for check in checks if check.status != "ok" and not check.remedy] == []
    assert not (tmp_path / "runs").exists(), "looking leaves nothing behind"


def test_a_missing_and_an_outdated_package_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"mujoco": "3.0.0"}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    sim = next(check for check in doctor.check_extras() if check.name == "sim")
    assert sim.status == "missing"
    assert "robosuite" in sim.found
    assert sim.remedy == "pip install 'flowrl[sim]'"
    versions.update(dict.fromkeys(("robosuite", "ogbench", "gym-pusht", "gymnasium-robotics"), "99"))
    versions.update(envpool="99", pillow="99")
    sim = next(check for check in doctor.check_extras() if check.name == "sim")
    assert sim.status == "warn"
    assert "mujoco 3.0.0 (expected" in sim.found


def test_a_renderer_that_fails_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_RENDER_PROBE", "raise ImportError('no libEGL')")
    check = doctor.check_renderer("egl")
    assert (check.status, check.found) == ("missing", "ImportError: no libEGL")
    assert "apt install libegl1" in check.remedy


def test_a_probe_that_dies_or_hangs_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_TORCH_PROBE", "import os; os.abort()")
    assert doctor.check_torch().found == "the probe ended with status -6"
    monkeypatch.setattr(doctor, "_PROBE_SECONDS", 0.2)
    monkeypatch.setattr(doctor, "_TORCH_PROBE", "while True: pass")
    check = doctor.check_torch()
    assert (check.status, check.found) == ("missing", "no answer within 0.2 s")


def test_threads_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert doctor.check_threads().remedy.startswith("export OMP_NUM_THREADS=1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert doctor.check_threads().status == "ok"


def test_a_directory_that_refuses_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**keywords: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "NamedTemporaryFile", refuse)
    check = doctor.check_writable(tmp_path / "runs")
    assert (check.status, check.required) == ("missing", True)
    assert str(tmp_path) in check.found
    assert os.fspath(tmp_path) in check.remedy

"""The house's import rules hold: arrows point inward, heavy packages stay in their room, no pickle anywhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("flowrl", "sim", "robot_bridge", "service")
MAX_LINES = 450

NEVER = {
    "flowrl": {"rclpy", "fastapi", "mujoco", "robosuite", "sim", "robot_bridge", "service"},
    "sim": {"fastapi", "robot_bridge", "service"},
    "robot_bridge": {"fastapi", "sim", "service", "torch.optim", "flowrl.learner", "flowrl.algorithms"},
    "service": {"rclpy", "mujoco", "robosuite", "sim", "robot_bridge"},
}
"""What a package must not import anywhere, its composition root aside."""

ROOMS = {
    # Datasets are exported by LeRobot's own writer, so that LeRobot opens them.
    "lerobot": ("flowrl/policies/lerobot", "flowrl/replay/exporters/lerobot.py"),
    "rclpy": ("sim/arm_node", "robot_bridge/ros"),
    "typer": ("flowrl/cli", "service"),
}
"""Packages that only these folders and modules import."""

ROOT_OF_COMPOSITION = "flowrl/cli"
LAZY_THERE = {"sim", "robot_bridge", "service"}
"""What the composition root may import, inside the function that needs it."""

PICKLES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
PICKLING_CALLS = {"torch.load", "torch.save", "numpy.lib.format.read_array", "pandas.read_pickle"}


@dataclass(frozen=True)
class Import:
    """A module that a file imports. ``at_start`` is True when importing the file imports it."""

    module: str
    line: int
    at_start: bool

    def within(self, package: str) -> bool:
        """Whether the module is ``package`` or lies inside it."""
        return self.module == package or self.module.startswith(f"{package}.")


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(tree: ast.AST) -> Iterator[Import]:
    """Every import of a module, those inside functions and type-checking blocks included."""
    yield from _imports(tree, at_start=True)


def _imports(node: ast.AST, at_start: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Import():
                yield from (Import(alias.name, child.lineno, at_start) for alias in child.names)
            case ast.ImportFrom():
                base = "." * child.level + (child.module or "")
                yield from (Import(f"{base}.{alias.name}", child.lineno, at_start) for alias in child.names)
            case ast.Call(
                func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield Import(name, child.lineno, at_start)
            case _:
                pass
        now = at_start and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            now = False
        yield from _imports(child, now)


def import_faults(path: str, source: str) -> list[str]:
    """What a file of this repository, by its path from the root, imports against the rules."""
    package = path.split("/", 1)[0]
    composes = path.startswith(f"{ROOT_OF_COMPOSITION}/")
    faults: list[str] = []
    for found in imports(ast.parse(source)):
        where = f"{path}:{found.line}: {found.module}"
        if found.module.startswith("."):
            faults.append(f"{where} is relative; imports here are absolute")
        for banned in sorted(NEVER[package]):
            if not found.within(banned):
                continue
            if not (composes and banned in LAZY_THERE):
                faults.append(f"{where}: {package}/ never imports {banned}")
            elif found.at_start:
                faults.append(f"{where}: import it inside the command that needs it")
        for guest, rooms in ROOMS.items():
            at_home = path in rooms or path.startswith(tuple(f"{room}/" for room in rooms))
            if found.within(guest) and not at_home:
                faults.append(f"{where}: only {' and '.join(rooms)} import {guest}")
    return faults


def pickle_faults(path: str, source: str) -> list[str]:
    """Every use of pickle in a file: an import, a call that unpickles, or permission to do so."""
    tree = ast.parse(source)
    faults = [
        f"{path}:{found.line}: imports {found.module}"
        for found in imports(tree)
        if found.module.split(".")[0] in PICKLES
    ]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func).replace("np.", "numpy.")
        if name in PICKLING_CALLS:
            faults.append(f"{path}:{node.lineno}: calls {name}")
        for keyword in node.keywords:
            allowed = not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
            if keyword.arg == "allow_pickle" and allowed:
                faults.append(f"{path}:{node.lineno}: allow_pickle={ast.unparse(keyword.value)}")
    return faults


def test_imports_follow_the_rules() -> None:
    faults = [fault for path in sources() for fault in import_faults(relative(path), path.read_text())]
    assert faults == []


def test_nothing_is_pickled() -> None:
    faults = [fault for path in sources() for fault in pickle_faults(relative(path), path.read_text())]
    assert faults == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_what_it_is_for(package: str) -> None:
    folders = {path.parent for path in (ROOT / package).rglob("*.py")}
    silent = [
        relative(folder)
        for folder in sorted(folders)
        if not (folder / "__init__.py").is_file()
        or not ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    ]
    assert silent == []


def test_no_module_is_too_long() -> None:
    lengths = {relative(path): len(path.read_text().splitlines()) for path in sources()}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}


# The rules themselves: each fault is found, and what is allowed is not called one.


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("flowrl/rollout.py", "import mujoco"),
        ("flowrl/rollout.py", "from sim import registry"),
        ("flowrl/rollout.py", "def f():\n    import robosuite.utils"),
        ("flowrl/rollout.py", "from importlib import import_module\nimport_module('mujoco')"),
        ("flowrl/rollout.py", "from . import spec"),
        ("flowrl/rollout.py", "from typer import Option"),
        ("flowrl/policies/mlp.py", "from lerobot.policies import factory"),
        ("flowrl/replay/importers/lerobot.py", "import lerobot"),
        ("flowrl/cli/demo.py", "from sim.registry import make"),
        ("flowrl/cli/demo.py", "def f():\n    import mujoco"),
        ("sim/base.py", "import fastapi"),
        ("sim/base.py", "import rclpy"),
        ("sim/base.py", "from robot_bridge import contract"),
        ("robot_bridge/safety.py", "import rclpy"),
        ("robot_bridge/safety.py", "from torch.optim import Adam"),
        ("service/app.py", "import sim.registry"),
    ],
)
def test_a_broken_rule_is_found(path: str, source: str) -> None:
    assert len(import_faults(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("flowrl/cli/demo.py", "def f():\n    from sim import registry"),
        ("flowrl/cli/demo.py", "if TYPE_CHECKING:\n    from sim.base import SimEnv"),
        ("flowrl/policies/lerobot/load.py", "import lerobot"),
        ("flowrl/replay/exporters/lerobot.py", "def f():\n    from lerobot.datasets import utils"),
        ("flowrl/rollout.py", "import simple_parsing\nimport torch"),
        ("sim/arm_node/node.py", "import rclpy"),
        ("robot_bridge/ros/node.py", "import rclpy"),
        ("sim/worker.py", "from flowrl.spec import Spec\nimport mujoco"),
        ("service/api/app.py", "import fastapi"),
    ],
)
def test_what_the_rules_allow_is_no_fault(path: str, source: str) -> None:
    assert import_faults(path, source) == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import pickle", 1),
        ("def f():\n    from cloudpickle import dumps", 1),
        ("torch.load(path, weights_only=True)", 1),
        ("np.load(path, allow_pickle=True)", 1),
        ("np.load(path, allow_pickle=flag)", 1),
        ("np.load(path, allow_pickle=False)", 0),
        ("safetensors.torch.load(data)", 0),
    ],
)
def test_pickle_is_found(source: str, count: int) -> None:
    assert len(pickle_faults("flowrl/a.py", source)) == count

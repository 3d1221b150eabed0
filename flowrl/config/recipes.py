"""Recipes: YAML files that a name finds and that may extend one another.

A name is looked up in ``configs/`` of the working directory, then among the recipes that come with
flowrl. The first comment line of a recipe is its description. ``extends: NAME`` lays the recipe over
another one, found beside it or by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from flowrl.config import yaml_text
from flowrl.config.merge import Layer, from_layers, parse_override
from flowrl.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parent.parent


def recipe_directories() -> list[Path]:
    """Where names are looked up: ./configs, the source tree's configs, the installed recipes."""
    candidates = [Path("configs"), _PACKAGE.parent / "configs", _PACKAGE / "recipes"]
    return [directory for directory in candidates if directory.is_dir()]


def list_recipes() -> dict[str, Path]:
    """Every recipe that a name finds."""
    found: dict[str, Path] = {}
    for directory in recipe_directories():
        for path in sorted(directory.glob("*.yaml")):
            found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def recipe_description(path: Path) -> str:
    """The first comment line of a recipe, or nothing."""
    first = path.read_text(encoding="utf-8").split("\n", 1)[0]
    return first.lstrip("# ").strip() if first.startswith("#") else ""


def find_recipe(name_or_path: str | Path, beside: Path | None = None) -> Path:
    """The file of a recipe. Raises ConfigError naming the nearest recipe when there is none."""
    text = str(name_or_path)
    if text.endswith((".yaml", ".yml")):
        for path in ([beside / text] if beside else []) + [Path(text)]:
            if path.is_file():
                return path
        raise ConfigError(f"recipe file {text!r} does not exist")
    if beside and (beside / f"{text}.yaml").is_file():
        return beside / f"{text}.yaml"
    known = list_recipes()
    if text in known:
        return known[text]
    near = difflib.get_close_matches(text, known, 1, 0.0)
    hint = f"the nearest is {near[0]!r}; `flowrl show` lists all" if near else "no recipe was found"
    raise ConfigError(f"unknown recipe {text!r}: {hint}")


def load_recipe[C](cls: type[C], name_or_path: str | Path, overrides: Sequence[str] = ()) -> C:
    """Load a recipe by name or path and apply dotted overrides (``algorithm.kl_budget=0.3``).

    Overrides apply from left to right, except that those of a ``kind`` come first.

    Raises:
        ConfigError: no such recipe, no valid YAML, or a key or value that ``cls`` refuses.
    """
    kinds_first = sorted(overrides, key=lambda text: not text.partition("=")[0].strip().endswith(".kind"))
    layers = recipe_layers(find_recipe(name_or_path)) + [parse_override(text) for text in kinds_first]
    return from_layers(cls, layers)


def recipe_layers(path: Path) -> list[Layer]:
    """A recipe's own layer after those of the recipes it extends. Raises ConfigError on a cycle."""
    layers: list[Layer] = []
    visited: list[Path] = []
    following: Path | None = path
    while following is not None:
        path = following
        if path.resolve() in visited:
            chain = " -> ".join(step.name for step in [*visited, path])
            raise ConfigError(f"{path}: recipes extend each other in a circle: {chain}")
        visited.append(path.resolve())
        values = read_mapping(path)
        parent = values.pop("extends", None)
        layers.insert(0, Layer(values, str(path)))
        following = find_recipe(str(parent), path.parent) if parent is not None else None
    return layers


def read_mapping(path: Path) -> dict[str, Any]:
    """A YAML file's mapping. Raises ConfigError when it cannot be read or holds something else."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    values = yaml_text.parse(text, str(path))
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path}: holds {type(values).__name__}; expected a mapping of settings")
    return dict(cast(Mapping[str, Any], values))

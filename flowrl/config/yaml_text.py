"""YAML as a person reads it: 1e-3 is a number, on and no are words, a key stated twice is an error.

PyYAML follows YAML 1.1, where ``1e-3`` is text, ``no`` is false and ``1:30`` is 90. Recipes follow the
scalars of YAML 1.2; underscores in integers (``1_000_000``) stay allowed.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

from flowrl.errors import ConfigError

_SCALARS: list[tuple[str, str, str]] = [
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("null", r"^(?:~|null|Null|NULL|)$", "~nN\0"),
    ("int", r"^[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$", "-+0123456789"),
    (
        "float",
        r"^(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+.0123456789",
    ),
    ("merge", r"^(?:<<)$", "<"),
]


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    table: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for tag, pattern, first in _SCALARS:
        for character in first:
            entry = (f"tag:yaml.org,2002:{tag}", re.compile(pattern))
            table.setdefault("" if character == "\0" else character, []).append(entry)
    return table


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = _resolvers()

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and key.value != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is stated twice", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes what `_Loader` would read as something else."""

    yaml_implicit_resolvers = _resolvers()

    def ignore_aliases(self, data: Any) -> bool:
        return True


def parse(text: str, source: str) -> Any:
    """The value of a YAML text; ``source`` names it in messages.

    Raises:
        ConfigError: the text is no YAML, or states a key twice.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{source}{where}: not valid YAML: {problem}") from None


def scalar(value: Any) -> str:
    """A value as YAML on one line."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=10**9, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...").rstrip()


def dump(value: Any) -> str:
    """A value as block YAML, keys in their own order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)

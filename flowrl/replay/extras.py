"""Packages of optional extras, imported by the function that needs them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from flowrl.errors import MissingExtra


def data_module(name: str) -> Any:
    """A module of pyarrow or PyAV. Raises MissingExtra when its package is not installed."""
    package = name.split(".")[0]
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] == package:
            raise MissingExtra(package, "data") from error
        raise

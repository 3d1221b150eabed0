"""Activation functions by name.

The authors' networks use GELU in its tanh form. On a CPU without a vectorised tanh the exact form costs
a third of it and differs by less than 1e-3, so small machines may prefer it.
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import nn

from flowrl.errors import ConfigError

Activation = Literal["gelu_tanh", "gelu", "relu", "silu"]


def module(name: Activation) -> nn.Module:
    """The activation as a layer. Raises ConfigError for an unknown name."""
    match name:
        case "gelu_tanh":
            return nn.GELU(approximate="tanh")
        case "gelu":
            return nn.GELU()
        case "relu":
            return nn.ReLU()
        case "silu":
            return nn.SiLU()
        case _:
            raise ConfigError(f"activation is {name!r}; expected one of {', '.join(get_args(Activation))}")

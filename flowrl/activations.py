"""Activation functions by name.

The authors' networks use GELU in its tanh form. On a CPU without a vectorised tanh the exact form costs
a third of it and differs by less than 1e-3, so small machines may prefer it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from flowrl.errors import ConfigError

Activation = Literal["gelu_tanh", "gelu", "relu"]


def function(name: Activation) -> Callable[[Tensor], Tensor]:
    """The activation as a function. Raises ConfigError for an unknown name."""
    match name:
        case "gelu_tanh":
            return lambda x: F.gelu(x, approximate="tanh")
        case "gelu":
            return F.gelu
        case "relu":
            return F.relu
        case _:
            raise ConfigError(f"activation is {name!r}; expected one of {', '.join(get_args(Activation))}")


def module(name: Activation) -> nn.Module:
    """The activation as a layer. Raises ConfigError for an unknown name."""
    match name:
        case "gelu_tanh":
            return nn.GELU(approximate="tanh")
        case "gelu":
            return nn.GELU()
        case "relu":
            return nn.ReLU()
        case _:
            raise ConfigError(f"activation is {name!r}; expected one of {', '.join(get_args(Activation))}")

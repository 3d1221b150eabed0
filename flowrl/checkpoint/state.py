"""A nested state as JSON plus named tensors, and back, bit for bit.

What may be stored, and what comes back:

- ``torch.Tensor`` of any dtype safetensors knows, 0-dimensional and empty ones too: dense, on CPU,
  without gradient. Tensors that share memory come back separate.
- ``numpy.ndarray`` of a dtype torch knows: an array again.
- ``None``, ``bool``, ``int`` of any size, ``float`` (NaN and infinities too), ``str``.
- ``list``, ``tuple``, and ``dict`` with ``str`` or ``int`` keys, in their order.

Subclasses come back as the plain type: a named tuple as a tuple, an ordered dictionary as a dictionary.

In JSON a dictionary whose keys are plain text is an object; everything JSON lacks is an object with
one key that starts with ``$``: ``$tensor`` and ``$array`` (a name in the tensor file), ``$tuple``,
``$float`` (``nan``, ``inf``, ``-inf``), ``$items`` (pairs, for dictionaries with other keys).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from flowrl.errors import CheckpointError

State = dict[str, Any]

_DTYPES = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.uint16, torch.uint32, torch.uint64, torch.complex64}
    | {torch.float16, torch.bfloat16, torch.float32, torch.float64}
    | {torch.float8_e4m3fn, torch.float8_e5m2}
)


def encode(state: Mapping[str, Any]) -> tuple[Any, dict[str, Tensor]]:
    """A state as a JSON value and its tensors by name.

    Raises:
        CheckpointError: a value cannot be stored; its path in the state is named.
    """
    encoder = _Encoder()
    return encoder.value(state, ()), encoder.tensors


def decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `encode` was given. Raises KeyError when a tensor is missing."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    tree = cast(dict[str, Any], value)
    if len(tree) == 1:
        tag, inner = next(iter(tree.items()))
        match tag:
            case "$tensor":
                return tensors[inner]
            case "$array":
                return tensors[inner].numpy().copy()
            case "$float":
                return float(inner)
            case "$tuple":
                return tuple(decode(item, tensors) for item in inner)
            case "$items":
                return {key: decode(item, tensors) for key, item in inner}
            case _:
                pass
    return {key: decode(item, tensors) for key, item in tree.items()}


class _Encoder:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._storages: set[int] = set()

    def value(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, Tensor):
            return {"$tensor": self._add(value, path)}
        if isinstance(value, np.ndarray):
            return {"$array": self._add(self._from_numpy(value, path), path)}
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
        if isinstance(value, (list, tuple)):
            items = cast(list[Any] | tuple[Any, ...], value)
            encoded = [self.value(item, (*path, str(index))) for index, item in enumerate(items)]
            return {"$tuple": encoded} if isinstance(value, tuple) else encoded
        if isinstance(value, Mapping):
            return self._mapping(cast(Mapping[Any, Any], value), path)
        raise _refuse(path, f"a {type(value).__module__}.{type(value).__qualname__}", _remedy(value))

    def _mapping(self, value: Mapping[Any, Any], path: tuple[str, ...]) -> Any:
        for key in value:
            if type(key) not in (str, int):
                raise _refuse(path, f"the key {key!r} of type {type(key).__name__}", "use str or int keys")
        pairs = [[key, self.value(item, (*path, str(key)))] for key, item in value.items()]
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return dict(cast(list[tuple[str, Any]], pairs))
        return {"$items": pairs}

    def _add(self, tensor: Tensor, path: tuple[str, ...]) -> str:
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.dtype not in _DTYPES:
            what = f"a {tensor.dtype} tensor of layout {tensor.layout} on {tensor.device}"
            raise _refuse(path, what, "store a dense tensor of a common dtype")
        name = base = "/".join(path) or "root"
        count = 1
        while name in self.tensors or name == "__metadata__":  # reserved by the format
            count += 1
            name = f"{base}#{count}"
        self.tensors[name] = self._own(tensor)
        return name

    def _own(self, tensor: Tensor) -> Tensor:
        """On CPU, contiguous, and sharing memory with no tensor stored before (the format forbids it)."""
        dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        storage = dense.untyped_storage()
        whole = storage.nbytes() == dense.numel() * dense.element_size()
        if not whole or storage.data_ptr() in self._storages:
            dense = dense.clone()
            storage = dense.untyped_storage()
        if storage.nbytes():
            self._storages.add(storage.data_ptr())
        return dense

    @staticmethod
    def _from_numpy(array: np.ndarray[Any, Any], path: tuple[str, ...]) -> Tensor:
        try:
            return torch.from_numpy(np.array(array, order="C"))
        except (TypeError, ValueError):
            raise _refuse(path, f"a numpy array of {array.dtype}", "store numbers or text") from None


def _refuse(path: tuple[str, ...], what: str, remedy: str) -> CheckpointError:
    return CheckpointError(f"state {'.'.join(path) or '(root)'}: {what} cannot be stored; {remedy}")


def _remedy(value: object) -> str:
    if isinstance(value, np.generic):
        return "convert it with .item()"
    if isinstance(value, torch.Generator):
        return "store its get_state()"
    if isinstance(value, torch.nn.Module | torch.optim.Optimizer):
        return "store its state_dict()"
    return "store tensors, numbers, text, lists and dictionaries"

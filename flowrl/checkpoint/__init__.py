"""Seam 5, weights: state on disk that survives a kill at any instant, and versions that actors pull.

A checkpoint is a directory::

    state.json          the nested state; each tensor is a reference into the next file
    state.safetensors   the tensors
    policy/ ...         whatever else the caller writes, for example a policy directory
    manifest.json       size and sha256 of every file, written last

It is written beside its place under a name that starts with a dot, fsynced file by file, renamed, and
only then named by the pointer file ``latest``. So a reader sees the former checkpoint or the new one,
complete, never half of one. Nothing here can hold or run code: tensors are safetensors, the rest JSON.

`CheckpointStore` keeps the checkpoints of a run; `WeightsStore` publishes versions to actors, without
fsync, because a version lost to a power cut is published again. Both have one writer.
"""

from flowrl.checkpoint.directory import load, read_manifest, save, verify
from flowrl.checkpoint.disk import Disk
from flowrl.checkpoint.state import State, decode, encode
from flowrl.checkpoint.store import CheckpointStore, Loaded
from flowrl.checkpoint.weights import WeightsStore

__all__ = [
    "CheckpointStore",
    "Disk",
    "Loaded",
    "State",
    "WeightsStore",
    "decode",
    "encode",
    "load",
    "read_manifest",
    "save",
    "verify",
]

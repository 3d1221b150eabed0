"""``flowrl import`` of a replay buffer of diffusion_policy, by itself or for an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowrl.errors import UsageError

if TYPE_CHECKING:
    from flowrl.cli.import_sources import ImportJob
    from flowrl.replay.importers.diffusion_policy import BufferOptions
    from flowrl.replay.importers.report import ImportReport
    from flowrl.replay.importers.target import Target


def run(job: ImportJob, options: BufferOptions) -> ImportReport:
    """Import a buffer; with an environment in the job, for its interface."""
    from flowrl.replay.importers.diffusion_policy import import_diffusion_policy
    from flowrl.replay.importers.replay_buffer import ReplayBuffer

    if job.settings and job.env is None:
        raise UsageError("--set is a setting of the environment; name one with --env")
    with ReplayBuffer(job.path) as buffer:
        count = len(buffer.names)
    target = None if job.env is None else _target(job.env, job.settings)
    job.start(count, options.limit)
    return import_diffusion_policy(job.path, job.to, job.stream, target, options, job.done)


def parse_features(features: Sequence[str]) -> dict[str, str]:
    """``KEY=NAME`` options. Raises UsageError for another form or a key given twice."""
    found: dict[str, str] = {}
    for text in features:
        key, equals, name = text.partition("=")
        if not (key and equals and name):
            raise UsageError(
                f"--feature {text!r}: expected KEY=NAME, for example img=observation.images.camera"
            )
        if key in found:
            raise UsageError(f"--feature {text!r}: array {key!r} is named twice")
        found[key] = name
    return found


def _target(name: str, settings: Mapping[str, Any]) -> Target:
    from flowrl.replay.importers.target import Target
    from sim import registry

    env = registry.make(name, **settings)
    try:
        return Target(name, env.interface)
    finally:
        env.close()

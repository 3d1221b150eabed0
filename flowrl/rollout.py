"""One loop that joins an environment and a policy, and writes what happened into a stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from flowrl.acting import Actor
from flowrl.environment import Environment
from flowrl.policies.observation import stack
from flowrl.replay.schema import NO_VERSION, Outcome, OutcomeBy, Step
from flowrl.replay.writer import StreamWriter
from flowrl.seeds import policy_noise
from flowrl.spec import require_match


@dataclass(frozen=True)
class Episode:
    """How one episode went. ``finished`` is False when it was stopped from outside."""

    seed: int
    success: bool
    length: int
    finished: bool = True


class ActorSource(Protocol):
    """Where a rollout gets the actor for its next chunk, so that weights can change while it runs."""

    def current(self) -> tuple[Actor, int]:
        """The actor and the version of its weights."""
        ...


@dataclass(frozen=True)
class FixedActor:
    """An actor that never changes."""

    actor: Actor
    version: int = NO_VERSION

    def current(self) -> tuple[Actor, int]:
        """The actor and its version."""
        return self.actor, self.version


def rollout(
    env: Environment,
    actors: ActorSource,
    *,
    seed: int,
    writer: StreamWriter | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Episode:
    """Run one episode: observe, act a chunk, execute it open loop, repeat.

    The policy's noise is fixed by ``seed``, too. Every executed step is appended to ``writer``. ``stop`` is
    asked between chunks; a stopped episode is closed as interrupted.
    """
    generator = torch.Generator().manual_seed(policy_noise(seed))
    observation, _ = env.reset(seed=seed)
    if writer is not None:
        writer.begin_episode(seed=seed, task=env.name)
    length, success, failed, ended = 0, False, False, False
    while not ended and not stop():
        actor, version = actors.current()
        chunk = actor.act(stack(env.interface, [observation]), generator)[0].cpu().numpy()
        for action in chunk[: actor.policy.chunk.executed]:
            before = observation
            observation, reward, terminated, truncated, info = env.step(action)
            success, ended = bool(info["success"]), terminated or truncated
            failed = terminated and not success
            if writer is not None:
                stamp = round(length / env.interface.control_hz * 1e9)
                writer.append(
                    Step(
                        before,
                        action,
                        float(reward),
                        terminated,
                        truncated,
                        stamp_ns=stamp,
                        policy_version=version,
                    )
                )
            length += 1
            if ended:
                break
    if writer is not None:
        outcome = _outcome(success, failed, ended)
        writer.close_episode(outcome, OutcomeBy.ENVIRONMENT if ended else OutcomeBy.NONE, observation)
    return Episode(seed, success, length, ended)


def require_environment(actor: Actor, env: Environment) -> None:
    """Raise SpecMismatch, naming every difference, when a policy and an environment do not fit."""
    require_match(actor.policy.spec.interface(), env.interface, "policy", f"environment {env.name!r}")


def _outcome(success: bool, failed: bool, ended: bool) -> Outcome:
    if not ended:
        return Outcome.INTERRUPTED
    if success:
        return Outcome.SUCCESS
    return Outcome.FAILURE if failed else Outcome.TIMEOUT

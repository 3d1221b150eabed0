"""One loop that joins an environment and a policy, and writes what happened into a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from numpy.typing import NDArray

from flowrl.acting import Actor
from flowrl.environment import Environment
from flowrl.policies.observation import History
from flowrl.replay.schema import NO_INTERVENTION, NO_VERSION, Outcome, OutcomeBy, Source, Step
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


class Supervisor(Protocol):
    """Whoever watches an episode and may act in the policy's place, as a person at a real arm does."""

    def act(self, observation: Mapping[str, NDArray[Any]], step: int) -> NDArray[Any] | None:
        """The action (A,) to execute instead of the policy's, or None to let the policy act.

        Asked before every step; ``step`` counts from 0 and tells where an episode begins.
        """
        ...


def rollout(
    env: Environment,
    actors: ActorSource,
    *,
    seed: int,
    writer: StreamWriter | None = None,
    stop: Callable[[], bool] = lambda: False,
    supervisor: Supervisor | None = None,
) -> Episode:
    """Run one episode: observe, act a chunk, execute it open loop, repeat.

    The policy's noise is fixed by ``seed``, too. Every executed step is appended to ``writer``. ``stop`` is
    asked between chunks; a stopped episode is closed as interrupted. What a ``supervisor`` executes is
    recorded as a human's intervention, beside what the policy proposed.
    """
    generator = torch.Generator().manual_seed(policy_noise(seed))
    observation, _ = env.reset(seed=seed)
    recorder = _Recorder(writer, env, seed)
    history = History(env.interface, actors.current()[0].policy.chunk.past)
    history.add(observation)
    length, success, failed, ended = 0, False, False, False
    while not ended and not stop():
        actor, version = actors.current()
        chunk = actor.act(history.observed(env.instruction), generator)[0].cpu().numpy()
        for proposed in chunk[: actor.policy.chunk.executed]:
            before = observation
            taken = None if supervisor is None else supervisor.act(observation, length)
            observation, reward, terminated, truncated, info = env.step(proposed if taken is None else taken)
            history.add(observation)
            success, ended = bool(info["success"]), terminated or truncated
            failed = terminated and not success
            recorder.step(before, proposed, taken, float(reward), terminated, truncated, version)
            length += 1
            if ended:
                break
    recorder.close(_outcome(success, failed, ended), observation)
    return Episode(seed, success, length, ended)


class _Recorder:
    """Writes the steps of one episode, numbering the supervisor's takeovers; does nothing without a writer."""

    def __init__(self, writer: StreamWriter | None, env: Environment, seed: int) -> None:
        self._writer, self._hz = writer, env.interface.control_hz
        self._length, self._takeovers, self._supervised = 0, 0, False
        if writer is not None:
            writer.begin_episode(seed=seed, task=env.instruction)

    def step(
        self,
        observation: Mapping[str, NDArray[Any]],
        proposed: NDArray[Any],
        taken: NDArray[Any] | None,
        reward: float,
        terminated: bool,
        truncated: bool,
        version: int,
    ) -> None:
        """Append one step: ``proposed`` by the policy, ``taken`` by the supervisor instead, if any."""
        if taken is not None and not self._supervised:
            self._takeovers += 1
        self._supervised = taken is not None
        if self._writer is not None:
            self._writer.append(
                Step(
                    observation,
                    proposed if taken is None else taken,
                    reward,
                    terminated,
                    truncated,
                    policy_action=proposed,
                    source=Source.POLICY if taken is None else Source.HUMAN,
                    intervention_id=NO_INTERVENTION if taken is None else self._takeovers - 1,
                    stamp_ns=round(self._length / self._hz * 1e9),
                    policy_version=version,
                )
            )
        self._length += 1

    def close(self, outcome: Outcome, final: Mapping[str, NDArray[Any]]) -> None:
        """Close the episode with its last observation."""
        if self._writer is not None:
            interrupted = outcome is Outcome.INTERRUPTED
            self._writer.close_episode(
                outcome, OutcomeBy.NONE if interrupted else OutcomeBy.ENVIRONMENT, final
            )


def require_environment(actor: Actor, env: Environment) -> None:
    """Raise SpecMismatch, naming every difference, when a policy and an environment do not fit."""
    require_match(actor.policy.spec.interface(), env.interface, "policy", f"environment {env.name!r}")


def _outcome(success: bool, failed: bool, ended: bool) -> Outcome:
    if not ended:
        return Outcome.INTERRUPTED
    if success:
        return Outcome.SUCCESS
    return Outcome.FAILURE if failed else Outcome.TIMEOUT

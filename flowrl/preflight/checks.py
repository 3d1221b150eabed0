"""All checks on whatever is given: a policy, a replay, an environment, the contract of a robot."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from flowrl.errors import FlowRLError, SpecMismatch
from flowrl.policies.interface import ChunkPolicy
from flowrl.preflight.cameras import check_cameras, look
from flowrl.preflight.content import check_content
from flowrl.preflight.findings import Checked, Dimension, Finding
from flowrl.preflight.interfaces import Side, check_interfaces, fit_together
from flowrl.preflight.motion import check_motion
from flowrl.preflight.normalisation import check_parity, check_statistics
from flowrl.preflight.rotations import check_rotations
from flowrl.preflight.rows import BEFORE_A_RUN, Limits, Rows
from flowrl.preflight.timing import check_horizon, check_timing
from flowrl.preflight.values import check_values
from flowrl.replay.chunks import EndRule
from flowrl.replay.reader import ReplayReader
from flowrl.spec import Spec

MIN_FREE_BYTES = 500_000_000


def check(
    policy: ChunkPolicy | None = None,
    reader: ReplayReader | None = None,
    environment: Spec | None = None,
    directory: Path | None = None,
    *,
    interface: Spec | None = None,
    other: ReplayReader | None = None,
    end_rule: EndRule = "strict",
    limits: Limits | None = None,
) -> Checked:
    """Compare whatever is given, by name. Anything may be left out.

    Args:
        policy: what is to be trained or served.
        reader: its data.
        environment: the interface of a simulated environment.
        directory: where a run would write: its free space is looked at.
        interface: any other side, for example what a robot's contract states.
        other: a second replay, whose spec and cameras are compared with the first's.
        end_rule: how chunks would be cut, see `flowrl.replay.chunks.ChunkRule`.
        limits: how much of a replay is looked at.
    """
    limits = limits or Limits()
    sides = _sides(policy, reader, other, environment, interface)
    findings, dimensions, looked_at = list(check_interfaces(sides)), list[Dimension](), (0, 0)
    if reader is not None and reader.episodes == 0:
        message = "holds no closed episode; collect or import some first"
        findings.append(Finding("error", "content", "replay", message))
    elif reader is not None:
        rows = Rows(reader, limits)
        findings += check_content(reader)
        if len(rows.index):
            fits = policy is not None and fit_together(policy.spec, reader.spec)
            found, dimensions = _replay(rows, policy if fits else None, other, end_rule)
            findings += found
            looked_at = len(rows.index), reader.rows
    if directory is not None:
        findings.append(_disk(directory))
    return Checked([name for name, _ in sides], findings, dimensions, looked_at)


def preflight(
    policy: ChunkPolicy, reader: ReplayReader, directory: Path, end_rule: EndRule = "strict"
) -> list[Finding]:
    """The checks before a run, on few rows, returned for the log.

    Raises SpecMismatch or FlowRLError when one of them is an error.
    """
    found = check(policy, reader, directory=directory, end_rule=end_rule, limits=BEFORE_A_RUN)
    errors = found.at("error")
    if errors:
        lines = "\n".join(f"  {finding.name}: {finding.message}" for finding in errors)
        kind = SpecMismatch if any(finding.subject == "interfaces" for finding in errors) else FlowRLError
        raise kind(f"preflight refused the run:\n{lines}")
    return list(found.findings)


def _sides(
    policy: ChunkPolicy | None,
    reader: ReplayReader | None,
    other: ReplayReader | None,
    environment: Spec | None,
    interface: Spec | None,
) -> Sequence[Side]:
    """What is given, in the order in which neighbours are compared."""
    every = [
        ("policy", None if policy is None else policy.spec),
        ("replay", None if reader is None else reader.spec),
        ("other replay", None if other is None else other.spec),
        ("environment", environment),
        ("interface", interface),
    ]
    return [(name, spec) for name, spec in every if spec is not None]


def _replay(
    rows: Rows, policy: ChunkPolicy | None, other: ReplayReader | None, end_rule: EndRule
) -> tuple[list[Finding], list[Dimension]]:
    """The checks of a replay's rows, and those with a policy whose spec has the same dimensions."""
    normalisation = None if policy is None else policy.spec.normalisation
    found, dimensions = check_values(rows, normalisation)
    findings = list(check_timing(rows))
    if policy is not None:
        findings += check_horizon(rows.reader, policy.chunk, end_rule)
    findings += found
    if not dimensions:
        # Values that are not finite would spread into every other number.
        return findings, dimensions
    views = look(rows)
    if other is not None and other.episodes:
        views += look(Rows(other, rows.limits), f"{other.path.name}/")
    findings += [*check_cameras(views), *check_motion(rows), *check_rotations(rows)]
    if policy is not None and normalisation is not None:
        findings.append(check_statistics(rows, normalisation))
        findings += check_parity(policy, rows)
    return findings, dimensions


def _disk(directory: Path) -> Finding:
    free = shutil.disk_usage(directory).free
    if free < MIN_FREE_BYTES:
        message = (
            f"{free / 1e6:.0f} MB free in {directory}, at least {MIN_FREE_BYTES / 1e6:.0f} MB are needed; "
            "free some, or run elsewhere"
        )
        return Finding("error", "machine", "disk", message, {"free_bytes": free})
    return Finding("ok", "machine", "disk", f"{free / 1e9:.1f} GB free", {"free_bytes": free})

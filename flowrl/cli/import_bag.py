"""``flowrl import`` of a ROS 2 bag, by a contract."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flowrl.errors import UsageError

if TYPE_CHECKING:
    from flowrl.cli.import_sources import ImportJob
    from flowrl.replay.importers.report import ImportReport
    from flowrl.replay.schema import Source


def run(
    job: ImportJob,
    contract: Path | None,
    *,
    actions: Literal["refuse", "clip", "rescale"],
    source: Source | None,
    limit: int | None,
    replace: bool,
    allow_duplicate: bool,
) -> ImportReport:
    """Import a bag. Raises UsageError without a contract, or for a rule that targets cannot follow."""
    from robot_bridge.bags.importer import BagOptions, import_bag
    from robot_bridge.contract import load_contract

    if contract is None:
        raise UsageError(
            f"{job.path.name} is a ROS 2 bag: say what its topics mean with --contract FILE. Examples are "
            "configs/robots/franka.yaml, ur.yaml and so101.yaml; docs/contract.md explains every key"
        )
    if actions == "rescale":
        raise UsageError(
            "--actions rescale does not apply to a ROS 2 bag: its actions are targets, and a scaled target is another "
            "place. Use --actions clip"
        )
    options = BagOptions(
        actions=actions,
        source=source,
        limit=limit,
        replace=replace,
        allow_duplicate=allow_duplicate,
    )

    def on_bytes(done: int, total: int) -> None:
        if done == 0:
            job.progress.phase(f"importing {job.path.name}", total)
        job.progress.advance(done, f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB")

    loaded = load_contract(contract)
    job.progress.phase(f"reading {job.path.name}")
    return import_bag(job.path, job.to, job.stream, loaded, options, job.tell, on_bytes)

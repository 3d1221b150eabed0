"""``flowrl demo``: the whole job in a few minutes, on a laptop's two cores."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowrl.cli.common import Overrides, RunsOption, load_config, one_thread

if TYPE_CHECKING:
    from flowrl.learner.config import RunConfig
    from flowrl.learner.loop import Result
    from flowrl.learner.progress import Progress
    from flowrl.learner.run import Run


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(demo)


def demo(
    overrides: Overrides = None,
    recipe: Annotated[str, typer.Option(help="The recipe to run.")] = "demo",
    seeds: Annotated[int, typer.Option(help="Repeat with this many seeds and report the mean.", min=1)] = 1,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also run the controls that show where the gain comes from.")
    ] = False,
    to_json: Annotated[Path | None, typer.Option("--json", help="Write the result here, too.")] = None,
    runs: RunsOption = Path("runs"),
) -> None:
    """Ten minutes to believe it: clone 5 demonstrations, then improve the policy from its own experience.

    A Panda arm in robosuite learns to lift a cube. Everything happens in one [bold]run[/bold] directory
    per seed: demonstrations, base policy, replay, checkpoints, metrics, tuned policy, report.
    """
    from flowrl.cli.progress import make_progress
    from flowrl.report import write_report, write_summary

    config = load_config(recipe, overrides)
    started = time.monotonic()
    results: list[Result] = []
    with one_thread(), make_progress() as progress:
        for index in range(seeds):
            if seeds > 1:
                progress.say(f"seed {config.seed + index} ({index + 1} of {seeds})")
            results.append(run_seed(with_seed(config, index), runs, progress, explain))
            strips = filmstrips(results[-1], progress)
            write_report(results[-1].run, strips)
        summary = summarise(results, time.monotonic() - started)
        last = results[-1].run
        last.write_json("demo.json", summary)
        report = last.report
        if seeds > 1:
            report = write_summary([result.run for result in results], runs / f"{last.name}-summary.html")
        if to_json is not None:
            to_json.write_text(json.dumps(summary, indent=2) + "\n")
        for line in closing_lines(summary, report, last):
            progress.say(line)


def with_seed(config: RunConfig, index: int) -> RunConfig:
    """The configuration of the index-th seed: another base and another training, the same everything else."""
    pretrain = replace(config.pretrain, seed=config.pretrain.seed + index)
    return replace(config, seed=config.seed + index, pretrain=pretrain)


def run_seed(config: RunConfig, root: Path, progress: Progress, explain: bool) -> Result:
    """Demonstrations, cloning and fine-tuning in a fresh run directory."""
    from flowrl.cli.simulation import collect_corrections, collect_demonstrations, simulation
    from flowrl.learner.loop import finetune
    from flowrl.learner.pretraining import clone
    from flowrl.learner.run import Run

    run = Run.create(config, root)
    collect_demonstrations(config, run.replay, progress)
    progress.phase("cloning", config.pretrain.steps)
    clone(
        config,
        run.replay,
        run.base,
        progress=lambda step, metrics: progress.advance(step, f"loss {metrics['pretrain/loss']:.4f}"),
    )
    if config.demonstrations.corrections:
        collect_corrections(config, run.replay, run.base, progress)
    result = finetune(run, config, simulation(config), progress)
    if explain:
        run_controls(result, config, progress)
    return result


def run_controls(result: Result, config: RunConfig, progress: Progress) -> None:
    """Run the controls that say where the gain comes from and store them beside the result."""
    run = result.run
    controls = {"success-only cloning": _cloning_control(result, config, progress)}
    if (answer := _acting_control(run, config, progress)) is not None:
        controls = {"best-of-N on the base": answer, **controls}
    run.write_json("result.json", {**run.read_json("result.json"), "controls": controls})


def _acting_control(run: Run, config: RunConfig, progress: Progress) -> dict[str, Any] | None:
    from flowrl import seeds
    from flowrl.algorithms.factory import make_algorithm
    from flowrl.cli.simulation import evaluate_in_processes
    from flowrl.learner.base_policy import load_base

    base = load_base(run.base, config)
    trained = make_algorithm(config.algorithm, base, config.seed)
    loaded = run.checkpoints.load_latest()
    assert loaded is not None
    trained.load_state_dict(loaded.state["algorithm"])
    actor = trained.actor("collect").with_policy(base)
    if actor.plain:
        return None
    starts = seeds.reported(config.evaluation.episodes, config.evaluation.offset)
    progress.say("control: the base policy, choosing among samples by the trained critic")
    answer = evaluate_in_processes(config, actor, starts, config.evaluation.workers, progress)
    return {
        "meaning": f"the base policy, unchanged, acting by the best of {actor.candidates} samples",
        "evaluation": answer.to_json(),
    }


def _cloning_control(result: Result, config: RunConfig, progress: Progress) -> dict[str, Any]:
    from flowrl.algorithms.imitation import ImitationConfig
    from flowrl.cli.simulation import DEMONSTRATIONS, simulation
    from flowrl.learner.loop import create_run, finetune

    run = result.run
    control = replace(
        config,
        name=f"{config.name}-control",
        algorithm=ImitationConfig(),
        warm_up=replace(config.warm_up, updates=0),
        budget=replace(config.budget, env_steps=result.steps, updates=None, wall_s=None),
    )
    progress.say("control: clone demonstrations and own successes, no critic, as many environment steps")
    other = create_run(control, run.directory.parent, run.base, [run.replay / DEMONSTRATIONS])
    answer = finetune(other, control, simulation(control), progress)
    return {
        "meaning": "flow matching on demonstrations and own successes, without any critic",
        "evaluation": answer.tuned.to_json(),
    }


def summarise(results: list[Result], wall_s: float) -> dict[str, Any]:
    """The result as one JSON object; rates are means over seeds."""
    from flowrl.statistics import bootstrap_interval

    base = [result.base.success_rate for result in results]
    tuned = [result.tuned.success_rate for result in results]
    configs = [result.run.config() for result in results]
    return {
        "base_success": sum(base) / len(base),
        "tuned_success": sum(tuned) / len(tuned),
        "tuned_interval_over_seeds": list(bootstrap_interval(tuned)) if len(tuned) > 1 else None,
        "seeds": [config.seed for config in configs],
        "base_seeds": [config.pretrain.seed for config in configs],
        "base_success_by_seed": base,
        "tuned_success_by_seed": tuned,
        "episodes": len(results[0].tuned.episodes),
        "acting_rule": results[0].tuned.rule,
        "env_steps": [result.steps for result in results],
        "updates": [result.updates for result in results],
        "wall_s": round(wall_s, 1),
        "runs": [str(result.run.directory) for result in results],
    }


def filmstrips(result: Result, progress: Progress) -> list[Any]:
    """One failing and one succeeding episode as pictures; none, with the reason said, without a renderer."""
    from flowrl.cli.simulation import record_strips
    from flowrl.errors import FlowRLError

    try:
        return record_strips(result)
    except FlowRLError as error:
        progress.say(f"no filmstrips: {error}")
        return []


def closing_lines(summary: dict[str, Any], report: Path, last: Run) -> list[str]:
    """What a newcomer reads last: the numbers, the report, what to type next."""
    seeds = f", mean of {len(summary['seeds'])} seeds" if len(summary["seeds"]) > 1 else ""
    return [
        f"base  {summary['base_success']:.0%}  ->  tuned  {summary['tuned_success']:.0%}"
        f"   ({summary['episodes']} episodes each{seeds}, {summary['wall_s']:.0f} s in all)",
        f"acting rule, before and after: {summary['acting_rule']}",
        f"report: {report}",
        f"next: flowrl evaluate {last.directory} --offset 1000     # the same policy from unseen starts",
        "      flowrl show demo                                   # every setting and its meaning",
    ]

"""What a report says in words: the verdict, what is not verified, and signs of trouble in the metrics."""

from __future__ import annotations

from flowrl.algorithms.sqam import SQAMConfig
from flowrl.evaluation import Evaluation
from flowrl.learner.config import AsynchronousConfig
from flowrl.report.comparison import Paired, clearly_better, overlap
from flowrl.report.data import Findings

_ALGORITHMS = {
    "imitation": "self-imitation",
    **{
        kind: kind.upper()
        for kind in ("sqam", "qam", "trqam", "qf3", "ogpo", "aloe", "qc", "fql", "dsrl", "expo", "rlpd")
    },
}


def algorithm_name(found: Findings) -> str:
    """The algorithm as people write it."""
    kind = found.config.algorithm.kind
    return _ALGORITHMS.get(kind, kind)


def percent(rate: float) -> str:
    """A rate with a decimal only where it has one: 46%, 46.7%."""
    return f"{100 * rate:.1f}".removesuffix(".0") + "%"


def interval(evaluation: Evaluation) -> str:
    """The 95 % interval of a success rate."""
    low, high = evaluation.interval
    return f"{low:.0%} to {high:.0%}"


def probability(p: float) -> str:
    """A probability of a test, as exact as is useful."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def verdict(found: Findings) -> str:
    """The result in one sentence."""
    base, tuned = found.base, found.tuned
    if base is None:
        return "The run ended before the base policy was evaluated: there is no result yet."
    if tuned is None:
        return "The run ended before the tuned policy was evaluated: only the base's result is known."
    if clearly_better(base, tuned):
        return "The tuned policy is clearly better than the base it started from."
    if clearly_better(tuned, base):
        return "The tuned policy is clearly worse than the base it started from."
    return "These episodes do not show a difference between the tuned policy and its base."


def paired_sentence(paired: Paired) -> str:
    """The outcomes that changed and what the test says of them."""
    changed = paired.fixed + paired.broken
    if not changed:
        return f"Of {len(paired.pairs)} common starts none changed its outcome."
    return (
        f"Of {len(paired.pairs)} common starts, {paired.fixed} turned from failure to success and "
        f"{paired.broken} back. Exact McNemar test of “neither policy is better”: {probability(paired.p_value)}."
    )


def caveats(found: Findings) -> list[str]:
    """What this run does not show."""
    config, notes = found.config, list[str]()
    if found.result.get("weights_changed") is False:
        notes.append("The weights of the tuned policy equal the base's: nothing was learned in this run.")
    notes.append(
        f"One training seed ({config.seed}). Runs that differ only in the seed end apart: repeat with others "
        "before comparing methods."
    )
    notes.extend(_evaluation_caveats(found))
    decimation = found.environment.get("control_decimation")
    if isinstance(decimation, int) and decimation > 1:
        notes.append(
            f"Control decimation {decimation} changes the simulator's dynamics: these success rates do not "
            "compare with published ones."
        )
    if "simulator" in found.environment:
        notes.append("Simulation only: nothing in this report was measured on a robot.")
    if isinstance(config.driver, AsynchronousConfig):
        notes.append(
            "Collection and training ran side by side, so the learned weights depend on this machine's speed "
            "and do not repeat bit for bit; evaluations repeat."
        )
    return notes


def _evaluation_caveats(found: Findings) -> list[str]:
    base, tuned, notes = found.base, found.tuned, list[str]()
    if base is None:
        return notes
    count = len(base.episodes)
    if count:
        notes.append(
            f"{count} episodes per number: one episode is {100 / count:.1f} points. The starts are used for "
            "nothing else in this run; if a recipe was tuned on them, its result is slightly optimistic. "
            "evaluation.offset chooses others."
        )
    if tuned is None:
        return notes
    if base.rule != tuned.rule:
        notes.append(f"The acting rules differ: the base by {base.rule}, the tuned policy by {tuned.rule}.")
    if overlap(base, tuned):
        notes.append("The 95% intervals of base and tuned policy overlap; the paired test above is sharper.")
    if not found.controls:
        notes.append(
            "No control was run: which part of a gain an acting rule or cloning successes would bring is open."
        )
    if unfinished := sum(not e.finished for e in (*base.episodes, *tuned.episodes)):
        notes.append(f"{unfinished} evaluated episodes were stopped from outside and count as failures.")
    notes.append("The final weights were evaluated, not the best checkpoint.")
    return notes


def signs(found: Findings) -> list[str]:
    """Signs of trouble that the metrics show, by the failure signatures that SQAM has."""
    algorithm = found.config.algorithm
    if not isinstance(algorithm, SQAMConfig) or not found.trained:
        return []
    notes: list[str] = []
    dual = found.curve("dual/lambda").y
    late = dual[len(dual) // 2 :]
    for name, limit in (("lowest", algorithm.dual_low), ("highest", algorithm.dual_high)):
        if len(late) > 1 and (abs(late - limit) <= 1e-9 * max(1.0, limit)).mean() > 0.5:
            notes.append(
                f"The dual variable was pinned at its {name} allowed value {limit:g} for most of the second half."
            )
    kl = found.last("dual/path_kl_average")
    if kl is not None and kl > 1.5 * algorithm.kl_budget:
        notes.append(f"The path KL ended at {kl:.3g}, above its budget of {algorithm.kl_budget:g}.")
    gap, spread = found.last("critic/value_gap"), found.last("critic/head_std")
    if gap is not None and spread is not None and gap > 5 * spread:
        notes.append(
            f"The critic ended {gap:.2g} higher at the policy's actions than at replayed ones, more than five "
            "times the spread of its heads: it may over-estimate. A larger value penalty holds it down."
        )
    return notes

"""What a comparison says in words: verdicts that claim no more than the numbers, and what is open."""

from __future__ import annotations

from flowrl.comparison.findings import Comparison, Summary
from flowrl.comparison.statistics import Difference

NOT_TOLD_APART = "not told apart"
FEW_SEEDS = 5


def percent(rate: float) -> str:
    """A rate without decimals."""
    return f"{100 * rate:.0f} %"


def span(low: float, high: float) -> str:
    """An interval of rates."""
    return f"{100 * low:.0f} to {100 * high:.0f} %"


def points(difference: Difference) -> str:
    """A difference in points of percent with its interval."""
    return (
        f"{100 * difference.mean:+.0f} points ({100 * difference.low:+.0f} to {100 * difference.high:+.0f})"
    )


def judged(difference: Difference) -> str:
    """``better``, ``worse``, or that the two are not told apart."""
    return {1: "better", -1: "worse", 0: NOT_TOLD_APART}[difference.direction]


def verdicts(comparison: Comparison) -> list[str]:
    """One sentence per recipe against the first, then what the number of seeds allows to say."""
    first, *others = comparison.summaries
    found = [_verdict(first.recipe, summary) for summary in others]
    if not others:
        found.append(_alone(first))
    return found


def _verdict(first: str, summary: Summary) -> str:
    against = summary.against
    if against is None:
        return f"{summary.recipe} and {first}: no seed is finished on both sides, nothing can be said."
    own, common = against.own, against.common
    if own.direction:
        text = f"{summary.recipe} is {judged(own)} than {first}, each under its own rule: {points(own)}."
    else:
        text = f"{summary.recipe} and {first} are {NOT_TOLD_APART}, each under its own rule: {points(own)}."
    if own == common:
        return text
    if common.direction:
        return f"{text} By one plain sample it is {judged(common)}: {points(common)}."
    return f"{text} By one plain sample they are {NOT_TOLD_APART}: {points(common)}."


def _alone(summary: Summary) -> str:
    if summary.gain is None:
        return f"{summary.recipe}: no seed is finished."
    judgement = {1: "better than its base", -1: "worse than its base", 0: f"{NOT_TOLD_APART} from its base"}
    return f"{summary.recipe} is {judgement[summary.gain.direction]}: {points(summary.gain)}."


def caveats(comparison: Comparison) -> list[str]:
    """What this comparison does not show."""
    notes: list[str] = []
    seeds = len(comparison.plan.seeds)
    if seeds == 1:
        notes.append("One seed compares two runs, not two methods: intervals hold starts alone.")
    elif seeds < FEW_SEEDS:
        notes.append(f"{seeds} seeds: intervals over so few are rough, and rather too narrow than too wide.")
    config = comparison.plan.contenders[0].config
    notes.append(
        f"{config.evaluation.episodes} starts per run, the same for all: one episode is "
        f"{100 / config.evaluation.episodes:.1f} points of a run."
    )
    if config.budget.wall_s is not None:
        notes.append(
            f"The budget has a limit of {config.budget.wall_s:g} s: where it ends a run, environment steps and "
            "updates depend on this machine and on what else it did."
        )
    if comparison.asynchronous:
        notes.append("Recipes kept their asynchronous drivers: updates per step differ, runs do not repeat.")
    for summary in comparison.summaries:
        if summary.finished and not any(run.own_base_measured for run in summary.finished):
            rule = summary.finished[0].evaluation("tuned").rule
            if rule != summary.finished[0].evaluation("base").rule:
                notes.append(
                    f"{summary.recipe} acts by {rule}; its base cannot act by that rule, so the base's plain "
                    "sample stands in for it and the gain holds the rule's part, too."
                )
    notes.append("Seconds and milliseconds were measured while other runs of the comparison may have run.")
    return notes


def deviations(comparison: Comparison) -> dict[str, list[str]]:
    """By recipe, the options its publication does not have, over all finished runs."""
    return {
        summary.recipe: list(
            dict.fromkeys(text for run in summary.finished for text in run.result.get("deviations") or [])
        )
        for summary in comparison.summaries
    }

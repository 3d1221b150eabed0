"""A finished run, ranked: from the policies it left to the numbers, the page and the refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flowrl.config import load
from flowrl.errors import ReplayError, SpecMismatch, UsageError
from flowrl.learner.loop import create_run
from flowrl.learner.run import Run
from flowrl.ope.behaviour import attribute
from flowrl.ope.fqe import FQEConfig
from flowrl.ope.page import verdict, write_page
from flowrl.ope.ranking import OPEConfig, rank
from flowrl.ope.result import FORMAT, Agreement, Ranking, write_json
from flowrl.policies.io import create_policy, load_policy, save_policy
from flowrl.policies.observation import Observation
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import EPISODE, Kind, Outcome, OutcomeBy, Step
from flowrl.replay.writer import StreamWriter
from tests.ope.analytic import write_chain
from tests.ope.conftest import GOOD, measure, reach_config

SMALL = FQEConfig(updates=250, seeds=2, batch_size=64, width=32)


def quick(**options: object) -> OPEConfig:
    return load(OPEConfig, {"fqe": {"updates": 5, "batch_size": 16, "width": 8}, "bootstrap": 200, **options})


@pytest.fixture(scope="module")
def ranking(reach_run: Run) -> Ranking:
    return rank(reach_run, OPEConfig(fqe=SMALL, bootstrap=500), measure=measure)


def test_a_clearly_better_checkpoint_ranks_above_the_base(ranking: Ranking) -> None:
    by_name = {row.name: row for row in ranking.ranked}
    best, base = by_name[f"checkpoint {GOOD}"], by_name["base"]
    assert best.truth is not None
    assert base.truth is not None
    assert best.truth.success_rate > base.truth.success_rate + 0.3
    assert ranking.ranked[0] is best
    assert best.estimates["fqe"].low > base.estimates["fqe"].high
    assert ranking.neighbours["fqe"][0].apart
    assert verdict(ranking).startswith(f"checkpoint {GOOD} ranks first, clearly above")
    assert ranking.agreement["fqe"].regret[0] == 0.0


def test_the_same_weights_are_ranked_once(ranking: Ranking) -> None:
    """Checkpoint 0 is the base, the tuned policy the last checkpoint of the run."""
    names = {row.name: row.also for row in ranking.ranked}
    assert names["base"] == ("checkpoint 0",)
    assert names["checkpoint 20"] == ("tuned",)
    assert {row.updates for row in ranking.ranked} == {0, 10, 20, GOOD}


def test_the_json_holds_what_was_found(ranking: Ranking, tmp_path: Path) -> None:
    write_json(ranking, tmp_path / "ope.json")
    data = json.loads((tmp_path / "ope.json").read_text())
    assert data["format"] == FORMAT
    assert data["quantity"].startswith("success, discounted by 0.95")
    assert data["primary"] == "fqe"
    assert data["settings"]["fqe"]["updates"] == 250
    assert "jobs" not in data["settings"]
    assert [row["name"] for row in data["ranked"]] == [row.name for row in ranking.ranked]
    first = data["ranked"][0]
    assert (
        first["estimates"]["fqe"]["low"]
        <= first["estimates"]["fqe"]["value"]
        <= first["estimates"]["fqe"]["high"]
    )
    assert set(first["estimates"]["fqe"]["details"]) == {
        "td_error",
        "distance",
        "outside",
        "drift",
        "seed_std",
    }
    assert first["truth"]["episodes"] == 20
    assert data["agreement"]["fqe"]["sharpe_ratio"][0] is None
    assert len(data["agreement"]["fqe"]["regret"]) == 3


def test_the_page_shows_every_policy_and_what_is_not_shown(ranking: Ranking, tmp_path: Path) -> None:
    write_page(ranking, tmp_path / "ope.html")
    text = (tmp_path / "ope.html").read_text()
    for row in ranking.ranked:
        assert f'data-policy="{row.name}"' in text
    assert text.count("<svg") == 1
    assert "measured" in text
    assert "bias of a critic that extrapolates" in text
    assert "http" not in text


def test_what_was_measured_is_in_the_unit_of_the_estimates(ranking: Ranking) -> None:
    """Discounted success of the same episodes: never above the success rate, 0.95 per step below 1."""
    for row in ranking.ranked:
        assert row.truth is not None
        assert 0.95**19 * row.truth.success_rate <= row.truth.value <= row.truth.success_rate


def test_equal_policies_get_equal_estimates_and_are_not_told_apart(reach_run: Run, tmp_path: Path) -> None:
    """A copy of the base that is stored otherwise is another candidate: same numbers, difference 0."""
    base = load_policy(reach_run.base)
    directory = tmp_path / "copy"
    save_policy(base, directory)
    description = json.loads((directory / "policy.json").read_text())
    description["config"]["zero_init_last"] = True
    (directory / "policy.json").write_text(json.dumps(description))
    found = rank(reach_run, quick(), policies=[directory])
    first, second = (row.estimates["fqe"] for row in found.ranked)
    assert first == second
    (pair,) = found.neighbours["fqe"]
    assert (pair.difference, pair.low, pair.high) == (0.0, 0.0, 0.0)
    assert not pair.apart
    assert str(pair) == "base is not told apart from copy: difference 0, 95 % interval 0 to 0"


def test_fitting_in_two_threads_changes_no_number(reach_run: Run) -> None:
    one, two = (rank(reach_run, quick(jobs=jobs)) for jobs in (1, 2))
    assert [row.estimates for row in one.ranked] == [row.estimates for row in two.ranked]


def test_a_warm_up_of_clipped_actions_gives_no_weights_but_says_why(reach_run: Run) -> None:
    """The reach base saturates: with ``all`` the fitted values stay and a note counts what was lost."""
    found = rank(reach_run, quick(method="all"))
    assert set(found.neighbours) == {"fqe"}
    (note,) = [note for note in found.notes if note.startswith("No importance sampling")]
    assert "clipped to a bound" in note
    warm_up = attribute(ReplayReader(reach_run.replay), reach_run, None)
    assert warm_up.origin == f"{len(warm_up.episodes)} episodes of the warm-up, collected by the base"
    lengths = ReplayReader(reach_run.replay).table[warm_up.episodes, EPISODE["length"]]
    assert int(lengths.sum()) == reach_run.read_json("result.json")["warm_up_steps"]


def test_the_policy_that_collected_weighs_every_episode_one(reach_run: Run, tmp_path: Path) -> None:
    """Episodes of one chunk that the base drew inside the bounds: its own estimate is their mean return."""
    returns = write_chunks_of_the_base(reach_run, tmp_path / "replay", episodes=24)
    found = rank(reach_run, quick(method="wpdis"), replay=tmp_path / "replay", behaviour=reach_run.base)
    by_name = {row.name: row.estimates["wpdis"] for row in found.ranked}
    assert by_name["base"].value == pytest.approx(returns.mean(), rel=1e-6)
    assert by_name["base"].details["effective_share"] == pytest.approx(1.0)
    assert by_name["base"].low < returns.mean() < by_name["base"].high
    assert by_name[f"checkpoint {GOOD}"].details["effective_share"] < 0.9
    assert found.primary == "wpdis"


def write_chunks_of_the_base(
    run: Run, replay: Path, episodes: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Write episodes of one chunk each and return what they earned, discounted."""
    base, draws = load_policy(run.base), torch.Generator().manual_seed(0)
    state = 0.2 * torch.randn(400, 2, generator=draws)
    with torch.no_grad():
        sample = base.sample(
            base.encode(Observation(state)), torch.randn(400, base.flat_size, generator=draws)
        )
    inside = (sample.abs().amax(dim=1) < 0.98).nonzero().squeeze(1)[:episodes]
    assert len(inside) == episodes
    actions, states = base.raw_action(sample[inside]).numpy(), state[inside].numpy()
    rewards = np.random.default_rng(0).random((episodes, 3))
    with StreamWriter.create(replay, "policy", base.spec.interface(), Kind.POLICY) as writer:
        for episode in range(episodes):
            writer.begin_episode(seed=episode, task="reach")
            for step in range(3):
                reward, last = float(rewards[episode, step]), step == 2
                writer.append(Step(states[episode], actions[episode, step], reward, last, policy_version=0))
            writer.close_episode(Outcome.UNKNOWN, OutcomeBy.NONE, states[episode])
    return (rewards * 0.95 ** np.arange(3)).sum(axis=1)


def test_importance_sampling_alone_refuses_what_it_cannot_weigh(reach_run: Run) -> None:
    foreign = reach_run.replay
    with pytest.raises(UsageError, match=r"leave out --zero-noise"):
        rank(reach_run, quick(method="wpdis", zero_noise=True))
    other = foreign.parent.parent.parent / "replay"
    with pytest.raises(UsageError, match=r"name it with --behaviour"):
        rank(reach_run, quick(method="wpdis"), replay=other)


def test_a_run_without_checkpoints_is_refused(reach_run: Run, tmp_path: Path) -> None:
    fresh = create_run(reach_config(), tmp_path, reach_run.base, [reach_run.replay / "explore"])
    with pytest.raises(UsageError, match=r"nothing to rank: no checkpoints and no tuned policy"):
        rank(fresh, quick())


def test_an_empty_replay_is_refused(reach_run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ReplayError, match=r"holds no finished episode"):
        rank(reach_run, quick(), replay=tmp_path / "empty")


def test_data_of_another_interface_is_refused_by_name(reach_run: Run, tmp_path: Path) -> None:
    write_chain(tmp_path, 6)
    with pytest.raises(SpecMismatch, match=r"policy 'base' does not match the replay"):
        rank(reach_run, quick(), replay=tmp_path)


def test_policies_of_different_chunks_are_refused(reach_run: Run, tmp_path: Path) -> None:
    base = load_policy(reach_run.base)
    spec = replace(base.spec, chunk=None).with_chunk(2)
    save_policy(create_policy(base.kind, spec, base.config()), tmp_path / "short")
    with pytest.raises(SpecMismatch, match=r"chunk\.length: 2 against 3"):
        rank(reach_run, quick(), policies=[tmp_path / "short"])


def test_agreement_leaves_no_k_beyond_the_candidates() -> None:
    found = Agreement.of([0.2, 0.1], [0.9, 0.3], baseline=0.3)
    assert found.rank_correlation == 1.0
    assert found.regret == (0.0, 0.0)
    assert np.isnan(found.sharpe_ratio[0])
    assert found.sharpe_ratio[1] == pytest.approx(0.6 / 0.3)

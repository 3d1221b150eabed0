"""Fitted-Q evaluation on a chain whose values are known for every policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from flowrl.acting import Actor
from flowrl.ope.data import LoggedData, split
from flowrl.ope.fqe import FQE, FQEConfig, FQEValues, impute_unexecuted
from flowrl.ope.trust import on_fit
from flowrl.replay.reader import ReplayReader
from tests.helpers import chunk_batch
from tests.ope.analytic import DISCOUNT, GaussianPolicy, chain_spec, chain_value, write_chain

SMALL = FQEConfig(updates=400, seeds=2, batch_size=128, width=48, samples=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> LoggedData:
    replay = tmp_path_factory.mktemp("chain")
    write_chain(replay, 1500, seed=5)
    return split(ReplayReader(replay), 0.1, DISCOUNT, "auto", 0)


def fit(data: LoggedData, mean: float, config: FQEConfig = SMALL) -> FQEValues:
    return FQE(Actor(GaussianPolicy(chain_spec(), mean)), data, config).run()


def test_known_values_and_their_order_are_found(data: LoggedData) -> None:
    """Values 0.43, 0.61 and 0.71. The data leave an error of about 0.01, two short fits about 0.03 more:
    0.06 is allowed, which still keeps base and best apart.
    """
    means = (-0.4, 0.0, 0.4)
    truth = [chain_value(mean) for mean in means]
    assert truth == pytest.approx([0.432, 0.609, 0.713], abs=2e-3)
    found = [fit(data, mean) for mean in means]
    estimates = [values.estimate for values in found]
    assert estimates == pytest.approx(truth, abs=0.06)
    assert sorted(estimates) == estimates
    for values in found:
        assert values.values.shape == (2, data.episodes)
        assert values.outside == 0.0
        assert values.td_error < data.returns().std()
        assert abs(values.drift) < 0.05
        assert on_fit(values, found[1], data) == ()


def test_steps_after_the_end_are_filled_with_those_of_other_rows() -> None:
    """The second of three rows ended at its first step: only its second action may change."""
    action = torch.arange(6.0).reshape(3, 2, 1)
    mask = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    batch = chunk_batch(torch.zeros(3, 1), action, torch.zeros(3, 2), mask)
    found = set[float]()
    for seed in range(30):
        filled = impute_unexecuted(batch, torch.Generator().manual_seed(seed)).action
        assert filled[[0, 2]].equal(action[[0, 2]])
        assert filled[1, 0] == action[1, 0]
        found.add(float(filled[1, 1]))
    assert found == {1.0, 5.0}


def test_equal_policies_get_equal_estimates(data: LoggedData) -> None:
    """Bit for bit: rows, noise and first weights depend on the seed alone."""
    quick = FQEConfig(updates=20, seeds=2, batch_size=32, width=16)
    first, second = (fit(data, 0.2, quick) for _ in range(2))
    assert (first.values == second.values).all()
    assert first.td_error == second.td_error
    assert not (fit(data, 0.3, quick).values == first.values).all()


def test_fits_differ_from_each_other(data: LoggedData) -> None:
    values = fit(data, 0.0, FQEConfig(updates=20, seeds=3, batch_size=32, width=16)).values
    assert len({float(row.mean()) for row in values}) == 3


def test_the_distance_to_logged_actions_is_that_of_their_laws(data: LoggedData) -> None:
    """Logged actions are uniform on [-1, 1]: E (a - m)^2 = 1/3 + m^2, and 0.1^2 of the policy's own."""
    quick = FQEConfig(updates=1, seeds=1, batch_size=256, width=16)
    for mean in (0.0, 0.6):
        expected = (1 / 3 + mean**2 + 0.1**2) ** 0.5
        assert fit(data, mean, quick).distance == pytest.approx(expected, abs=0.04)


def test_an_estimate_is_in_the_unit_of_the_raw_reward(tmp_path: Path) -> None:
    """Fifty times the reward gives fifty times the estimate: the critic itself sees scaled rewards."""
    quick = FQEConfig(updates=20, seeds=1, batch_size=64, width=16)
    estimates = list[float]()
    for reward in (1.0, 50.0):
        write_chain(tmp_path / f"{reward:g}", 40, reward=reward)
        data = split(ReplayReader(tmp_path / f"{reward:g}"), 0.1, DISCOUNT, "raw", 0)
        estimates.append(fit(data, 0.0, quick).estimate)
    assert estimates[1] == pytest.approx(50 * estimates[0], rel=1e-3)


def test_progress_counts_every_update(data: LoggedData) -> None:
    counts = list[int]()
    config = FQEConfig(updates=120, seeds=2, batch_size=16, width=8)
    FQE(Actor(GaussianPolicy(chain_spec())), data, config).run(counts.append)
    assert counts == [50, 50, 20] * 2


def test_warnings_say_what_speaks_against_a_fit(data: LoggedData) -> None:
    good = FQEValues(np.full((1, 4), 0.5), 0.01, 0.3, 0.0, 0.0)
    bad = FQEValues(np.full((1, 4), 0.5), 10.0, 0.9, 0.5, 0.0)
    words = " | ".join(on_fit(bad, good, data))
    assert "TD error 10" in words
    assert "50% of the initial states" in words
    assert "3.0 times as far" in words
    unchecked = FQEValues(np.full((1, 4), 0.5), float("nan"), 0.3, 0.0, 0.0)
    assert on_fit(unchecked, good, data) == ("no whole chunk was held out, so the fit was not checked",)

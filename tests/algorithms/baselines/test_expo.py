"""EXPO: the edit goes to its bound under a linear critic; choice, sources and gradients."""

from __future__ import annotations

import pytest
import torch

from flowrl.algorithms.baselines.expo import EXPO, EXPOConfig
from flowrl.policies.interface import Context
from flowrl.policies.observation import Observation
from tests.algorithms import bandit
from tests.algorithms.analytic import FixedBatches, random_batch
from tests.algorithms.baselines.common import (
    ACTION,
    BANDIT_CRITIC,
    CHUNK,
    CRITIC,
    ROWS,
    SIZE,
    STATE,
    base,
    generator,
    know,
    linear,
)
from tests.algorithms.pages import Page
from tests.algorithms.test_sqam_losses import touched, untouched

SMALL = {"width": 16, "depth": 2}
SLOPE = torch.tensor([1.0, -1.0, 2.0, -0.5])


def learner(**options: object) -> EXPO:
    return EXPO(EXPOConfig(critic=CRITIC, **(SMALL | options)), base())  # type: ignore[arg-type]


def test_under_a_linear_critic_the_edit_goes_to_its_bound() -> None:
    expo = learner(temperature=1e-4, learning_rate=1e-2)
    know(expo, linear(SLOPE))
    context = Context(torch.randn(64, STATE))
    for _ in range(150):
        expo.step(expo.edit_loss(context)[0])
    action = 0.5 * torch.randn(64, SIZE).clamp(-1, 1)
    with torch.no_grad():
        edited, _ = expo.policy.edit(context, action, torch.zeros(64, SIZE))
    assert torch.allclose(edited - action, 0.1 * SLOPE.sign().expand_as(action), atol=5e-3)


def test_the_target_takes_the_best_of_samples_and_edits() -> None:
    """Redrawn from the same generator, its choice is the argmax over the policy's own candidates."""
    expo = learner(target_best_of=4)
    know(expo, linear(SLOPE))
    context = Context(torch.randn(ROWS, STATE))
    expo.generator.manual_seed(3)
    chosen = expo.next_action(context)
    noise = torch.randn(ROWS * 4, 2 * SIZE, generator=generator(3))
    candidates = expo.policy.candidates(context.interleave(4), noise).clamp(-1, 1).view(ROWS, 8, SIZE)
    best = (candidates @ SLOPE).argmax(dim=1)
    assert torch.allclose(chosen, candidates[torch.arange(ROWS), best])


def test_each_purpose_has_its_own_count_and_one_is_still_a_choice_of_two() -> None:
    expo = learner(collect_best_of=5, evaluate_best_of=1)
    assert [expo.actor(purpose).candidates for purpose in ("collect", "evaluate")] == [10, 2]
    assert expo.actor("collect").score == CRITIC.aggregation
    chunks = expo.actor("collect").act(Observation(torch.randn(3, STATE)), generator())
    assert chunks.shape == (3, CHUNK, ACTION)


def test_the_edits_loss_reaches_the_editor_alone() -> None:
    expo = learner()
    loss, density, _ = expo.edit_loss(Context(torch.randn(ROWS, STATE)))
    loss.backward()
    assert density.shape == (ROWS,)
    assert touched(expo.policy.editor)
    assert all(untouched(m) for m in (expo.policy.base, expo.critic.online, expo.temperature))


def test_the_critic_learns_from_td_alone() -> None:
    expo = learner(target_best_of=2)
    batch = random_batch(0, ROWS, STATE, ACTION, CHUNK)
    expo.temporal_loss(batch, expo.critic.view(batch, expo.policy))[0].backward()
    assert touched(expo.critic.online)
    assert untouched(expo.policy)


def test_the_flow_clones_the_critics_batch_or_a_named_source() -> None:
    batches = FixedBatches.random(ROWS, STATE, ACTION, CHUNK)
    learner(target_best_of=1).update(batches)
    learner(target_best_of=1, source="success_mix").update(batches)
    assert batches.sources == [None, None, "success_mix"]
    assert learner().deviations() == []
    assert learner(source="x").deviations() == ["the flow clones the source 'x' only"]


def test_the_gain_is_what_the_edit_adds_by_the_critic() -> None:
    """A bias of the editor's mean alone: u = tanh(3) everywhere, so the gain is 0.1 tanh(3) sum g."""
    expo = learner()
    know(expo, linear(SLOPE))
    with torch.no_grad():
        for parameter in expo.policy.editor.parameters():
            parameter.zero_()
        last = list(expo.policy.editor.parameters())[-1]
        last[:SIZE], last[SIZE:] = 3.0, -9.0
        for parameter in expo.policy.base.parameters():
            parameter.mul_(0.1)
    _, _, info = expo.edit_loss(Context(torch.zeros(4000, STATE)))
    inside = 0.1 * float(torch.tanh(torch.tensor(3.0)) * SLOPE.sum())
    assert info["actor/edit_gain"] == pytest.approx(inside, abs=0.03)


@pytest.mark.parametrize("settings", [{"bound": 0.0}, {"target_best_of": 0}])
def test_unusable_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"it must be (positive|at least 1)"):
        EXPOConfig(**settings)  # type: ignore[arg-type]


def test_bandit_reward_rises_well_above_the_random_base() -> None:
    config = EXPOConfig(
        critic=BANDIT_CRITIC,
        learning_rate=1e-3,
        temperature=0.02,
        source="successes",
        target_best_of=1,
        width=64,
        depth=2,
    )
    source = generator()
    assert bandit.train(EXPO(config, bandit.random_base(source)), source, updates=150, warm_up=100) > -0.15


def test_the_page_explains_every_hyper_parameter_and_metric() -> None:
    page = Page("algorithms/expo.md")
    page.check_hyper_parameters(EXPOConfig)
    batches, expo = FixedBatches.random(ROWS, STATE, ACTION, CHUNK), learner(target_best_of=2)
    page.check_metrics(expo.warm_up(batches) | expo.update(batches) | expo.diagnostics(batches))
    page.check_links()

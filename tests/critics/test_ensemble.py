"""The stacked ensemble is M separate critics; low-rank layers, distributions, and what is saved."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from flowrl.critics.ensemble import CriticEnsemble, action_gradient

FEATURES, ACTION, WIDTH, ROWS = 4, 3, 16, 9


def separate_critic(ensemble: CriticEnsemble, head: int) -> nn.Sequential:
    """One head as a plain MLP with copied weights."""
    layers: list[nn.Module] = []
    with torch.no_grad():
        for i, weight in enumerate(ensemble.weights):
            linear = nn.Linear(weight.shape[1], weight.shape[2])
            linear.weight.copy_(weight[head].T)
            linear.bias.copy_(ensemble.biases[i][head, 0])
            layers.append(linear)
            if i < len(ensemble.weights) - 1:
                layers.append(nn.GELU(approximate="tanh"))
                if ensemble.gains:
                    norm = nn.LayerNorm(weight.shape[2], eps=1e-6)
                    norm.weight.copy_(ensemble.gains[i][head, 0])
                    norm.bias.copy_(ensemble.shifts[i][head, 0])
                    layers.append(norm)
    return nn.Sequential(*layers)


def random_ensemble(layer_norm: bool, heads: int = 5) -> CriticEnsemble:
    ensemble = CriticEnsemble(FEATURES + ACTION, heads=heads, width=WIDTH, depth=3, layer_norm=layer_norm)
    with torch.no_grad():
        for parameter in ensemble.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return ensemble


@pytest.mark.parametrize("layer_norm", [True, False])
def test_stacked_ensemble_equals_separate_critics(layer_norm: bool) -> None:
    ensemble = random_ensemble(layer_norm)
    features, action = torch.randn(ROWS, FEATURES), 2 * torch.rand(ROWS, ACTION) - 1
    weights = torch.randn(5, ROWS)
    stacked = ensemble(features, action)
    (stacked * weights).sum().backward()
    for head in range(5):
        single = separate_critic(ensemble, head)
        values = single(torch.cat([features, action], dim=1))[:, 0]
        torch.testing.assert_close(values, stacked[head], rtol=1e-5, atol=1e-5)
        (values * weights[head]).sum().backward()
        linears = [layer for layer in single if isinstance(layer, nn.Linear)]
        norms = [layer for layer in single if isinstance(layer, nn.LayerNorm)]
        for i, linear in enumerate(linears):
            for ours, theirs in ((ensemble.weights[i], linear.weight), (ensemble.biases[i], linear.bias)):
                assert ours.grad is not None
                assert theirs.grad is not None
                mine = ours.grad[head].T if theirs.ndim == 2 else ours.grad[head, 0]
                torch.testing.assert_close(mine, theirs.grad, rtol=1e-4, atol=1e-5)
        for i, norm in enumerate(norms):
            gain, shift = ensemble.gains[i].grad, ensemble.shifts[i].grad
            assert gain is not None
            assert shift is not None
            torch.testing.assert_close(gain[head, 0], norm.weight.grad, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(shift[head, 0], norm.bias.grad, rtol=1e-4, atol=1e-5)


def test_heads_start_apart() -> None:
    ensemble = CriticEnsemble(FEATURES + ACTION, heads=4, width=WIDTH, depth=2)
    values = ensemble(torch.randn(6, FEATURES), torch.randn(6, ACTION))
    assert float(values.std(dim=0).min().detach()) > 1e-3


def test_a_head_is_not_moved_by_anothers_loss() -> None:
    ensemble = random_ensemble(True)
    ensemble(torch.randn(ROWS, FEATURES), torch.randn(ROWS, ACTION))[2].sum().backward()
    for parameter in ensemble.parameters():
        assert parameter.grad is not None
        assert not parameter.grad[[0, 1, 3, 4]].any()


def test_action_gradient_equals_finite_differences_of_the_mean_head() -> None:
    ensemble = random_ensemble(True).double()
    features = torch.randn(2, FEATURES, dtype=torch.float64)
    action = torch.rand(2, ACTION, dtype=torch.float64) - 0.5
    gradient, values = action_gradient(ensemble, features, action)
    torch.testing.assert_close(values, ensemble(features, action).detach())
    step = 1e-6
    for d in range(ACTION):
        offset = torch.zeros(ACTION, dtype=torch.float64)
        offset[d] = step
        rise = ensemble(features, action + offset) - ensemble(features, action - offset)
        torch.testing.assert_close(
            gradient[:, d], rise.mean(dim=0).detach() / (2 * step), rtol=1e-6, atol=1e-8
        )


def test_action_gradient_works_without_gradients_and_leaves_none_behind() -> None:
    ensemble = random_ensemble(True)
    gradient, values = action_gradient(ensemble, torch.randn(2, FEATURES), torch.zeros(2, ACTION))
    assert not gradient.requires_grad
    assert not values.requires_grad
    assert all(p.grad is None for p in ensemble.parameters())


def low_rank(rank: int = 4) -> CriticEnsemble:
    return CriticEnsemble(FEATURES + ACTION, heads=2, width=WIDTH, depth=3, lora_rank=rank)


def test_low_rank_critic_without_its_low_rank_part_is_the_frozen_net() -> None:
    ensemble = low_rank()
    with torch.no_grad():
        for up in ensemble.up:
            up.zero_()
    plain = CriticEnsemble(FEATURES + ACTION, heads=2, width=WIDTH, depth=3)
    kept = {name: value for name, value in ensemble.state_dict().items() if name in plain.state_dict()}
    plain.load_state_dict(kept)
    features, action = torch.randn(ROWS, FEATURES), torch.randn(ROWS, ACTION)
    torch.testing.assert_close(ensemble(features, action), plain(features, action), rtol=0, atol=1e-6)


def test_low_rank_critic_equals_a_net_of_its_merged_weights() -> None:
    ensemble = low_rank()
    plain = CriticEnsemble(FEATURES + ACTION, heads=2, width=WIDTH, depth=3)
    with torch.no_grad():
        for layer in range(4):
            plain.weights[layer].copy_(ensemble.merged(layer))
    features, action = torch.randn(ROWS, FEATURES), torch.randn(ROWS, ACTION)
    torch.testing.assert_close(ensemble(features, action), plain(features, action), rtol=1e-5, atol=1e-5)
    assert not torch.equal(ensemble.merged(1), ensemble.weights[1])
    assert torch.equal(ensemble.merged(0), ensemble.weights[0])
    assert torch.equal(ensemble.merged(3), ensemble.weights[3])


def test_only_the_weights_between_hidden_layers_are_frozen() -> None:
    ensemble = low_rank()
    ensemble(torch.randn(ROWS, FEATURES), torch.randn(ROWS, ACTION)).sum().backward()
    without = {name for name, parameter in ensemble.named_parameters() if parameter.grad is None}
    assert without == {"weights.1", "weights.2"}
    assert [tuple(down.shape) for down in ensemble.down] == [(2, WIDTH, 4)] * 2
    assert [tuple(up.shape) for up in ensemble.up] == [(2, 4, WIDTH)] * 2


def test_target_averages_the_weights_by_which_a_low_rank_critic_acts() -> None:
    online = low_rank().double()
    target = deepcopy(online).requires_grad_(False)
    expected = [target.merged(layer).clone() for layer in range(4)]
    bias = target.biases[-1].clone()
    for _ in range(3):
        with torch.no_grad():
            for parameter in online.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter))
        target.track_(online, 0.25)
        expected = [0.75 * e + 0.25 * online.merged(layer).detach() for layer, e in enumerate(expected)]
        bias = 0.75 * bias + 0.25 * online.biases[-1].detach()
        for layer, weight in enumerate(expected):
            torch.testing.assert_close(target.merged(layer), weight, rtol=0, atol=1e-6)
        assert all(not up.any() for up in target.up)
        torch.testing.assert_close(target.biases[-1], bias, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lora_rank": 3},
        {"head": "c51", "atoms": 7, "value_low": -3.0, "value_high": 1.0},
        {"head": "hl_gauss", "atoms": 7, "value_low": -3.0, "value_high": 1.0, "smoothing": 0.5},
    ],
)
def test_configuration_and_state_rebuild_the_critic(options: dict[str, object]) -> None:
    ensemble = CriticEnsemble(FEATURES + ACTION, heads=2, width=WIDTH, depth=2, **options)  # type: ignore[arg-type]
    again = CriticEnsemble(**ensemble.config())
    again.load_state_dict(ensemble.state_dict())
    features, action = torch.randn(ROWS, FEATURES), torch.rand(ROWS, ACTION) - 0.5
    values = ensemble(features, action)
    assert values.shape == (2, ROWS)
    assert torch.equal(again(features, action), values)
    gradient, same = action_gradient(ensemble, features, action)
    assert gradient.shape == action.shape
    assert torch.equal(same, values.detach())


def test_distributional_critic_keeps_its_values_inside_the_range() -> None:
    ensemble = CriticEnsemble(
        FEATURES + ACTION, head="c51", atoms=5, value_low=-2.0, value_high=-1.0, width=8
    )
    values = ensemble(100 * torch.randn(50, FEATURES), torch.randn(50, ACTION)).detach()
    assert ensemble.logits(torch.randn(3, FEATURES), torch.randn(3, ACTION)).shape == (10, 3, 5)
    assert -2 <= float(values.min()) < float(values.max()) <= -1

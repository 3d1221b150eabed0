"""Adapters start as nothing, learn alone, and are part of the weights once stored."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flowrl.errors import ConfigError

pytest.importorskip("peft", reason="comes with the extra vla")

from flowrl.policies.lora import LoRAConfig, inject, layers, merged


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 4, bias=False), nn.Conv1d(4, 2, 1))


def forward(net: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
    return net[3](net[2](net[1](net[0](x))).unsqueeze(-1)).squeeze(-1)


def adapted() -> tuple[nn.Sequential, list[nn.Parameter]]:
    net = network()
    torch.manual_seed(1)
    return net, inject(net, LoRAConfig(rank=2, alpha=6), "0|2|3")


def test_a_fresh_adapter_changes_nothing() -> None:
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(forward(adapted()[0], x), forward(network(), x))
    assert list(layers(adapted()[0])) == ["0", "2", "3"]


def test_parameters_are_two_factors_of_the_rank_for_each_module() -> None:
    _, parameters = adapted()
    assert sum(p.numel() for p in parameters) == 2 * ((3 + 4) + (4 + 4) + (4 + 2))


def test_merged_weights_compute_what_the_adapted_network_does() -> None:
    net, parameters = adapted()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in parameters:
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    plain = network()
    plain.load_state_dict(merged(net))
    x = torch.randn(5, 3, generator=generator)
    assert torch.allclose(forward(plain, x), forward(net, x), atol=1e-5)
    assert not torch.allclose(forward(plain, x), forward(network(), x), atol=1e-2)


def test_the_change_of_a_linear_layer_is_alpha_over_rank_times_the_product() -> None:
    net, parameters = adapted()
    first, second = parameters[0], parameters[1]
    with torch.no_grad():
        second.fill_(0.5)
    change = merged(net)["0.weight"] - network()[0].weight
    assert torch.allclose(change, 6 / 2 * second @ first, atol=1e-6)


def test_without_adapters_merged_is_the_state() -> None:
    net = network()
    assert {name: value.data_ptr() for name, value in merged(net).items()} == {
        name: value.data_ptr() for name, value in net.state_dict().items()
    }


def test_targets_that_match_nothing_are_named() -> None:
    with pytest.raises(ConfigError, match=r"lora.targets 'nowhere'"):
        inject(network(), LoRAConfig(), "nowhere")


@pytest.mark.parametrize("change", [{"rank": 0}, {"alpha": 0.0}])
def test_a_rank_or_scale_of_nothing_is_refused(change: dict[str, float]) -> None:
    with pytest.raises((ConfigError, ValueError), match=r"must be positive"):
        LoRAConfig(**change)

"""What critics see of a chunk: the executed part, in units of its bounds."""

from __future__ import annotations

import pytest
import torch

from flowrl.critics.ensemble import CriticEnsemble, action_gradient
from flowrl.critics.targets import CriticConfig
from flowrl.errors import ConfigError
from flowrl.policies.action_view import ActionView


def test_a_plain_view_clips_and_no_more() -> None:
    action = torch.tensor([[0.5, -3.0, 1.0]])
    assert ActionView()(action).tolist() == [[0.5, -1.0, 1.0]]
    assert ActionView().size(3) == 3


def test_columns_are_picked_scaled_to_their_bounds_and_clipped() -> None:
    view = ActionView(columns=[2, 0], low=[-2.0, 0.0], high=[2.0, 4.0])
    assert view(torch.tensor([[3.0, 99.0, 1.0], [9.0, 0.0, -8.0]])).tolist() == [[0.5, 0.5], [-1.0, 1.0]]
    assert view.size(3) == 2


def test_a_gradient_reaches_the_seen_columns_inside_the_bounds_alone() -> None:
    torch.manual_seed(0)
    view = ActionView(columns=[0, 2], low=[-2.0, -2.0], high=[2.0, 2.0])
    critic = CriticConfig(heads=2, width=8, depth=1).build(3, 4, view)
    features, action = torch.randn(1, 3), torch.tensor([[1.5, 0.3, 2.5, 0.1]])
    gradient, values = action_gradient(critic, features, action)
    assert gradient[0, 0] != 0
    assert gradient[0, 1:].tolist() == [0.0, 0.0, 0.0]
    offset = torch.tensor([[0.0, 9.0, 0.0, 9.0]])
    assert torch.equal(critic(features, action + offset).detach(), values)


def test_a_critic_is_rebuilt_with_its_view() -> None:
    torch.manual_seed(0)
    view = ActionView(columns=[1], low=[0.0], high=[10.0])
    critic = CriticConfig(heads=2, width=8, depth=1).build(3, 2, view)
    again = CriticEnsemble(**critic.config())
    again.load_state_dict(critic.state_dict())
    features, action = torch.randn(4, 3), 10 * torch.rand(4, 2)
    assert torch.equal(again(features, action), critic(features, action))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"columns": [0, 1], "low": [0.0], "high": [1.0]}, "as many bounds"),
        ({"low": [0.0]}, "as many bounds"),
        ({"low": [1.0], "high": [1.0]}, "below"),
    ],
)
def test_a_view_that_makes_no_sense_is_refused(settings: dict[str, list[float]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ActionView(**settings)  # type: ignore[arg-type]

"""A distribution's mean is the value; a histogram's mean is its target."""

from __future__ import annotations

import pytest
import torch

from flowrl.critics.heads import C51Head, HLGaussHead, make_head
from flowrl.critics.targets import classification_loss


def test_values_are_the_means_of_the_softmax() -> None:
    head = C51Head(3, -1.0, 1.0)
    assert head.atoms.tolist() == [-1, 0, 1]
    logits = torch.tensor([0.1, 0.2, 0.7]).log()
    assert float(head.values(logits)) == pytest.approx(0.6)
    assert make_head("scalar", 1, None, None, 1.0).values(torch.tensor([[3.0]])).tolist() == [3.0]


@pytest.mark.parametrize("smoothing", [0.3, 0.75, 2.0])
def test_histogram_has_mass_1_and_the_targets_mean(smoothing: float) -> None:
    """Away from the ends. A binned Gaussian's mean is off by less than exp(-2 pi^2 s^2) bin widths / pi."""
    head = HLGaussHead(50, -10.0, 0.0, smoothing)
    target = torch.linspace(-8, -2, 301)
    histogram = head.histogram(target)
    torch.testing.assert_close(histogram.sum(dim=1), torch.ones(301))
    ripple = 0.2 * torch.exp(torch.tensor(-2 * (torch.pi * smoothing) ** 2)) / torch.pi
    torch.testing.assert_close(histogram @ head.atoms, target, rtol=0, atol=float(ripple) + 1e-5)


def test_histogram_is_the_gaussians_mass_in_each_bin() -> None:
    head = HLGaussHead(4, 0.0, 4.0, 1.0)
    normal = torch.distributions.Normal(1.3, 1.0)
    mass = normal.cdf(torch.arange(5.0)).diff()
    torch.testing.assert_close(head.histogram(torch.tensor([1.3]))[0], mass / mass.sum())


def test_targets_outside_the_range_count_as_its_ends() -> None:
    head = HLGaussHead(20, 0.0, 1.0, 0.75)
    found = head.histogram(torch.tensor([-100.0, 0.0, 1.0, 100.0]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[2], found[3])
    assert found.isfinite().all()


def test_trained_head_has_the_mean_of_a_two_point_target() -> None:
    """Cross-entropy to 0 (70 %) and 1 (30 %) is least at the mixture, whose mean is 0.3."""
    head = C51Head(11, -1.0, 1.0)
    outcomes = torch.zeros(10, 11)
    outcomes[:7, 5] = outcomes[7:, 10] = 1
    logits = torch.zeros(2, 1, 11, requires_grad=True)
    for _ in range(2000):
        loss = classification_loss(logits.expand(2, 10, 11), outcomes, torch.ones(10))
        (slope,) = torch.autograd.grad(loss, logits)
        with torch.no_grad():
            logits -= 2 * slope
    assert head.values(logits).flatten().tolist() == pytest.approx([0.3, 0.3], abs=2e-3)
    entropy = -(0.7 * torch.tensor(0.7).log() + 0.3 * torch.tensor(0.3).log())
    assert float(loss.detach()) == pytest.approx(float(entropy), abs=5e-3)

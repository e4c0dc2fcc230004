"""The encoder: independent of order and padding of trajectories, and of what a step means."""

import pytest
import torch

from loadmaster.models.aware.encoder import TrajectoryEncoder
from loadmaster.models.aware.settings import EncoderSettings

WIDTH, EMBEDDING = 5, 3
LENGTHS = (4, 9, 1, 7)


def encoder_of(kind: str = "gru", bidirectional: bool = True) -> TrajectoryEncoder:
    torch.manual_seed(2)
    settings = EncoderSettings(kind=kind, hidden=8, bidirectional=bidirectional)  # type: ignore[arg-type]
    made = TrajectoryEncoder(settings, WIDTH, EMBEDDING)
    torch.nn.init.constant_(made.out.bias, 0.5)  # so that ReLU hides nothing
    return made.eval()


def trajectories() -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(5)
    return [torch.randn(length, WIDTH, generator=rng) for length in LENGTHS]


KINDS = pytest.mark.parametrize(
    ("kind", "bidirectional"), [("gru", True), ("lstm", True), ("gru", False), ("mean", True)]
)


@KINDS
@torch.no_grad()
def test_order_and_company_of_trajectories_do_not_matter(kind: str, bidirectional: bool) -> None:
    """Each is read by itself, so that padding to the longest has no effect."""
    encoder, given = encoder_of(kind, bidirectional), trajectories()
    together = encoder(given)
    assert together.shape == (len(given), EMBEDDING)
    for place, trajectory in enumerate(given):
        torch.testing.assert_close(encoder([trajectory])[0], together[place])
    torch.testing.assert_close(encoder.embed([given[::-1]]), encoder.embed([given]))
    torch.testing.assert_close(encoder.embed([given])[0], together.mean(0))


@KINDS
@torch.no_grad()
def test_applications_have_any_number_of_trajectories(kind: str, bidirectional: bool) -> None:
    encoder, given = encoder_of(kind, bidirectional), trajectories()
    found = encoder.embed([given[:1], [], given[1:]])
    assert not found[1].any()
    torch.testing.assert_close(found[0], encoder.embed([given[:1]])[0])
    torch.testing.assert_close(found[2], encoder.embed([given[1:]])[0])
    assert not encoder.embed([[], []]).any()


@torch.no_grad()
def test_order_of_steps_matters_to_a_recurrent_network_alone() -> None:
    given = trajectories()[1]
    for kind, matters in (("gru", True), ("lstm", True), ("mean", False)):
        one, other = encoder_of(kind)([given, given.flip(0)])
        assert torch.allclose(one, other, atol=1e-6) != matters


def test_every_weight_has_a_gradient() -> None:
    encoder = encoder_of()
    encoder.embed([trajectories()]).sum().backward()
    for name, weight in encoder.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name

"""The policy's loss where decisions have a different number of agents, and a module's own terms."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ray.rllib.core.columns import Columns

from loadmaster.models.policy import DECISION, ENTROPY, LOSS_TERMS
from loadmaster.platform.rl.learner import InputDrivenLearner
from loadmaster.platform.training.config import Learning

ROWS, AGENTS = 5, 3


class Learner(InputDrivenLearner):
    """The loss alone, without a module."""

    def __init__(self, method: str, terms: tuple[str, ...] = ()) -> None:
        self.config = SimpleNamespace(learning=Learning(method=method))  # type: ignore[arg-type]
        own: Any = SimpleNamespace(loss_terms=terms)
        own.unwrapped = lambda: own
        self._module = {"default_policy": own}

    @property
    def module(self) -> Any:
        return self._module

    def loss(self, batch: Any, output: Any, entropy: float = 0.1) -> tuple[Any, Any]:
        return self._loss("default_policy", batch, output, entropy)


def given() -> tuple[dict[str, Any], torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    recorded, now = torch.randn(ROWS, AGENTS), torch.randn(ROWS, AGENTS)
    now = (recorded + 0.3 * now).requires_grad_()
    batch = {Columns.ADVANTAGES: torch.randn(ROWS), Columns.ACTION_LOGP: recorded}
    return batch, now, torch.rand(ROWS, AGENTS)


@pytest.mark.parametrize("method", ["ppo", "reinforce"])
def test_agents_end_to_end_give_the_loss_of_a_table(method: str) -> None:
    batch, now, entropy = given()
    table, figures = Learner(method).loss(batch, {Columns.ACTION_LOGP: now, ENTROPY: entropy})
    flat = {**batch, Columns.ACTION_LOGP: batch[Columns.ACTION_LOGP].flatten()}
    decision = torch.arange(ROWS).repeat_interleave(AGENTS)
    output = {
        Columns.ACTION_LOGP: now.flatten(),
        ENTROPY: entropy.flatten(),
        DECISION: decision,
    }
    whole, found = Learner(method).loss(flat, output)
    assert float(whole.detach()) == pytest.approx(float(table.detach()), abs=1e-6)
    assert found[:2].tolist() == pytest.approx(figures[:2].tolist(), abs=1e-6)
    assert 0 < float(found[2]) <= float(figures[2])  # the mean agent, not that furthest moved
    by_table, by_row = (torch.autograd.grad(each, now)[0] for each in (table, whole))
    assert torch.allclose(by_table, by_row, atol=1e-7)


def test_decision_with_fewer_agents_has_no_part_in_the_loss_of_the_others() -> None:
    """Without its last agents a decision's loss is the sum over those that are left."""
    batch, now, entropy = given()
    kept = torch.rand(ROWS, AGENTS) < 0.6
    decision = torch.arange(ROWS).repeat_interleave(AGENTS)[kept.flatten()]
    part = {**batch, Columns.ACTION_LOGP: batch[Columns.ACTION_LOGP][kept]}
    output = {Columns.ACTION_LOGP: now[kept], ENTROPY: entropy[kept], DECISION: decision}
    loss, _ = Learner("reinforce").loss(part, output)
    advantage = batch[Columns.ADVANTAGES][:, None]
    expected = -((now * advantage + 0.1 * entropy) * kept).sum() / ROWS
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-6)


def test_terms_of_the_module_are_added_and_reported_by_name() -> None:
    batch, now, entropy = given()
    output: dict[str, Any] = {Columns.ACTION_LOGP: now, ENTROPY: entropy}
    plain, _ = Learner("ppo").loss(batch, output)
    output[LOSS_TERMS] = {"information": torch.tensor(-0.5), "prior": torch.tensor(0.25)}
    loss, found = Learner("ppo", ("prior", "information")).loss(batch, output)
    assert float(loss.detach()) == pytest.approx(float(plain.detach()) - 0.25)
    assert found[3:].tolist() == [0.25, -0.5]

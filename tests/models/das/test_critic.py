"""The critic: pooled, so that order and padding cannot matter."""

from __future__ import annotations

import pytest
import torch

from loadmaster.models.das.network import Actions, Critic
from loadmaster.models.das.settings import DasSettings
from tests.models.das.moments import moments, one_of, usable, with_machines

WAITING = [7, 3, 0]


def critic_of(sees_actions: bool) -> Critic:
    torch.manual_seed(4)
    return Critic(DasSettings(), sees_actions)


def actions(queue: int = 7) -> Actions:
    luck = torch.Generator().manual_seed(3)
    made = torch.randn(3, 7, 7, generator=luck)
    return Actions(made[:, :queue, 6], made[:, :queue, :6])


@pytest.mark.parametrize("sees_actions", [False, True], ids=["V", "Q"])
def test_padding_and_the_order_of_jobs_and_machines_change_nothing(sees_actions: bool) -> None:
    critic, observation, done = critic_of(sees_actions), moments(WAITING), actions()
    worth = critic(observation, done)
    assert worth.shape == (3,)
    assert len(set(worth.tolist())) == 3
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    turned = Actions(done.priority, done.affinity[..., order])
    torch.testing.assert_close(critic(with_machines(observation, order), turned), worth)
    for number, jobs in enumerate(WAITING[:2]):
        shown = Actions(*(table[number : number + 1, :jobs] for table in done))
        torch.testing.assert_close(
            critic(one_of(observation, number, jobs), shown)[0], worth[number]
        )
    queue = torch.tensor([6, 2, 1, 0, 4, 3, 5])
    shuffled = {
        name: table[:, queue] for name, table in observation.items() if table.shape[1:2] == (7,)
    }
    moved = Actions(*(table[:, queue] for table in done))
    torch.testing.assert_close(critic({**observation, **shuffled}, moved), worth)


def test_q_sees_what_is_done_and_v_does_not() -> None:
    observation, done = moments(WAITING), actions()
    fits = usable(observation)
    barred = done._replace(affinity=done.affinity + (~fits).float())
    placed = done._replace(affinity=done.affinity + fits.float())
    ranked = done._replace(priority=done.priority + 1)
    judge, watch = critic_of(True), critic_of(False)
    worth = judge(observation, done)
    assert torch.equal(judge(observation, barred), worth)  # no room there: it decides nothing
    for other in (placed, ranked):
        assert (judge(observation, other) != worth).tolist() == [True, True, False]
        assert torch.equal(watch(observation, other), watch(observation))
    with pytest.raises(ValueError, match="given none"):
        judge(observation)

"""Learning from a log: updates against a reference in plain torch, scales, contexts, bad input."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns
from torch import Tensor

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.models.ddpg.network import DdpgNetwork
from loadmaster.models.ddpg.settings import DdpgSettings
from loadmaster.platform.rl.bcq import CANDIDATES, fit_generator
from loadmaster.platform.rl.iql import IqlUpdate
from loadmaster.platform.rl.offline import (
    OfflineLearner,
    Scales,
    actor_actions,
    make_module,
    make_update,
    train_offline,
)
from loadmaster.platform.rl.offline_settings import OfflineSettings
from loadmaster.platform.rl.transitions import Description, Episode, Transitions

OBSERVATION, ACTION, ROWS = 4, 2, 16
SMALL = {"network": {"actor": [16], "critic": [16]}}


def settings(algorithm: str, **given: Any) -> OfflineSettings:
    return build_settings(OfflineSettings, {**SMALL, "algorithm": algorithm, **given})


def bandit(steps: int = 400, context: int = 0, seed: int = 0) -> Transitions:
    """Rewards by the first number of the action alone, which is best at 0.5; noise around 0.2."""
    rng = np.random.default_rng(seed)
    actions = np.clip(0.2 + 0.3 * rng.standard_normal((steps, ACTION)), -1, 1)
    observations = 5 + 3 * rng.standard_normal((steps + 1, OBSERVATION))
    return Transitions.of_episodes(
        [
            Episode(
                observations.astype(np.float32),
                actions.astype(np.float32),
                10 - 20 * (actions[:, 0] - 0.5) ** 2,
                contexts=np.ones((steps, context), np.float32) if context else None,
            )
        ],
        Description.unnamed("bandit", OBSERVATION, ACTION, context),
    )


def batch_of(count: int) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(1)
    return {
        Columns.OBS: torch.randn(ROWS, OBSERVATION, generator=rng),
        Columns.ACTIONS: torch.rand(ROWS, ACTION, generator=rng) * 2 - 1,
        Columns.REWARDS: torch.randn(ROWS, generator=rng),
        Columns.NEXT_OBS: torch.randn(ROWS, OBSERVATION, generator=rng),
        Columns.TERMINATEDS: (torch.rand(ROWS, generator=rng) < 0.3).float(),
        CANDIDATES: torch.rand(ROWS, count, ACTION, generator=rng) * 2 - 1,
    }


def test_iql_follows_the_gradients_of_its_losses() -> None:
    """One update against autograd and torch.optim, written from the paper."""
    chosen = settings("iql", iql={"expectile": 0.7, "temperature": 2.0, "most_weight": 3.0})
    torch.manual_seed(0)
    module = make_module(bandit(), chosen)
    for table in module.network.parameters():
        torch.nn.init.normal_(table, std=0.4)
    module.make_target_networks()
    update, batch = make_update(module, chosen), batch_of(1)
    assert isinstance(update, IqlUpdate)
    network, target = copy.deepcopy(module.network), module.target_network
    value = copy.deepcopy(update.value)
    rate = chosen.critic_learning_rate
    o, a, r, n, d = (
        batch[name]
        for name in (
            Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.NEXT_OBS, Columns.TERMINATEDS,
        )
    )  # fmt: skip
    advantage = (target.value(o, a).min(0).values - value(o)[0, :, 0]).detach()
    following = value(n)[0, :, 0].detach()
    u = target.value(o, a).min(0).values.detach() - value(o)[0, :, 0]
    losses = {
        "value": ((0.7 - (u < 0).float()).abs() * u.square()).mean(),
        "critic": (network.value(o, a) - (r + 0.99 * (1 - d) * following)).square().mean(1).sum(),
        "actor": (
            (2 * advantage).exp().clamp(max=3)[:, None] * (network.act(o) - a).square()
        ).sum(1).mean(),
    }  # fmt: skip
    parts = {"value": value, "critic": network.critic, "actor": network.actor}
    for name, loss in losses.items():
        adam = torch.optim.Adam(parts[name].parameters(), rate)
        loss.backward()
        adam.step()
        adam.zero_grad()
    with torch.no_grad():
        update.critic(batch)
        update.actor(batch)
    for mine, other in ((update.value, value), (module.network, network)):
        for name, table in other.state_dict().items():
            assert torch.allclose(mine.state_dict()[name], table, atol=1e-5), name


def test_bcq_takes_the_best_candidate() -> None:
    chosen = settings("bcq", bcq={"perturbation": 0.0}, gradient_clip=1.0)
    torch.manual_seed(0)
    module = make_module(bandit(), chosen)
    for table in module.network.parameters():
        torch.nn.init.normal_(table, std=0.4)
    module.make_target_networks()
    update, batch = make_update(module, chosen), batch_of(5)
    target, network = module.target_network, copy.deepcopy(module.network)
    n, candidates = batch[Columns.NEXT_OBS], batch[CANDIDATES]
    values = torch.stack([target.value(n, candidates[:, place]) for place in range(5)], 2)
    mixed = 0.75 * values.min(0).values + 0.25 * values.max(0).values  # eq. 13
    following = mixed.max(1).values * (1 - batch[Columns.TERMINATEDS])
    wanted = batch[Columns.REWARDS] + 0.99 * following
    loss = (network.value(batch[Columns.OBS], batch[Columns.ACTIONS]) - wanted).square()
    best = candidates[torch.arange(ROWS), mixed.argmax(1)]
    imitation = (network.act(n) - best).square().sum(1).mean()
    with torch.no_grad():
        found, _ = update.critic(batch)
        assert found.item() == pytest.approx(loss.mean(1).sum().item(), rel=1e-4)
        assert update.actor(batch).item() == pytest.approx(imitation.item(), rel=1e-4)


def test_generator_imitates_state_and_spread() -> None:
    rng = torch.Generator().manual_seed(0)
    states = torch.rand(2000, 1, generator=rng) * 2 - 1
    actions = (0.6 * states + 0.1 * torch.randn(2000, 1, generator=rng)).clamp(-1, 1)
    chosen = settings("bcq", bcq={"generator_updates": 800, "candidates": 50})
    torch.manual_seed(0)
    found = fit_generator(states, actions, chosen, rng).candidates(states, rng)
    assert (found.mean(1) - 0.6 * states).abs().mean() < 0.05
    assert found.std(1).mean().item() == pytest.approx(0.1, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["iql", "bcq"])
def test_best_logged_actions_are_found_from_one_episode(algorithm: str) -> None:
    log = bandit()
    fast = {"updates": 1500, "bcq": {"generator_updates": 500}, "gamma": 0.5}
    network = train_offline(log, settings(algorithm, **fast))
    actions = actor_actions(network)(log.observations, None)
    assert 0.3 < actions[:, 0].mean() < 0.7  # 0.2 was logged, 0.5 is best
    assert abs(actions[:, 1].mean() - 0.2) < 0.2  # of no matter
    # Values are in the units of rewards: between the logged behaviour's and the best action's.
    with torch.no_grad():
        values = network.value(torch.from_numpy(log.observations), torch.from_numpy(actions))
    assert log.mean_reward / 0.5 + 1 < values.mean().item() < 10 / 0.5 + 1


def test_seed_decides_and_contexts_are_taken() -> None:
    log, chosen = bandit(context=3), settings("iql", updates=20)
    one, again, other = (
        train_offline(log, chosen.model_copy(update={"seed": seed})) for seed in (1, 1, 2)
    )
    assert one.settings.context == 3
    act = [
        actor_actions(network)(log.observations, log.contexts) for network in (one, again, other)
    ]
    assert np.array_equal(act[0], act[1])
    assert not np.array_equal(act[0], act[2])


def test_scales_fold_and_unfold_exactly() -> None:
    log = bandit()
    network = DdpgNetwork(
        DdpgSettings(observation=OBSERVATION, action=ACTION, actor=(8,), critic=(8,), critics=2)
    )
    raw, scales = torch.from_numpy(log.observations), Scales.of(log, gamma=0.9)
    scaled, actions = (raw - scales.mean) / scales.spread, torch.from_numpy(log.actions)
    with torch.no_grad():
        acted, valued = network.act(scaled), network.value(scaled, actions)
        scales.fold(network)
        assert torch.allclose(network.act(raw), acted, atol=1e-4)
        in_units = scales.reward_mean / 0.1 + scales.reward_spread * valued
        assert torch.allclose(network.value(raw, actions), in_units, atol=1e-3)
        scales.unfold(network)
        assert torch.allclose(network.act(scaled), acted, atol=1e-4)


def test_training_continues_from_a_network() -> None:
    log = bandit()
    first = train_offline(log, settings("iql", updates=50))
    still = settings("iql", updates=1, actor_learning_rate=1e-9)
    again = train_offline(log, still, initial=first)
    acted = (actor_actions(network)(log.observations, None) for network in (first, again))
    assert np.allclose(*acted, atol=1e-4)
    wider = settings("iql", updates=1, network={"actor": [8], "critic": [8]})
    with pytest.raises(InputError, match="initial network"):
        train_offline(log, wider, initial=first)


@pytest.mark.parametrize(
    "given",
    [
        {"algorithm": "sac"},
        {"gamma": 1.0},
        {"iql": {"expectile": 0.4}},
        {"bcq": {"perturbation": 3}},
        {"updates": 0},
        {"network": {"critics": 3}},
    ],
)
def test_bad_settings_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        build_settings(OfflineSettings, given)


def test_rewards_keep_their_sign_where_episodes_terminate() -> None:
    log = replace(bandit(), terminated=np.arange(400) == 399)
    assert Scales.of(log, 0.9).reward_mean == 0


def test_what_hardly_varies_is_not_magnified() -> None:
    log = bandit()
    log.observations[:, 0] = 0.8 + 0.001 * log.observations[:, 0]
    plain, limited = (Scales.of(log, 0.9, least).spread[0].item() for least in (0.0, 0.1))
    assert plain < 0.01
    assert limited == pytest.approx(0.08, rel=0.01)


def test_learner_goes_on_with_a_longer_log() -> None:
    log, chosen = bandit(), settings("iql", updates=20)
    learner = OfflineLearner(log, chosen)
    for _ in range(2):
        learner.learn(log, 10)
    assert learner.updates == 20
    acted = learner.actions(log.observations, None)
    whole = OfflineLearner(log, chosen)
    whole.learn(log, 20)
    assert not np.array_equal(acted, OfflineLearner(log, chosen).actions(log.observations, None))
    assert acted.shape == log.actions.shape
    at_once = train_offline(log, chosen)
    folded = actor_actions(at_once)(log.observations, None)
    assert np.allclose(whole.actions(log.observations, None), folded, atol=1e-4)

"""DecimaModule alone, and in RLlib's own sampling loop."""

from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from torch.utils.data import default_collate

import loadmaster.envs  # noqa: F401 (registers the environment)
from loadmaster.envs.dag_scheduling import observation as obs_cols
from loadmaster.envs.dag_scheduling.env import DagSchedulingEnv
from loadmaster.models.decima.module import DecimaModule
from loadmaster.models.policy import ENTROPY

pytestmark = pytest.mark.slow

EXECUTORS = 6
SETTINGS: dict[str, Any] = {
    "workload": "toy", "jobs": 3, "executors": EXECUTORS,
    "max_jobs": 3, "max_stages": 14, "max_edges": 16,
}  # fmt: skip


def module_of(executors: int = EXECUTORS, **network: Any) -> DecimaModule:
    torch.manual_seed(4)
    sizes = {"network": network, "limits": executors}
    module = DecimaModule(observation_space=None, action_space=None, model_config=sizes)
    if module.network.settings.prior is not None:
        # Last layers of 0 would hide the layers before them from comparisons.
        for head in (module.network.score_stage, module.network.score_limit):
            torch.nn.init.normal_(head[-1].weight)
    return module


def moments(count: int = 12) -> list[dict[str, Any]]:
    """The first observation of several episodes."""
    env = DagSchedulingEnv(**SETTINGS)
    return [env.reset(seed=seed)[0] for seed in range(count)]


def batch_of(observations: list[dict[str, Any]]) -> dict[str, Any]:
    return {Columns.OBS: default_collate(observations)}


@pytest.mark.parametrize("network", [{}, {"limits": False}, {"graph": False}, {"prior": {}}])
def test_forward_train_gives_the_probability_of_sampled_actions(network: dict[str, Any]) -> None:
    module, observations = module_of(**network), moments()
    batch = batch_of(observations)
    for decided in (module.forward_exploration(batch), module.forward_inference(batch)):
        actions, log = decided[Columns.ACTIONS], decided[Columns.ACTION_LOGP]
        assert actions.dtype == torch.int64
        trained = module.forward_train({**batch, Columns.ACTIONS: actions})
        torch.testing.assert_close(trained[Columns.ACTION_LOGP], log)
        assert trained[Columns.ACTION_LOGP].requires_grad
        for one, (row, limit) in zip(observations, actions.tolist(), strict=True):
            assert one["schedulable"][row] == 1
            lowest = one["jobs"][one["stage_job"][row], obs_cols.MIN_LIMIT]
            assert lowest <= limit <= EXECUTORS


def test_entropy_equals_enumeration() -> None:
    module, observation = module_of(), moments(1)[0]
    stage_logs: dict[int, float] = {}
    for row in np.flatnonzero(observation["schedulable"][:-1]):
        low = max(1, int(observation["jobs"][observation["stage_job"][row], obs_cols.MIN_LIMIT]))
        limits = np.arange(low, EXECUTORS + 1)
        batch = batch_of([observation] * len(limits))
        batch[Columns.ACTIONS] = torch.tensor([[row, limit] for limit in limits])
        with torch.no_grad():
            trained = module.forward_train(batch)
        joint = trained[Columns.ACTION_LOGP].double().numpy()
        stage_logs[row] = float(np.log(np.exp(joint).sum()))
        of_limits = joint - stage_logs[row]
        limit_entropy = -(np.exp(of_limits) * of_limits).sum()
        stage_entropy = float(trained[ENTROPY][0]) - limit_entropy
    logs = np.array(list(stage_logs.values()))
    assert np.exp(logs).sum() == pytest.approx(1, abs=1e-5)
    assert stage_entropy == pytest.approx(-(np.exp(logs) * logs).sum(), abs=1e-5)


def test_observation_after_the_end_does_not_change_others() -> None:
    """RLlib passes the last observation too, and discards the action."""
    module, observations = module_of(), moments(3)
    over = {name: np.zeros_like(table) for name, table in observations[0].items()}
    over["cluster"][obs_cols.TOTAL_EXECUTORS] = EXECUTORS
    assert module.forward_exploration(batch_of([over]))[Columns.ACTIONS].shape == (1, 2)
    alone = module.forward_inference(batch_of(observations))[Columns.ACTION_LOGP]
    mixed = module.forward_inference(batch_of([observations[0], over, *observations[1:], over]))
    torch.testing.assert_close(mixed[Columns.ACTION_LOGP][[0, 2, 3]], alone)


def test_rllib_env_runner_samples_legal_actions() -> None:
    config = PPOConfig()
    config.environment("loadmaster/DagScheduling-v0", env_config=SETTINGS)
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=3)
    spec = RLModuleSpec(module_class=DecimaModule, model_config=module_of().model_config)
    runner = SingleAgentEnvRunner(config=config.rl_module(rl_module_spec=spec))
    episodes = runner.sample(num_timesteps=60)
    learner = module_of()
    learner.set_state(runner.module.get_state())
    runner.stop()
    assert sum(len(episode) for episode in episodes) >= 60
    assert any(episode.is_terminated for episode in episodes)
    for episode in episodes:
        assert all(info["legal"] for info in episode.get_infos()[1:])
        tables = episode.get_observations()
        batch = {Columns.OBS: {name: torch.as_tensor(tables[name][:-1]) for name in tables}}
        batch[Columns.ACTIONS] = torch.as_tensor(episode.get_actions())
        trained = learner.forward_train(batch)[Columns.ACTION_LOGP].detach().numpy()
        logs = episode.get_extra_model_outputs(Columns.ACTION_LOGP)
        np.testing.assert_allclose(trained, logs, atol=1e-5, rtol=0)

"""Contract of all registered environments.

Multi-agent environments are wrapped in `JointAgent`, so the same tests apply.
"""

import copy
import inspect
import pickle
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import SyncVectorEnv
from pettingzoo.test import parallel_api_test, parallel_seed_test

from loadmaster.envs.registry import EnvironmentSpec, environments


class Preempting(EnvironmentSpec):
    """GPU scheduling with `preempt=True`, which has more decisions."""

    def make(self, **settings: Any) -> Any:
        return super().make(preempt=True, **settings)

    def make_vec(self, num_envs: int, **settings: Any) -> Any:
        return super().make_vec(num_envs, preempt=True, **settings)


class Guided(EnvironmentSpec):
    """GPU scheduling in which actions correct a rule."""

    def make(self, **settings: Any) -> Any:
        return super().make(guide="predicted-speed-price", **settings)

    def make_vec(self, num_envs: int, **settings: Any) -> Any:
        return super().make_vec(num_envs, guide="predicted-speed-price", **settings)


def specs() -> list[EnvironmentSpec]:
    found = environments()
    scheduling = vars(found["gpu_scheduling"])
    return [
        *found.values(),
        Preempting(**{**scheduling, "name": "gpu_scheduling-preempt"}),
        Guided(**{**scheduling, "name": "gpu_scheduling-guide"}),
    ]


pytestmark = [
    pytest.mark.slow,
    # Gymnasium's passive checks emit warnings; garbage of other tests may be collected here too.
    pytest.mark.filterwarnings("error", "default::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.parametrize("spec", specs(), ids=lambda spec: spec.name),
]

SECTIONS = ["Description", "Action", "Observation", "Reward", "Episode end", "Arguments"]
MANY_STEPS = 20_000  # more than any episode of a default environment takes

Step = tuple[Any, float, bool, bool, dict[str, Any]]


class JointAgent(gymnasium.Env[Any, Any]):
    """Agents with equal observations and rewards as one agent with all their actions."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space = env.observation_space(env.possible_agents[0])
        self.action_space = gymnasium.spaces.Dict(
            {agent: env.action_space(agent) for agent in env.possible_agents}
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        observations, infos = self.env.reset(seed=seed, options=options)
        assert self.env.agents == self.env.possible_agents
        return self._common(observations), self._common(infos)

    def step(self, action: Any) -> Step:
        outcome = [self._common(each) for each in self.env.step(action)]
        _, _, terminated, truncated, _ = outcome
        assert self.env.agents == ([] if terminated or truncated else self.env.possible_agents)
        return tuple(outcome)

    def result(self) -> Any:
        return self.env.result()

    def _common(self, by_agent: dict[str, Any]) -> Any:
        assert list(by_agent) == self.env.possible_agents
        first, *others = by_agent.values()
        for other in others:
            assert_same(first, other)
        return first


def make(spec: EnvironmentSpec) -> gymnasium.Env[Any, Any]:
    return JointAgent(spec.make()) if spec.multi_agent else gymnasium.make(spec.gym_id)


def play(
    env: gymnasium.Env[Any, Any], spec: EnvironmentSpec, rng: Any, seen: Any, steps: int
) -> list[Step]:
    """Take up to `steps` legal steps from the observation `seen`; fewer if the episode ends."""
    taken: list[Step] = []
    while len(taken) < steps:
        taken.append(env.step(spec.sample_legal_action(seen, rng)))
        seen, _, terminated, truncated, _ = taken[-1]
        if terminated or truncated:
            break
    return taken


def assert_same(one: Any, other: Any) -> None:
    assert data_equivalence(one, other, exact=True)


def test_library_checkers_pass(spec: EnvironmentSpec) -> None:
    if spec.multi_agent:
        parallel_api_test(spec.make(), num_cycles=500)
        parallel_seed_test(spec.make, num_cycles=50)
    else:
        check_env(make(spec).unwrapped)


@pytest.mark.parametrize("legal", [True, False], ids=["legal", "any"])
def test_actions_reach_end_of_episode(spec: EnvironmentSpec, legal: bool) -> None:
    """Illegal actions are reported in `info`; steps do not overwrite earlier observations."""
    env = make(spec)
    rng = np.random.default_rng(0)
    env.action_space.seed(0)
    seen = first = env.reset(seed=3)[0]
    kept = copy.deepcopy(first)
    assert env.observation_space.contains(seen)
    for _ in range(MANY_STEPS):
        action = spec.sample_legal_action(seen, rng) if legal else env.action_space.sample()
        assert env.action_space.contains(action)
        seen, reward, terminated, truncated, info = env.step(action)
        assert env.observation_space.contains(seen)
        assert np.isfinite(reward)
        assert isinstance(info["legal"], bool)
        assert info["legal"] or not legal
        if terminated or truncated:
            assert_same(first, kept)
            return
    pytest.fail(f"no end after {MANY_STEPS} steps")


def test_seed_determines_episodes(spec: EnvironmentSpec) -> None:
    def episodes(env: gymnasium.Env[Any, Any], seed: int) -> list[Any]:
        """The first episode of the seed, and the starts of the next two."""
        seen, info = env.reset(seed=seed)
        first = (seen, info), *play(env, spec, np.random.default_rng(1), seen, 200)
        return [first, env.reset(), env.reset()]

    env, other = make(spec), make(spec)
    of_7, of_8 = episodes(env, 7), episodes(env, 8)
    assert_same(of_7, episodes(other, 7))
    assert_same(of_7, episodes(env, 7))  # independent of earlier episodes
    assert not data_equivalence(of_7[0], of_8[0], exact=True)
    assert not data_equivalence(of_7[1], of_7[2], exact=True)


def test_step_outside_an_episode_is_refused(spec: EnvironmentSpec) -> None:
    env: Any = make(spec).unwrapped
    for call in (lambda: env.step(env.action_space.sample()), env.result):
        with pytest.raises(gymnasium.error.ResetNeeded):
            call()
    last = play(env, spec, np.random.default_rng(1), env.reset(seed=3)[0], MANY_STEPS)[-1]
    assert last[2] or last[3]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(env.action_space.sample())
    assert env.result().seed == 3


@pytest.mark.parametrize(
    "duplicate",
    [lambda env: pickle.loads(pickle.dumps(env)), copy.deepcopy],
    ids=["pickled", "deep copied"],
)
def test_copy_made_within_episode_continues_alike(spec: EnvironmentSpec, duplicate: Any) -> None:
    env = make(spec)
    seen, _ = env.reset(seed=5)
    seen = play(env, spec, np.random.default_rng(0), seen, 60)[-1][0]
    twin = duplicate(env)
    rest = play(env, spec, np.random.default_rng(1), seen, MANY_STEPS)
    assert rest[-1][2] or rest[-1][3]
    # The twin runs last, so a shared table would show.
    assert_same(rest, play(twin, spec, np.random.default_rng(1), seen, MANY_STEPS))
    assert_same(env.reset(), twin.reset())


def test_vector_env_equals_single_environments(spec: EnvironmentSpec) -> None:
    """Step by step and in their results, across the ends of episodes."""
    vector, singles = spec.make_vec(3), SyncVectorEnv([lambda: make(spec)] * 3)
    assert vector.metadata["autoreset_mode"] == singles.metadata["autoreset_mode"]
    for space in ("action_space", "observation_space"):
        for name in (space, f"single_{space}"):
            assert getattr(vector, name) == getattr(singles, name)
    rng = np.random.default_rng(0)
    vector.action_space.seed(0)
    seen = vector.reset(seed=20)[0]
    assert_same(seen, singles.reset(seed=20)[0])
    over, ends = np.zeros(3, bool), np.zeros(3, int)
    for _ in range(MANY_STEPS):
        actions = vector.action_space.sample()
        for i in np.flatnonzero(~over):  # finished ones ignore their actions
            action = spec.sample_legal_action({name: seen[name][i] for name in seen}, rng)
            if spec.multi_agent:
                for agent, own in action.items():
                    actions[agent][i] = own
            else:
                actions[i] = action
        seen, *outcome, info = vector.step(actions)
        expected, *expected_outcome, expected_info = singles.step(actions)
        assert_same(seen, expected)
        for one, other in zip(outcome, expected_outcome, strict=True):  # rewards, ends
            np.testing.assert_array_equal(one, other)
        if "_legal" in expected_info:  # not if all have just begun
            given = expected_info["_legal"]
            np.testing.assert_array_equal(info["legal"][given], expected_info["legal"][given])
        over = outcome[1] | outcome[2]
        for i in np.flatnonzero(over):
            assert_same(vars(vector.result(i)), vars(singles.envs[i].unwrapped.result()))
        ends += over
        if ends.all() and not over.any():
            return
    pytest.fail(f"not all environments reached an end in {MANY_STEPS} steps")


@pytest.mark.parametrize("copied", [True, False])
def test_vector_observations_are_views_without_copy(spec: EnvironmentSpec, copied: bool) -> None:
    vector = spec.make_vec(2, copy=copied)
    seen, rewards, *_ = vector.step(vector.action_space.sample())  # starts the episodes
    assert rewards.tolist() == [0, 0]
    kept = copy.deepcopy(seen)
    vector.step(vector.action_space.sample())
    assert data_equivalence(kept, seen, exact=True) is copied


def test_docstring_has_all_sections(spec: EnvironmentSpec) -> None:
    page = inspect.getdoc(type(spec.make().unwrapped)) or ""
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == [*SECTIONS, "Version history"]
    for text in re.split(r"^## .*$", page, flags=re.MULTILINE):
        assert text.strip(), "empty section"
    assert re.search(r"^v\d+: ", page, re.MULTILINE)

"""The compiled agents against the network in torch."""

from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns

from loadmaster.envs.compiled import compiled
from loadmaster.envs.gpu_scheduling.actions import ORDERING, PLACEMENT
from loadmaster.envs.gpu_scheduling.features import JOB_FEATURES, MACHINE_FEATURES, PRICE, SPEED
from loadmaster.envs.gpu_scheduling.observation import Observation
from loadmaster.envs.gpu_scheduling.vector_env import GpuSchedulingVectorEnv
from loadmaster.models.das import compiled as kernels
from loadmaster.models.das import compiled_process
from loadmaster.models.das.gaussian_process import RandomWalkProcess, read_history
from loadmaster.models.das.heuristic_init import LOG_TAU, pair_features
from loadmaster.models.das.module import DasModule
from loadmaster.models.das.settings import DasSettings
from loadmaster.models.keyed_random import RNG_KEY
from tests.models.das.builders import VARIANTS, heads_of, module_of, observations

pytestmark = pytest.mark.slow

QUEUE = 11
SIZES: dict[str, dict[str, Any]] = VARIANTS | {
    "odd sizes": {"width": 10, "heads": 5, "layers": 3, "kind_width": 3, "tau": 3},
    "one head": {"width": 12, "heads": 1, "layers": 1, "kind_width": 1, "opening": "nothing"},
}
Tables = dict[str, Any]


def observation(jobs: int, machines: int = 6, seed: int = 0) -> Tables:
    """Every third job fits nowhere."""
    batch = observations([jobs], machines, QUEUE, seed)
    batch["held"][:, ::3] = 0
    return {name: (table if name == "rack" else table[0]).numpy() for name, table in batch.items()}


@torch.no_grad()
def torch_actions(module: DasModule, seen: Tables, key: int | None) -> tuple[Any, Any, Any]:
    """Priorities, affinities and log-probabilities of the torch network."""
    batch = {Columns.OBS: {name: torch.as_tensor(table)[None] for name, table in seen.items()}}
    if key is None:
        found = module.forward_inference(batch) | {Columns.ACTION_LOGP: torch.zeros(1, 2)}
    else:
        found = module.forward_exploration({**batch, RNG_KEY: torch.tensor([key])})
    actions = found[Columns.ACTIONS]
    return actions[ORDERING][0], actions[PLACEMENT][0], found[Columns.ACTION_LOGP][0]


def decided(
    module: DasModule, seen: Tables, key: int | None, weights: kernels.Weights | None = None
) -> kernels.Workspace:
    view = Observation(**{name: np.ascontiguousarray(table) for name, table in seen.items()})
    sizes = len(view.jobs), len(view.machines), len(view.history_t)
    work = kernels.workspace_for(module.network.settings, *sizes)
    for table in (work.priority, work.affinity, work.log_prob):
        table.fill(7)  # leftovers of an earlier decision
    weights = weights or kernels.weights_of(module.network)
    kernels.decide(view, weights, work, key is not None, key or 0)
    return work


def assert_same(module: DasModule, seen: Tables) -> None:
    used = int(seen["job_mask"].sum())
    for key in (None, 5, -(2**62)):
        priority, affinity, log_prob = torch_actions(module, seen, key)
        work = decided(module, seen, key)
        np.testing.assert_allclose(work.priority[:used], priority[:used], atol=2e-5)
        np.testing.assert_allclose(work.affinity[:used], affinity[:used], atol=2e-5)
        np.testing.assert_allclose(work.log_prob, log_prob, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", SIZES)
def test_actions_equal_torch(name: str) -> None:
    module = module_of(**SIZES[name], gain=2.0)
    for jobs, machines in ((1, 6), (4, 1), (8, 2), (9, 3), (QUEUE, 8), (QUEUE, 33)):
        seen = observation(jobs, machines, seed=jobs)
        seen["held"][2] = 1
        assert_same(module, seen)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("observed", [True, False])
def test_affinity_std_equals_torch(name: str, observed: bool) -> None:
    module, machines = module_of(**SIZES[name]), np.arange(9)[::-1]
    seen = observation(QUEUE, 9, seed=3)
    seen["held"][[2, 7]] = 1
    seen["history_mask"] &= observed
    batch = {table: torch.as_tensor(seen[table])[None] for table in seen}
    with torch.no_grad():
        placements = module.network(batch)[1]
        expected = placements.affinities.std.float().numpy()
    view, work = Observation(**seen), decided(module, seen, None)
    weights, found = kernels.weights_of(module.network), np.zeros(9, np.float32)
    for place, row in enumerate(placements.row.tolist()):
        kernels.affinity_std(view, row, machines.copy(), weights, work, np.zeros((9, 9)), found)
        np.testing.assert_allclose(found, expected[place, machines], rtol=1e-5)
    assert len(expected) > 2


@pytest.mark.parametrize("name", ["DA", "DAS"])
def test_observations_without_jobs_room_or_history_equal_torch(name: str) -> None:
    module = module_of(**SIZES[name])
    empty, full, unobserved, once = (observation(jobs, seed=2) for jobs in (0, 5, 5, 5))
    full["held"][:] = 0
    unobserved["held"][1] = 1
    unobserved["history_mask"][:] = False
    once["history_mask"][:] = np.arange(8)[:, None] == 3
    for seen in (empty, full, unobserved, once):
        assert_same(module, seen)
    assert (decided(module, empty, 1).log_prob == 0).all()
    assert decided(module, full, 1).log_prob[1] == 0
    assert decided(module, unobserved, 1).log_prob[1] != 0


def test_observations_of_environment_equal_torch() -> None:
    """Placing and reconsidering, with equal machines."""
    module = module_of(width=16, heads=4, layers=2)
    vector = GpuSchedulingVectorEnv(4, preempt=True, jobs=60, max_queue=20)
    seen, _ = vector.reset(seed=2)
    rng = np.random.default_rng(0)
    placing = set()
    for step in range(40):
        priority = rng.standard_normal((4, 20), np.float32)
        affinity = rng.standard_normal((4, 20, 8), np.float32)
        seen, *_ = vector.step({ORDERING: priority, PLACEMENT: affinity})
        if step % 4 == 3:
            for i in range(4):
                own = {name: table[i] for name, table in seen.items()}
                assert_same(module, own)
                if own["heeded"].any():
                    placing.add(bool(own["held"].any()))
    assert placing == {True, False}


@pytest.mark.parametrize(("name", "all_linear"), [("DA", True), ("DA+MC", True), ("DAS", False)])
def test_layers_are_skipped_while_heads_are_zero(name: str, all_linear: bool) -> None:
    """With the process, phi is not zero, so that placement layers always count."""
    module, seen = module_of(0, **SIZES[name]), observation(9, seed=9)
    for head in heads_of(module.network):
        torch.nn.init.normal_(head.bias, std=0.3)
    weights = kernels.weights_of(module.network)
    assert weights.ordering.is_linear
    assert weights.placement.is_linear == all_linear
    assert_same(module, seen)
    ordering, placement = (
        part._replace(is_linear=False) for part in (weights.ordering, weights.placement)
    )
    unskipped = weights._replace(ordering=ordering, placement=placement)
    for key in (None, 5):
        skipped, full = decided(module, seen, key), decided(module, seen, key, unskipped)
        np.testing.assert_allclose(skipped.priority, full.priority, atol=1e-6)
        np.testing.assert_allclose(skipped.affinity, full.affinity, atol=1e-6)
        np.testing.assert_allclose(skipped.log_prob, full.log_prob, rtol=1e-6)
    for head in heads_of(module.network):
        torch.nn.init.normal_(head.weight, std=0.3)
        assert_same(module, seen)
    weights = kernels.weights_of(module.network)
    assert not weights.ordering.is_linear
    assert not weights.placement.is_linear


def test_pair_features_equal_torch() -> None:
    """With speeds from 0 to 2."""
    module, seen = module_of(process=False), observation(1, machines=9)
    rng = np.random.default_rng(6)
    seen["held"][0] = [1, *rng.choice([0.0, 0.5, 1.0], 8)]
    for _ in range(20):
        seen["jobs"][0] = rng.uniform(0, 8, JOB_FEATURES)
        seen["machines"][:, SPEED] = [0, *rng.uniform(0.1, 2, 8)]
        seen["machines"][:, PRICE] = [0, *rng.uniform(0.1, 4, 8)]
        job = (seen["jobs"][0], seen["machines"], seen["held"][0], seen["rack_held"][0])
        expected = pair_features(*(torch.as_tensor(t)[None] for t in (*job, seen["rack"])))
        found = decided(module, seen, None).placement.inputs[MACHINE_FEATURES:, :9]
        np.testing.assert_allclose(found, expected[0].T, rtol=1e-5, atol=1e-5)


def test_unused_rows_are_not_read() -> None:
    module, seen = module_of(**SIZES["DAS"]), observation(5, seed=4)
    work = decided(module, seen, 9)
    seen["jobs"][5:], seen["held"][5:], seen["rack_held"][5:] = np.nan, np.nan, np.nan
    other = decided(module, seen, 9)
    np.testing.assert_array_equal(work.priority[:5], other.priority[:5])
    np.testing.assert_array_equal(work.affinity[:5], other.affinity[:5])
    np.testing.assert_array_equal(work.log_prob, other.log_prob)
    assert (other.priority[5:] == 7).all()


@compiled
def compiled_posterior(
    view: Observation, kinds: Any, standard: Any, weights: Any, work: Any
) -> float:
    compiled_process.load_history(view, weights, work)
    return compiled_process.posterior(kinds, view.rack, standard, kernels.SAMPLES, weights, work)


@pytest.mark.parametrize("machines", [1, 2, 8, 40])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.7, 1.0])  # of past decisions observed
@pytest.mark.parametrize("kinds", [40, 3])  # with machines of 3 kinds, eigenvalues coincide
@pytest.mark.parametrize("walk", [0.7, 0.99])
def test_compiled_posterior_equals_torch(
    machines: int, share: float, kinds: int, walk: float
) -> None:
    settings = DasSettings(tau=4, walk=walk, noise=0.01, gain=2.0, memory_s=300, length=1.5)
    process, rng = RandomWalkProcess(settings), np.random.default_rng(7)
    seen = observation(1, machines, seed=machines)
    seen["history_mask"] = rng.random(seen["history_y"].shape) < share
    view = Observation(**seen)
    kind = rng.normal(size=(machines, 5)).astype(np.float32)[np.arange(machines) % kinds]
    standard = rng.normal(size=machines).astype(np.float32)
    work = compiled_process.process_workspace(machines, len(view.history_t))
    weights = compiled_process.process_weights(process)
    half_log = compiled_posterior(view, np.ascontiguousarray(kind.T), standard, weights, work)
    history = (view.history_y, view.history_mask, view.history_t)
    y, mask, age = (torch.as_tensor(table)[None] for table in history)
    with torch.no_grad():
        expected = process(
            torch.zeros(1, machines),
            torch.as_tensor(view.machines[None, :, SPEED]),
            torch.zeros(1),
            torch.as_tensor(kind)[None],
            torch.as_tensor(view.rack)[None],
            read_history(y, mask, age, settings.tau),
            torch.zeros(1, dtype=torch.long),
        )
        drawn = expected.sample(torch.as_tensor(standard)[None]) - expected.mean
        log_root = expected.entropy() - machines * (1 + LOG_TAU) / 2
    found = work.result.reshape(machines, 2)
    np.testing.assert_allclose(weights.gain * found[:, 0], expected.mean[0], atol=1e-9)
    np.testing.assert_allclose(found[:, 1], drawn[0], atol=1e-9)
    assert half_log == pytest.approx(float(log_root), abs=1e-9)

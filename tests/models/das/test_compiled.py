"""The compiled agents decide as the network in torch does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns

from loadmaster.envs.gpu_scheduling.actions import ORDERING, PLACEMENT
from loadmaster.envs.gpu_scheduling.features import JOB_FEATURES, MACHINE_FEATURES, PRICE, SPEED
from loadmaster.envs.gpu_scheduling.observation import Observation
from loadmaster.envs.gpu_scheduling.vector_env import GpuSchedulingVectorEnv
from loadmaster.models.das.compiled import (
    Weights,
    Workspace,
    decide,
    is_supported,
    weights_of,
    workspace_for,
)
from loadmaster.models.das.compiled_event import doubts
from loadmaster.models.das.heuristic_init import pair_features
from loadmaster.models.das.module import DasModule
from loadmaster.models.das.network import DasNetwork
from loadmaster.models.das.settings import DasSettings
from loadmaster.models.keyed_random import RNG_KEY

QUEUE, PAST = 11, 5
SIZES: dict[str, dict[str, Any]] = {
    "DA": {"communicate": False, "process": False},
    "DA+MC": {"process": False},
    "DA+RWGP": {"communicate": False},
    "DAS": {},
    "odd sizes": {"width": 10, "heads": 5, "layers": 3, "kind_width": 3, "tau": 3},
    "one head": {"width": 12, "heads": 1, "layers": 1, "kind_width": 1, "opening": "nothing"},
}
Tables = dict[str, Any]


def untrained(**settings: Any) -> DasModule:
    torch.manual_seed(3)
    return DasModule(observation_space=None, action_space=None, model_config={"network": settings})


def heads_of(network: DasNetwork) -> list[torch.nn.Linear]:
    """Those that begin with zero weights."""
    return [network.ordering.rank, network.placement.prior, network.placement.spread]


def module_of(**settings: Any) -> DasModule:
    """With opinions: as built, affinities and spreads hardly differ."""
    module = untrained(**settings)
    network = module.network
    with torch.no_grad():
        for head in heads_of(network):
            head.weight.normal_(std=0.3)
        if network.placement.process is not None:
            network.placement.process.log_gain.fill_(0.7)
    return module


def moment(jobs: int, machines: int = 6, seed: int = 0) -> Tables:
    """Half of the jobs fit somewhere, a third are not heeded."""
    rng = np.random.default_rng(seed)
    used = np.arange(QUEUE) < jobs
    held = rng.random((QUEUE, machines)) * (rng.random((QUEUE, machines)) < 0.5)
    held[rng.random(QUEUE) < 0.5] = 0
    held[:, 0] = np.where(held[:, 0] > 0.3, 1, held[:, 0])
    racks = (machines + 2) // 3
    return {
        "jobs": rng.random((QUEUE, JOB_FEATURES)).astype(np.float32),
        "job_mask": used,
        "heeded": (rng.random(QUEUE) < 0.7) & used,
        "machines": rng.random((machines, MACHINE_FEATURES)).astype(np.float32),
        "held": held.astype(np.float32),
        "rack_held": rng.choice([0.0, 0.4, 1.0], (QUEUE, racks)).astype(np.float32),
        "rack": np.arange(machines) // 3,
        "history_y": rng.random((PAST, machines)).astype(np.float32),
        "history_mask": rng.random((PAST, machines)) < 0.6,
        "history_t": (900 * rng.random(PAST)).astype(np.float32),
    }


def asked(module: DasModule, seen: Tables, luck: int | None) -> tuple[Any, Any, Any]:
    """The torch network's priorities, affinities and log-probabilities."""
    batch: dict[str, Any] = {
        Columns.OBS: {name: torch.as_tensor(table)[None] for name, table in seen.items()}
    }
    with torch.no_grad():
        if luck is None:
            found = module.forward_inference(batch)
        else:
            found = module.forward_exploration({**batch, RNG_KEY: torch.tensor([luck])})
    actions = found[Columns.ACTIONS]
    logs = found[Columns.ACTION_LOGP][0].numpy() if luck is not None else np.zeros(2)
    return actions[ORDERING][0].numpy(), actions[PLACEMENT][0].numpy(), logs


def decided(
    module: DasModule, seen: Tables, luck: int | None, weights: Weights | None = None
) -> Workspace:
    view = Observation(**{name: np.ascontiguousarray(table) for name, table in seen.items()})
    sizes = len(view.jobs), len(view.machines), len(view.history_t)
    room = workspace_for(module.network.settings, *sizes)
    for table in (room.priority, room.affinity, room.logs):
        table.fill(7)  # nothing may be left of an earlier decision
    decide(view, weights or weights_of(module.network), room, luck is not None, luck or 0)
    return room


def assert_same(module: DasModule, seen: Tables) -> None:
    used = int(seen["job_mask"].sum())
    for luck in (None, 5, -(2**62)):
        priority, affinity, logs = asked(module, seen, luck)
        room = decided(module, seen, luck)
        np.testing.assert_allclose(room.priority[:used], priority[:used], atol=2e-5)
        np.testing.assert_allclose(room.affinity[:used], affinity[:used], atol=2e-5)
        np.testing.assert_allclose(room.logs, logs, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", SIZES)
def test_it_decides_as_torch_does(name: str) -> None:
    module = module_of(**SIZES[name])
    for jobs in (1, 4, 8, 9, QUEUE):
        assert_same(module, moment(jobs, seed=jobs))


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
def test_it_is_as_sure_of_a_machine_as_torch_is(name: str, told: bool) -> None:
    """Of more machines than there are past decisions, in any order."""
    module, seen, machines = module_of(**SIZES[name]), moment(QUEUE, 9, seed=3), np.arange(9)[::-1]
    seen["held"][[2, 7]] = 1
    seen["history_mask"] &= told
    batch = {table: torch.as_tensor(seen[table])[None] for table in seen}
    with torch.no_grad():
        placements = module.network(batch)[1]
        expected = placements.affinities.std.float().numpy()
    view, room = Observation(**seen), decided(module, seen, None)
    weights, found = weights_of(module.network), np.zeros(9, np.float32)
    for place, row in enumerate(placements.row.tolist()):
        doubts(view, row, machines.copy(), weights, room, np.zeros((9, 9)), found)
        np.testing.assert_allclose(found, expected[place, machines], rtol=1e-5)
    assert len(expected) > 2


@pytest.mark.parametrize("machines", [1, 2, 3, 8, 33])
def test_any_number_of_machines(machines: int) -> None:
    module = module_of(width=16, heads=2, layers=1)
    seen = moment(QUEUE, machines, seed=machines)
    seen["held"][2] = 1
    assert_same(module, seen)


@pytest.mark.parametrize("name", ["DA", "DAS"])
def test_moments_with_little_to_tell(name: str) -> None:
    module = module_of(**SIZES[name])
    nobody, hopeless, forgetful = moment(0), moment(5, seed=1), moment(5, seed=2)
    hopeless["held"][:] = 0
    forgetful["history_mask"][:] = False
    forgetful["held"][1] = 1
    for seen in (nobody, hopeless, forgetful):
        assert_same(module, seen)
    assert (decided(module, nobody, 1).logs == 0).all()
    assert decided(module, hopeless, 1).logs[1] == 0
    assert decided(module, forgetful, 1).logs[1] != 0
    only_one = moment(5, seed=2)
    only_one["history_mask"][:] = np.arange(PAST)[:, None] == 3
    assert_same(module, only_one)


def test_moments_of_the_environment() -> None:
    """Those that place and those that reconsider, with machines that are truly alike."""
    module = module_of(width=16, heads=4, layers=2)
    vector = GpuSchedulingVectorEnv(4, preempt=True, jobs=60, max_queue=20)
    seen, _ = vector.reset(seed=2)
    rng = np.random.default_rng(0)
    reconsidered = placed = 0
    for step in range(40):
        action = {
            ORDERING: rng.standard_normal((4, 20), np.float32),
            PLACEMENT: rng.standard_normal((4, 20, 8), np.float32),
        }
        seen, *_ = vector.step(action)
        if step % 4 == 3:
            for i in range(4):
                own = {name: table[i] for name, table in seen.items()}
                assert_same(module, own)
                fitting = bool(own["held"].any())
                placed += fitting
                reconsidered += bool(own["heeded"].any()) and not fitting
    assert placed > 0
    assert reconsidered > 0


@pytest.mark.parametrize(("name", "all_silent"), [("DA", True), ("DA+MC", True), ("DAS", False)])
def test_layers_without_a_say_are_skipped_until_they_have_one(name: str, all_silent: bool) -> None:
    """Of the process likeness speaks from the start, so that its layers always count."""
    module, seen = untrained(**SIZES[name]), moment(9, seed=9)
    with torch.no_grad():
        for head in heads_of(module.network):
            head.bias.normal_(std=0.3)
    weights = weights_of(module.network)
    assert weights.ordering.silent
    assert weights.placement.silent == all_silent
    assert_same(module, seen)
    loud = weights._replace(
        ordering=weights.ordering._replace(silent=False),
        placement=weights.placement._replace(silent=False),
    )
    for luck in (None, 5):
        skipped, full = decided(module, seen, luck), decided(module, seen, luck, loud)
        np.testing.assert_allclose(skipped.priority, full.priority, atol=1e-6)
        np.testing.assert_allclose(skipped.affinity, full.affinity, atol=1e-6)
        np.testing.assert_allclose(skipped.logs, full.logs, rtol=1e-6)
    for head in heads_of(module.network):
        before = decided(module, seen, 5)
        with torch.no_grad():
            head.weight.normal_(std=0.3)
        assert_same(module, seen)
        after = decided(module, seen, 5)
        moved = [
            not np.array_equal(one, other)
            for one, other in ((before.priority, after.priority), (before.affinity, after.affinity))
        ]
        assert moved == [
            head is module.network.ordering.rank,
            head is not module.network.ordering.rank,
        ]
    weights = weights_of(module.network)
    assert not weights.ordering.silent
    assert not weights.placement.silent


def test_pairs_are_told_the_same() -> None:
    """With machines from one that stands still to one twice as fast, and a job of any length."""
    module, seen = module_of(process=False), moment(1, machines=9)
    rng = np.random.default_rng(6)
    seen["held"][0] = rng.choice([0.0, 0.5, 1.0], 9)
    seen["held"][0, 0] = 1
    for _ in range(20):
        seen["jobs"][0] = rng.uniform(0, 8, JOB_FEATURES)
        seen["machines"][:, SPEED] = [0, *rng.uniform(0.1, 2, 8)]
        seen["machines"][:, PRICE] = [0, *rng.uniform(0.1, 4, 8)]
        one = [torch.as_tensor(seen[name]) for name in ("machines", "held", "rack_held", "rack")]
        expected = pair_features(
            torch.as_tensor(seen["jobs"][:1]), one[0][None], one[1][:1], one[2][:1], one[3][None]
        )
        told = decided(module, seen, None).placement.inputs[MACHINE_FEATURES:, :9]
        np.testing.assert_allclose(told, expected[0].T, rtol=1e-5, atol=1e-5)


def test_rows_not_in_use_are_neither_read_nor_drawn_for() -> None:
    module = module_of(**SIZES["DAS"])
    seen = moment(5, seed=4)
    room = decided(module, seen, 9)
    seen["jobs"][5:], seen["held"][5:], seen["rack_held"][5:] = np.nan, np.nan, np.nan
    other = decided(module, seen, 9)
    np.testing.assert_array_equal(room.priority[:5], other.priority[:5])
    np.testing.assert_array_equal(room.affinity[:5], other.affinity[:5])
    np.testing.assert_array_equal(room.logs, other.logs)
    assert (other.priority[5:] == 7).all()


def test_cells_are_left_to_torch() -> None:
    assert is_supported(DasSettings(exact_up_to=6), 6)
    assert not is_supported(DasSettings(exact_up_to=6), 7)
    assert is_supported(DasSettings(exact_up_to=6, process=False), 7)

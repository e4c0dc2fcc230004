"""Learners in rollout workers and in processes: the same steps, also when one of them dies."""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.platform.rl import workers
from loadmaster.platform.rl.learner import InputDrivenLearner, Strata, keys_of_rows
from loadmaster.platform.rl.rollout import RolloutSpec
from loadmaster.platform.systems.das import training as das
from loadmaster.platform.systems.decima import training as decima
from loadmaster.platform.systems.decima.training import RECIPE, DecimaTraining
from loadmaster.platform.systems.sure import training as sure
from loadmaster.platform.training.config import Resources
from loadmaster.platform.training.trainer import Trainer

pytestmark = pytest.mark.slow

Start = Callable[..., Trainer]
SAME = ("entropy", "kl", "gradient_norm", "return_mean", "learnt_from")


def tiny(workers: int = 0, learners: int = 0, **training: Any) -> DecimaTraining:
    values = {
        "environment": {"workload": "toy", "jobs": 3, "executors": 4},
        "rollouts": {"sequences": 2, "per_sequence": 3, "workers": workers},
        "training": {"epochs": 2, "minibatches": 2, **training},
        "validation": {"every": 1, "sequences": 3},
        "resources": {"learners": learners},
    }
    return build_settings(DecimaTraining, values)


def small_algorithm(config: DecimaTraining) -> Any:
    """Processes that share the CPUs of the tests' Ray."""
    algorithm = RECIPE.algorithm(config).env_runners(num_cpus_per_env_runner=0.4)
    return algorithm.learners(num_cpus_per_learner=0.4)


SMALL = replace(RECIPE, algorithm=small_algorithm)


@pytest.mark.parametrize("sizes", [{"workers": 3}, {"workers": 1, "learners": 2}])
def test_number_of_learners_does_not_change_the_steps(start: Start, sizes: dict[str, int]) -> None:
    """They stop after the same pass: if each stopped at its own KL, they would wait for others."""
    alone = start(SMALL, tiny())
    many = start(SMALL, tiny(**sizes, epochs=6, stop_at_kl=3.5e-5))  # exceeded in the second pass
    for _ in range(3):
        one, other = alone.step(), many.step()
        for name in SAME:
            # Sums in another order: Adam enlarges the rounding of gradients that should be 0.
            assert other[name] == pytest.approx(one[name], rel=0.02, abs=1e-3), name
        assert other["kl"] == pytest.approx(one["kl"], rel=0.1)  # of two passes: others differ more
    assert other["iteration"] == 3


class KilledLearner(InputDrivenLearner):
    """Kills its process at its second step if it is the first to remove the file `kill_file`."""

    kill_file: Path

    def _step(self, *arguments: Any) -> torch.Tensor:
        if self.kill_file.exists() and self.peers is not None and self.peers.rank == 1:
            self.kill_file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._step(*arguments)


@pytest.mark.long
def test_iteration_with_a_killed_learner_is_repeated(start: Start, tmp_path: Path) -> None:
    kill_file = tmp_path / "kill_file"
    killed = type("Killed", (KilledLearner,), {"kill_file": kill_file})

    def algorithm(config: DecimaTraining) -> Any:
        return small_algorithm(config).training(learner_class=killed)

    trainer = start(replace(RECIPE, algorithm=algorithm), tiny(workers=2))
    assert trainer.step()["workers"] == 2
    before = trainer.weights()
    kill_file.touch()
    figures = trainer.step()
    assert not kill_file.exists()
    assert figures["iteration"] == 2
    assert figures["rollouts"] == 6
    assert any((table != before[name]).any() for name, table in trainer.weights().items())
    assert all(torch.isfinite(table).all() for table in trainer.weights().values())
    assert any(trainer.step()["workers"] == 2 for _ in range(200))


@pytest.mark.long
def test_team_formed_anew_takes_the_same_steps(start: Start) -> None:
    """As after the death of a worker: weights and optimiser come from the driver's copy."""
    one, other = start(SMALL, tiny(workers=2)), start(SMALL, tiny(workers=2))
    for _ in range(4):
        other.algorithm.learners.reset()
        first, second = one.step(), other.step()
        for name in SAME:
            assert first[name] == second[name], name
    weights = other.weights()
    assert all((table == weights[name]).all() for name, table in one.weights().items())


class Replaced:
    """A group of workers that all died; one is back after some probes."""

    def __init__(self, probes: int) -> None:
        self.probes = probes

    def healthy_env_runner_ids(self) -> list[int]:
        return [] if self.probes > 0 else [2]

    def probe(self, group: Any) -> None:
        assert group is self
        self.probes -= 1


def test_lost_workers_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PAUSE_S", 0.001)
    group = Replaced(probes=30)
    assert workers.wait_for_workers(group, group.probe) == [2]
    group = Replaced(probes=10**9)
    with pytest.raises(RuntimeError, match="no rollout worker was back"):
        workers.wait_for_workers(group, group.probe, limit_s=0.05)


class Kept:
    """What a minibatch depends on of a recording."""

    def __init__(self, *kept: int) -> None:
        self.kept = np.array(kept)


def test_keys_do_not_depend_on_the_order_of_recordings() -> None:
    first, second = Kept(0, 1, 5), Kept(0, 2)
    together: Any = keys_of_rows([first, second], [11, 12])  # type: ignore[list-item]
    apart: Sequence[Any] = [
        keys_of_rows([second], [12]),  # type: ignore[list-item]
        keys_of_rows([first], [11]),  # type: ignore[list-item]
    ]
    assert together.tolist() == [*apart[1].tolist(), *apart[0].tolist()]
    assert len(set(together.tolist())) == 5
    assert keys_of_rows([], []).tolist() == []


def test_minibatches_are_stratified_and_independent_of_other_recordings() -> None:
    first, second = Kept(*range(300)), Kept(*range(0, 200, 2))
    together = Strata([first, second], [11, 12], 3).draw(7)  # type: ignore[list-item]
    apart = Strata([second], [12], 3).draw(7)  # type: ignore[list-item]
    assert together[300:].tolist() == apart.tolist()
    runs = together[:300].view(100, 3)
    assert (runs.sort(1).values == torch.arange(3)).all(), "one of each run in every minibatch"
    assert together[300:399].view(33, 3).sort(1).values.unique(dim=0).tolist() == [[0, 1, 2]]
    # The draw is uniform, also in the last run, which is shorter, and differs between passes.
    counts = torch.bincount(runs[:, 0], minlength=3)
    assert counts.min() > 15
    last = [int(Strata([second], [key], 3).draw(7)[-1]) for key in range(300)]  # type: ignore[list-item]
    assert np.bincount(last, minlength=3).min() > 70
    other = Strata([first], [11], 3).draw(8)  # type: ignore[list-item]
    assert 0.2 < float((other == together[:300]).double().mean()) < 0.5
    assert Strata([], [], 3).draw(7).tolist() == []


def test_rollouts_cost_what_their_sequences_let_expect() -> None:
    specs = [RolloutSpec(sequence, seed) for seed, sequence in enumerate((0, 1, 0))]
    first, second, again = decima.algorithm(DecimaTraining()).costs_of(specs) or ()
    assert first == again != second
    jobs = sure.SureTraining(jobs=("small-1", "large-2"))
    assert sure.algorithm(jobs).costs_of(specs) == [10.0, 57.0, 10.0]
    assert das.algorithm(das.DasTraining()).costs_of(specs) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (0, 0)),
        ({"learners": 3}, (3, 0)),
        ({"gpus": 2}, (2, 2)),
        ({"learners": 2, "gpus": 2}, (2, 2)),
    ],
)
def test_each_gpu_has_a_learner(given: dict[str, int], expected: tuple[int, int]) -> None:
    resources = Resources(**given)
    assert (resources.learners, resources.gpus) == expected


def test_gpus_for_some_learners_are_refused() -> None:
    with pytest.raises(InputError, match="gpus is 4 and learners 2"):
        build_settings(DecimaTraining, {"resources": {"learners": 2, "gpus": 4}})

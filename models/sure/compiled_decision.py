"""Single decisions in compiled code, for evaluation and the service, with what they are made of."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.errors import InputError
from loadmaster.models.layers import Array32
from loadmaster.models.sure.compiled_tables import empty_decisions
from loadmaster.models.sure.compiled_weights import Weights
from loadmaster.models.sure.deciders import CompiledDecider
from loadmaster.models.sure.graph import NONE, check_shapes
from loadmaster.models.sure.network import SureNetwork
from loadmaster.models.sure.prior import Prior

CACHED_JOBS = 4


class DrawnNodes(NamedTuple):
    """The subgraph of each of N tasks, in the order of drawing, with the scores that decided it."""

    snapshot: NDArray[np.int64]  # (N, k1) ages, then NONE
    snapshot_score: Array32  # (N, k1)
    neighbour: NDArray[np.int64]  # (N, k1, k2) tasks, then NONE
    neighbour_score: Array32  # (N, k1, k2)


class Decision(NamedTuple):
    """A decision and its distribution."""

    gate: bool
    change: Array32  # (N,)
    gate_logit: float
    mean: Array32  # (N,)
    log_std: float
    drawn: DrawnNodes  # of no columns if the whole graph is encoded
    nodes: int  # of all subgraphs, those in two twice, or of the whole graph


class JobDecision:
    """Decisions about one job; features of snapshots are kept from call to call."""

    def __init__(
        self,
        network: SureNetwork,
        tasks: NDArray[Any],
        edges: NDArray[Any],
        window: int,
        weights: Weights | None = None,
    ) -> None:
        """`tasks` (N, TASK_COLUMNS) and `edges` (2, M) of observations with so long a window."""
        self._decider = CompiledDecider(network, tasks, edges, 1, window, weights)
        self._out = empty_decisions(network.settings, len(tasks), 1)
        self.window = window

    def add(self, snapshots: NDArray[Any], times: NDArray[Any]) -> None:
        """New snapshots (M, N, SNAPSHOT_COLUMNS) and their times (M, TIME_COLUMNS), oldest first.

        Those that leave the window are forgotten.
        """
        tables = {"snapshots": snapshots, "times": times}
        single = {name: np.asarray(table, np.float32)[None] for name, table in tables.items()}
        self._decider.follow(single, len(times))

    @property
    def weights(self) -> Weights:
        return self._decider.weights

    def clear(self) -> None:
        """Forget all snapshots."""
        self._decider.kept.present[:] = False

    def decide(
        self,
        restart: NDArray[Any],
        prior: NDArray[Any],
        gate_prior: float,
        key: int | None = None,
    ) -> Decision:
        """Decide by a rule's changes (N,) and log-odds of acting; sample by `key`, None: greedy.

        A random subgraph is drawn in either case.
        """
        if len(prior) != len(self._decider.job.tasks):
            raise InputError(
                f"prior: {len(prior)} values; expected {len(self._decider.job.tasks)}, one a task"
            )
        rule = Prior(np.asarray(prior, np.float32)[None], np.array([gate_prior], np.float32))
        observations = {"restart": np.asarray(restart, np.float32)[None]}
        keys = np.array([0 if key is None else key], np.int64)
        self._decider.decide(observations, rule, keys, key is None, self._out)
        out, drawn = self._out, self._drawn()
        if self._decider.weights.whole:
            nodes = len(prior) * int(self._decider.kept.present.sum())
        else:
            nodes = int((drawn.snapshot >= 0).sum() + (drawn.neighbour >= 0).sum())
        return Decision(
            gate=bool(out.gate[0]),
            change=out.change[0].copy(),
            gate_logit=float(out.gate_logit[0]),
            mean=out.mean[0].copy(),
            log_std=float(self._decider.weights.log_std),
            drawn=drawn,
            nodes=nodes,
        )

    def _drawn(self) -> DrawnNodes:
        work, candidates = self._decider.work, self._decider.job.candidates
        own = np.arange(len(candidates))[:, None, None]
        other = np.where(work.neighbour >= 0, candidates[own, work.neighbour], NONE)
        scores = work.snapshot_score.copy(), work.neighbour_score.copy()
        return DrawnNodes(work.snapshot.copy(), scores[0], other, scores[1])


class CompiledDecision:
    """Decisions on whole observations of any jobs and windows."""

    def __init__(self, network: SureNetwork) -> None:
        self._network = network
        self._jobs: OrderedDict[tuple[int, bytes, bytes], JobDecision] = OrderedDict()

    def decide(
        self,
        observation: Mapping[str, NDArray[Any]],
        prior: NDArray[Any],
        gate_prior: float,
        key: int | None = None,
    ) -> Decision:
        """As `JobDecision.decide`, on an observation of the environment."""
        check_shapes(observation)
        job = self._job(observation)
        job.clear()
        job.add(observation["snapshots"], observation["times"])
        return job.decide(observation["restart"], prior, gate_prior, key)

    def _job(self, observation: Mapping[str, NDArray[Any]]) -> JobDecision:
        """Tables for this job and window: new ones, or those of an earlier call."""
        tasks, edges = observation["tasks"], observation["edges"]
        window = len(observation["times"])
        name = (window, tasks.tobytes(), edges.tobytes())
        found = self._jobs.pop(name, None)
        if found is None:
            others = (job.weights for job in self._jobs.values() if job.window == window)
            found = JobDecision(self._network, tasks, edges, window, next(others, None))
        self._jobs[name] = found
        if len(self._jobs) > CACHED_JOBS:
            self._jobs.popitem(last=False)
        return found

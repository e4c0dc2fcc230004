"""The driver's calls of an algorithm's learners: in rollout workers, or in processes of their own.

Learners in rollout workers learn from what they recorded themselves: only weights, rewards and
gradients are sent. On CPUs that is the fastest way, and more workers make it faster. A GPU is
faster with large batches, so learners with GPUs are processes of their own, to which recordings are
sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import ray
from numpy.typing import NDArray
from ray.rllib.core import COMPONENT_LEARNER

from loadmaster.platform.rl.learner import STATE
from loadmaster.platform.rl.rollout import Sample, balanced_shares

MoreColumns = Sequence[Mapping[str, NDArray[Any]]]  # by sample


class LearnersLost(Exception):  # noqa: N818 (an event that is handled, not an error to report)
    """A learner died during an update; no step of it counts."""


class Learners(Protocol):
    """Calls of all learners, each with its own share of the samples."""

    def learn(
        self, samples: Sequence[Sample], more: MoreColumns, **settings: Any
    ) -> dict[str, float]:
        """`InputDrivenLearner.learn` in every learner; raises LearnersLost."""

    def call(self, method: str, samples: Sequence[Sample], **settings: Any) -> list[Any]:
        """Call a method that returns a result for each recording; results in order of samples."""

    def reset(self) -> None:
        """Start the next update from the state of the driver's learners, which was replaced."""


class WorkerLearners:
    """Learners in the rollout workers, and a copy of their state in the driver's learner.

    The copy is what checkpoints hold. When a worker is replaced, a new group starts from it.
    """

    def __init__(self, env_runners: Any, learner_group: Any) -> None:
        self._env_runners, self._learner_group = env_runners, learner_group
        self._members: tuple[int, ...] = ()
        self._number = 0  # of the group: a worker that was replaced has another

    def learn(
        self, samples: Sequence[Sample], more: MoreColumns, **settings: Any
    ) -> dict[str, float]:
        members = self._form()
        shares = _shares([sample.worker for sample in samples], members)
        answers = self._call(
            "learn",
            members,
            [
                {
                    "group": self._number,
                    "specs": [samples[place].spec for place in share],
                    "more": [more[place] for place in share],
                    **settings,
                }
                for share in shares
            ],
        )
        if len(answers) < len(members) or None in answers:
            self._members = ()
            raise LearnersLost
        state = next(state for _, state in answers if state is not None)
        self._learner_group.set_state({COMPONENT_LEARNER: state})
        return _mean_metrics([metrics for metrics, _ in answers])

    def call(self, method: str, samples: Sequence[Sample], **settings: Any) -> list[Any]:
        members = self._form()
        shares = _shares([sample.worker for sample in samples], members)
        requests = [
            {"method": method, "specs": [samples[place].spec for place in share], **settings}
            for share in shares
        ]
        return _in_order(self._call("call_learner", members, requests), shares)

    def reset(self) -> None:
        """Form a new group for the next update: the driver's state was replaced."""
        self._members = ()

    def _form(self) -> tuple[int, ...]:
        """The members; a new group if the healthy workers are others than before."""
        members = tuple(self._env_runners.healthy_env_runner_ids()) or (0,)
        if members == self._members:
            return members
        self._members, self._number = (), self._number + 1
        address = None
        if len(members) > 1:
            answers = self._call("open_rendezvous", members[:1], [{}])
            if not answers:
                raise LearnersLost
            address = answers[0]
        state = self._learner_group.get_state(
            components=[f"{COMPONENT_LEARNER}/{component}" for component in STATE]
        )
        shared = state[COMPONENT_LEARNER] if members == (0,) else ray.put(state[COMPONENT_LEARNER])
        joined = self._call(
            "join",
            members,
            [
                {
                    "group": self._number,
                    "state": shared,
                    "rank": rank,
                    "size": len(members),
                    "address": address,
                }
                for rank in range(len(members))
            ],
        )
        if len(joined) < len(members) or not all(joined):
            raise LearnersLost
        self._members = members
        return members

    def _call(
        self, method: str, members: Sequence[int], arguments: Sequence[dict[str, Any]]
    ) -> list[Any]:
        """Answers of the members that respond."""
        if tuple(members) == (0,):
            return [getattr(self._env_runners.local_env_runner, method)(**arguments[0])]
        return list(
            self._env_runners.foreach_env_runner(
                method,
                kwargs=list(arguments),
                remote_worker_ids=list(members),
                local_env_runner=False,
            )
        )


class ProcessLearners:
    """Learners in processes that RLlib started, each with a GPU where GPUs are configured."""

    def __init__(self, learner_group: Any) -> None:
        self._manager = learner_group._worker_manager  # for calls with arguments for each learner
        self._size = len(learner_group)

    def learn(
        self, samples: Sequence[Sample], more: MoreColumns, **settings: Any
    ) -> dict[str, float]:
        shares = self._split(samples)
        answers = self._call("learn", samples, shares, [
            {"more": [more[place] for place in share], **settings} for share in shares
        ])  # fmt: skip
        return _mean_metrics(answers)

    def call(self, method: str, samples: Sequence[Sample], **settings: Any) -> list[Any]:
        shares = self._split(samples)
        return _in_order(self._call(method, samples, shares, [settings] * len(shares)), shares)

    def reset(self) -> None:
        """Nothing: the processes hold the state themselves."""

    def _split(self, samples: Sequence[Sample]) -> list[list[int]]:
        """Whole recordings, so that all learners get about as many decisions."""
        sizes = [len(sample.kept) for sample in samples]
        return balanced_shares(range(len(samples)), sizes, self._size)

    def _call(
        self,
        method: str,
        samples: Sequence[Sample],
        shares: Sequence[Sequence[int]],
        arguments: Sequence[dict[str, Any]],
    ) -> list[Any]:
        requests = [
            {
                "method": method,
                "references": [samples[place].data for place in share],
                "keys": [samples[place].spec.action_seed for place in share],
                **own,
            }
            for share, own in zip(shares, arguments, strict=True)
        ]
        answers = self._manager.foreach_actor("call_with", kwargs=requests)
        for answer in answers:
            if not answer.ok:
                raise answer.get()
        return [answer.get() for answer in answers]


def _mean_metrics(answers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means over the learners; but for times, all have the same."""
    return {name: float(np.mean([answer[name] for answer in answers])) for name in answers[0]}


def _shares(owners: Sequence[int], members: Sequence[int]) -> list[list[int]]:
    """Indices of each member's samples."""
    places: dict[int, list[int]] = {member: [] for member in members}
    for place, owner in enumerate(owners):
        if owner not in places:
            raise LearnersLost
        places[owner].append(place)
    return list(places.values())


def _in_order(answers: Sequence[Sequence[Any]], shares: Sequence[Sequence[int]]) -> list[Any]:
    """The results of all learners in the order of the samples."""
    if len(answers) < len(shares):
        raise LearnersLost
    found = {
        place: result
        for share, answer in zip(shares, answers, strict=True)
        for place, result in zip(share, answer, strict=True)
    }
    return [found[place] for place in range(len(found))]

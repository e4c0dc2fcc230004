"""Two systems as the console would meet them, made up: an hour behind them, and going on.

All chance comes from a seed and all time is passed in, so that a test sees the same story twice.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

INTERVAL_S = 10
INTERVALS = 360
CAUSES = ("timeout", "exception", "worker down")
Json = dict[str, Any]
Draw = Callable[[random.Random, int], tuple[Json, Json]]  # decision and reason of decision n


def iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()


def softmax(scores: list[float]) -> list[float]:
    exps = [math.exp(score - max(scores)) for score in scores]
    return [each / sum(exps) for each in exps]


def decima_decision(rng: random.Random, n: int) -> tuple[Json, Json]:
    jobs = [f"job {400 + n // 9 + k}" for k in range(6)]
    scores = sorted((rng.gauss(0, 1.2) for _ in jobs), reverse=True)
    stages = [
        {
            "name": f"{job}, stage {rng.randint(0, 9)}",
            "score": s,
            "uncertainty": None,
            "probability": p,
        }
        for job, s, p in zip(jobs, scores, softmax(scores), strict=True)
    ]
    limit = rng.choice([4, 8, 12, 16, 20])
    weights = [2.0, 0.9, 0.1, -0.6]
    limits = [
        {"name": str(limit + 2 * k), "score": w, "uncertainty": None, "probability": p}
        for k, (w, p) in enumerate(zip(weights, softmax(weights), strict=True))
    ]
    job, _, stage = stages[0]["name"].partition(", stage ")
    decision = {"job": int(job.removeprefix("job ")), "stage": int(stage), "limit": limit}
    summary = (
        f"stage {stage} of {job} leads 17 others with {stages[0]['probability']:.0%}: short work "
        f"left ({rng.uniform(3, 40):.0f} s) and a limit of {limit} executors"
    )
    return decision, {"summary": summary, "choices": {"stage": stages, "limit": limits}}


def das_decision(rng: random.Random, n: int) -> tuple[Json, Json]:
    jobs = [f"j-{8800 + n // 4 + k}" for k in range(5)]
    machines = [f"m-{rng.randint(1, 240):03d}" for _ in range(5)]

    def scored(names: list[str], spread: float) -> list[Json]:
        scores = sorted((rng.gauss(0.4, 0.5) for _ in names), reverse=True)
        return [
            {
                "name": name,
                "score": s,
                "uncertainty": rng.uniform(0.2, 1) * spread,
                "probability": None,
            }
            for name, s in zip(names, scores, strict=True)
        ]

    gpus = rng.choice([1, 2, 4, 8])
    placements = [{"job": jobs[0], "machine": machines[0], "gpus": gpus}]
    summary = (
        f"{jobs[0]} has waited {rng.uniform(1, 60):.0f} min and runs best on {machines[0]}, "
        f"where {gpus} of 8 GPUs are free"
    )
    reason = {
        "summary": summary,
        "choices": {"job": scored(jobs, 0.3), "machine": scored(machines, 0.6)},
    }
    return {"place": placements, "preempt": [] if rng.random() < 0.8 else [jobs[3]]}, reason


class MadeUp:
    """One system: its counters, its hour of history, its last decisions."""

    def __init__(
        self, system: str, summary: str, rule: str, draw: Draw, now: datetime, seed: int
    ) -> None:
        self.system, self.summary, self.rule, self.draw = system, summary, rule, draw
        self.rng = random.Random(seed)
        self.rate, self.trouble, self.reward = 1.6, 0.01, -14.0
        self.now = now - timedelta(seconds=INTERVAL_S * INTERVALS)
        self.lifecycle: Json = {"state": "SERVING", "since": iso(self.now), "why": "rewards hold"}
        self.paused: str | None = None  # why, while paused
        self.policies: Json = {
            "serving": self.bundle(f"{system}-small", "3f2a91bc04de"),
            "shadow": None,
            "previous": None,
        }
        self.retraining: Json | None = None
        self.log: Json = {"rows": 0, "bytes": 0, "dropped": 0, "fault": None}
        self.breaker = "closed"
        self.drift: Json = {"rewards": {"count": 0, "last": None}, "inputs": {}}
        self.by_cause: Counter[str] = Counter()
        self.guard: Counter[str] = Counter(
            dict.fromkeys(("bounds", "step", "total", "stabilisation", "flap"), 0)
        )
        self.policy_decisions = self.shadow_decisions = self.shadow_agreed = 0
        self.latencies: deque[float] = deque(maxlen=1000)
        self.decisions: deque[Json] = deque(maxlen=200)
        self.intervals: deque[Json] = deque(maxlen=INTERVALS)

    def bundle(self, name: str, version: str) -> Json:
        return {"name": name, "version": version, "since": iso(self.now)}

    @property
    def acting(self) -> str:
        serves = self.lifecycle["state"] == "SERVING" and self.paused is None
        return "policy" if serves else "fallback"

    @property
    def because(self) -> str:
        if self.paused is not None:
            return (
                f"paused by an operator: {self.paused}" if self.paused else "paused by an operator"
            )
        if self.lifecycle["state"] != "SERVING":
            return f"the lifecycle is {self.lifecycle['state']}: {self.lifecycle['why']}"
        return "its rewards hold above the rule's, and no operator has paused it"

    def run_to(self, until: datetime) -> None:
        """Decisions as they would have come in until then."""
        while self.now + timedelta(seconds=1 / self.rate) <= until:
            swing = 1 + 0.35 * math.sin(self.now.timestamp() / 420)
            self.now += timedelta(seconds=self.rng.expovariate(self.rate * swing))
            self._decide()

    def see_drift(self, feature: str, mean: float) -> None:
        self.drift["inputs"][feature] = {"count": 1, "last": iso(self.now), "mean": mean}
        self.drift["rewards"] = {"count": 1, "last": iso(self.now)}
        self._interval()["drift"] += 1

    def _interval(self) -> Json:
        seconds = self.now.timestamp() // INTERVAL_S * INTERVAL_S
        start = iso(datetime.fromtimestamp(seconds, UTC))
        if not self.intervals or self.intervals[-1]["time"] != start:
            empty = dict.fromkeys(("decisions", "fallbacks", "drift"), 0)
            unknown = dict.fromkeys(("p50_ms", "p99_ms", "reward_mean", "shadow_agreement"))
            self.intervals.append({"time": start, **empty, **unknown, "by_cause": Counter()})
        return self.intervals[-1]

    def _cause(self) -> str | None:
        if self.paused is not None:
            return "paused"
        if self.acting == "fallback":
            return "lifecycle"
        return self.rng.choice(CAUSES) if self.rng.random() < self.trouble else None

    def _decide(self) -> None:
        rng, interval, cause = self.rng, self._interval(), self._cause()
        number = self.policy_decisions + sum(self.by_cause.values())
        decision, reason = self.draw(rng, number)
        latency = 25.0 if cause == "timeout" else rng.lognormvariate(0.9, 0.45)
        self.latencies.append(latency)
        guard = []
        if cause is None and rng.random() < 0.06:
            action, line = rng.choice(
                [("bounds", "bounds: job 3 from 24 to 20"), ("step", "step: job 3 from 16 to 12")]
            )
            self.guard[action] += 1
            guard.append(line)
        if cause is None:
            self.policy_decisions += 1
            actor = {key: self.policies["serving"][key] for key in ("name", "version")}
        else:
            self.by_cause[cause] += 1
            interval["fallbacks"] += 1
            interval["by_cause"][cause] += 1
            reason = {"summary": f"{self.rule}: the job with the least work left", "choices": {}}
            actor = {"name": self.rule, "version": "rule"}
        interval["decisions"] += 1
        recent = sorted(list(self.latencies)[-15:])
        interval["p50_ms"], interval["p99_ms"] = recent[len(recent) // 2], recent[-1]
        interval["reward_mean"] = self.reward + rng.gauss(0, 1.1)
        self.decisions.appendleft(
            {
                "id": f"{self.system}-{number:06d}",
                "time": iso(self.now),
                "mode": "active",
                "decision": decision,
                "source": "fallback" if cause else "policy",
                "cause": cause,
                "reason": reason,
                "policy": actor,
                "guard": guard,
                "shadow": self._shadow(decision, number, interval),
                "latency_ms": round(latency, 3),
            }
        )
        self.log["rows"] += 1
        self.log["bytes"] += 412

    def _shadow(self, decision: Json, number: int, interval: Json) -> Json | None:
        if self.policies["shadow"] is None:
            return None
        agrees = self.rng.random() < 0.9
        self.shadow_decisions += 1
        self.shadow_agreed += agrees
        before = interval["shadow_agreement"]
        interval["shadow_agreement"] = agrees if before is None else 0.8 * before + 0.2 * agrees
        other = decision if agrees else {**decision, **self.draw(self.rng, number)[0]}
        actor = {key: self.policies["shadow"][key] for key in ("name", "version")}
        return {"decision": other, "agrees": agrees, "policy": actor}

    def listed(self) -> Json:
        serving = self.policies["serving"]
        return {
            "system": self.system,
            "summary": self.summary,
            "lifecycle": self.lifecycle["state"],
            "paused": self.paused is not None,
            "acting": self.acting,
            "policy": {"name": serving["name"], "version": serving["version"]},
            "rule": self.rule,
            "decisions": self.policy_decisions + sum(self.by_cause.values()),
        }

    def status(self) -> Json:
        fallbacks = sum(self.by_cause.values())
        ordered = sorted(self.latencies) or [0.0]
        agreement = self.shadow_agreed / self.shadow_decisions if self.shadow_decisions else None
        return {
            "system": self.system,
            "summary": self.summary,
            "lifecycle": self.lifecycle,
            "paused": self.paused is not None,
            "acting": self.acting,
            "acting_because": self.because,
            "policies": self.policies,
            "rule": self.rule,
            "deadline_ms": 25.0,
            "decisions": {
                "total": self.policy_decisions + fallbacks,
                "policy": self.policy_decisions,
                "fallback": fallbacks,
                "by_cause": dict(self.by_cause),
            },
            "guard": dict(self.guard),
            "latency_ms": {
                "p50": ordered[len(ordered) // 2],
                "p99": ordered[int(0.985 * (len(ordered) - 1))],
            },
            "rewards": {
                "policy": {"mean": self.reward, "std": 2.31, "count": 480},
                "rule": {"mean": -17.4, "std": 3.05, "count": 96},
                "thresholds": {"online": -19.0, "serving": -16.5, "deviation": 4.0},
            },
            "drift": self.drift,
            "shadow": {"decisions": self.shadow_decisions, "agreement": agreement, "faults": 0},
            "retraining": self.retraining,
            "log": self.log,
            "breaker": self.breaker,
        }


def make_decima(now: datetime) -> MadeUp:
    """Serves well, had some trouble; a new bundle has been in shadow for 20 minutes."""
    made = MadeUp(
        "decima",
        "Which stage runs next, on how many executors",
        "weighted-fair",
        decima_decision,
        now,
        seed=1,
    )
    made.drift["inputs"] = {
        "jobs": {"count": 0, "last": None, "mean": 11.8},
        "tasks left": {"count": 0, "last": None, "mean": 3120.0},
        "free executors": {"count": 0, "last": None, "mean": 6.4},
    }
    made.run_to(now - timedelta(minutes=41))
    made.trouble = 0.4
    made.run_to(now - timedelta(minutes=38))
    made.trouble = 0.01
    made.policies["previous"] = made.bundle("decima-tpch", "9c01d7e4aa12")
    made.run_to(now - timedelta(minutes=20))
    made.policies["shadow"] = made.bundle("decima-tpch-2", "b81e0f6c5d39")
    made.run_to(now)
    return made


def make_das(now: datetime) -> MadeUp:
    """Its load shifted 25 minutes ago: drift, the rule stands in, a retraining runs."""
    made = MadeUp(
        "das",
        "Which job runs next, on which machines' GPUs",
        "las-consolidate",
        das_decision,
        now,
        seed=2,
    )
    made.drift["inputs"] = {"queue": {"count": 0, "last": None, "mean": 8.1}}
    made.run_to(now - timedelta(minutes=27))
    made.reward, made.rate = -19.6, 2.4
    made.run_to(now - timedelta(minutes=24))
    made.see_drift("queue", 37.2)
    why = "the mean reward fell to -19.6, below -19; rewards drifted"
    made.lifecycle = {"state": "ONLINE", "since": iso(made.now), "why": why}
    made.reward = -17.2
    made.retraining = {
        "job": "retrain-das-0007",
        "status": "RUNNING",
        "submitted_at": iso(made.now),
        "why": "drift of rewards and of queue",
        "bundle": None,
        "verdict": None,
    }
    made.run_to(now)
    return made

"""Simulated systems for the console: status, history and seeded decisions in the API's format."""

from __future__ import annotations

import math
import random
from collections import deque
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

INTERVAL_S = 10
INTERVALS = 360
RATE = 1.6  # decisions a second
Json = dict[str, Any]


def iso(time: datetime) -> str:
    return time.astimezone(UTC).isoformat()


def bundle(name: str, version: str, since: datetime) -> Json:
    return {"name": name, "version": version, "since": iso(since)}


def draw_decision(rng: random.Random, n: int, *, uncertain: bool) -> tuple[Json, Json]:
    """Return a decision and its reason: scores have uncertainties, or else probabilities."""
    jobs = [f"job {400 + n // 9 + k}" for k in range(5)]
    targets = [f"machine {k}" for k in rng.sample(range(240), 5)]
    choices: Json = {}
    for group, names in {"job": jobs, "target": targets}.items():
        scores = sorted((rng.gauss(0.4, 1.0) for _ in names), reverse=True)
        total = sum(math.exp(score) for score in scores)
        choices[group] = [
            {
                "name": name,
                "score": score,
                "uncertainty": rng.uniform(0.1, 0.6) if uncertain else None,
                "probability": None if uncertain else math.exp(score) / total,
            }
            for name, score in zip(names, scores, strict=True)
        ]
    place = {"job": jobs[0], "target": targets[0], "gpus": rng.choice([1, 2, 4, 8])}
    reason = {"summary": f"{jobs[0]} fits on {targets[0]}", "choices": choices}
    return {"place": [place], "preempt": []}, reason


class FakeSystem:
    """One system: its status, an hour of history, its last decisions."""

    def __init__(self, system: str, rule: str, now: datetime, *, uncertain: bool = False) -> None:
        self.draw = partial(draw_decision, random.Random(1), uncertain=uncertain)
        self.rng, self.now, self.rate = random.Random(1), now, RATE
        self.pause_reason: str | None = None
        self.decisions: deque[Json] = deque(maxlen=200)
        self.intervals: list[Json] = []
        self.fields: Json = {
            "system": system,
            "summary": f"What {system} decides",
            "rule": rule,
            "lifecycle": {"state": "SERVING", "since": iso(now), "why": "rewards hold"},
            "policies": {
                "serving": bundle(f"{system}-small", "3f2a91bc04de", now),
                "shadow": None,
                "previous": None,
            },
            "deadline_ms": 25.0,
            "decisions": {"total": 0, "policy": 0, "fallback": 0, "by_cause": {}},
            "guard": dict.fromkeys(("bounds", "step", "total", "stabilisation", "flap"), 0),
            "latency_ms": {"p50": 2.4, "p99": 6.1},
            "rewards": {
                "policy": {"mean": -14.0, "std": 2.31, "count": 480},
                "rule": {"mean": -17.4, "std": 3.05, "count": 96},
                "thresholds": {"online": -19.0, "serving": -16.5, "deviation": 4.0},
            },
            "drift": {"rewards": {"count": 0, "last": None}, "inputs": {}},
            "shadow": {"decisions": 0, "agreement": None, "faults": 0},
            "retraining": None,
            "log": {"rows": 5484, "bytes": 2_260_000, "dropped": 0, "fault": None},
            "breaker": "closed",
        }

    def status(self) -> Json:
        lifecycle = self.fields["lifecycle"]
        paused = self.pause_reason is not None
        because = f"the lifecycle is {lifecycle['state']}: {lifecycle['why']}"
        return {
            **self.fields,
            "paused": paused,
            "acting": "policy" if lifecycle["state"] == "SERVING" and not paused else "fallback",
            "acting_because": f"paused: {self.pause_reason}" if paused else because,
        }

    def listing(self) -> Json:
        status = self.status()
        names = ("system", "summary", "rule", "paused", "acting")
        return {
            **{name: status[name] for name in names},
            "lifecycle": status["lifecycle"]["state"],
            "decisions": status["decisions"]["total"],
        }

    def run_to(self, until: datetime) -> None:
        """Make the decisions up to that time."""
        while self.now + timedelta(seconds=1 / self.rate) <= until:
            self.now += timedelta(seconds=1 / self.rate)
            self._decide()

    def _decide(self) -> None:
        counts, policies = self.fields["decisions"], self.fields["policies"]
        decision, reason = self.draw(counts["total"])
        cause = None
        if self.status()["acting"] == "fallback":
            cause = "lifecycle" if self.pause_reason is None else "paused"
            counts["by_cause"][cause] = counts["by_cause"].get(cause, 0) + 1
            reason = {"summary": "the job with the least work left", "choices": {}}
        source = "policy" if cause is None else "fallback"
        counts[source] += 1
        shadow = policies["shadow"]
        self.decisions.appendleft(
            {
                "id": f"{self.fields['system']}-{counts['total']:06d}",
                "time": iso(self.now),
                "mode": "active",
                "decision": decision,
                "source": source,
                "cause": cause,
                "reason": reason,
                "policy": policies["serving"],
                "guard": ["bounds: job 3 from 24 to 20"] if counts["total"] % 9 == 0 else [],
                "shadow": shadow and {"decision": decision, "agrees": True, "policy": shadow},
                "latency_ms": round(self.rng.lognormvariate(0.9, 0.45), 3),
            }
        )
        counts["total"] += 1

    def add_history(self, drift_minutes_ago: int = -1) -> None:
        """An hour of intervals up to now, and two minutes of decisions."""
        for i in range(INTERVALS, 0, -1):
            time = self.now - timedelta(seconds=INTERVAL_S * i)
            fallbacks = int(self.rng.random() < 0.1)
            shadow = self.fields["policies"]["shadow"]
            interval = {
                "time": iso(time),
                "decisions": self.rng.randint(8, 20),
                "fallbacks": fallbacks,
                "by_cause": {"timeout": fallbacks},
                "drift": int(i * INTERVAL_S == 60 * drift_minutes_ago),
                "p50_ms": self.rng.uniform(2, 3),
                "p99_ms": self.rng.uniform(4, 9),
                "reward_mean": self.rng.gauss(-14, 1),
                "shadow_agreement": shadow and self.rng.uniform(0.8, 1),
            }
            self.intervals.append(interval)
        until, self.now = self.now, self.now - timedelta(minutes=2)
        self.run_to(until)


def make_decima(now: datetime) -> FakeSystem:
    """A serving system with failures in the past, a shadow policy and a previous one."""
    made = FakeSystem("decima", "weighted-fair", now)
    made.fields["policies"] |= {
        "shadow": bundle("decima-tpch-2", "b81e0f6c5d39", now),
        "previous": bundle("decima-tpch", "9c01d7e4aa12", now),
    }
    made.fields["decisions"]["by_cause"] = {"timeout": 50, "exception": 67, "worker down": 63}
    made.fields["shadow"] |= {"decisions": 1479, "agreement": 0.918}
    made.add_history()
    return made


def make_das(now: datetime) -> FakeSystem:
    """A system with drift 24 minutes ago: fallback to the rule, and a retraining job."""
    made = FakeSystem("das", "las-consolidate", now, uncertain=True)
    drift = {"count": 1, "last": iso(now - timedelta(minutes=24))}
    made.fields["drift"] = {"rewards": drift, "inputs": {"queue": {**drift, "mean": 37.2}}}
    made.fields["lifecycle"] |= {"state": "ONLINE", "why": "rewards drifted"}
    made.fields["retraining"] = {
        "job": "retrain-das-0007",
        "status": "RUNNING",
        "submitted_at": drift["last"],
        "why": "drift of rewards and of queue",
        "bundle": None,
        "verdict": None,
    }
    made.add_history(drift_minutes_ago=24)
    return made

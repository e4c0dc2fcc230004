"""The gateway over HTTP with simulated systems: seeded decisions and history, without Ray."""

from __future__ import annotations

import json
import math
import random
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import uvicorn
from fastapi import Request

from loadmaster.serving.http.auth import TOKENS, AccessControl, Scope, TokenStore
from loadmaster.serving.http.body import HttpError
from loadmaster.serving.http.routes import Gateway, build_app
from loadmaster.serving.policies.manager import Conflict
from loadmaster.serving.settings import LimitSettings
from tests.serving.live import free_port

INTERVAL_S, INTERVALS = 10, 360
RATE = 1.6  # decisions a second
Json = dict[str, Any]


class HttpServer:
    """An app on a free port; it can be stopped and started again there."""

    def __init__(self, app: Any) -> None:
        self.app, self.port = app, free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        config = uvicorn.Config(
            self.app, port=self.port, log_level="error", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the service did not start"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=15)
        assert not self._thread.is_alive()


class FakeAccess(AccessControl):
    failure: HttpError | None = None  # response to every request

    def admit(self, request: Request, scope: Scope) -> Scope:
        if self.failure is not None:
            raise self.failure
        return super().admit(request, scope)


class FakeService(HttpServer):
    """`tokens` as in the environment variable; empty: open to all."""

    def __init__(self, tokens: str = "") -> None:
        now = datetime.now(UTC)
        self.systems: dict[str, Any] = {"decima": make_decima(now), "das": make_das(now)}
        self.access = FakeAccess(TokenStore(None, {TOKENS: tokens}), LimitSettings())
        gateway = Gateway(self.systems, self.access, LimitSettings())

        @asynccontextmanager
        async def idle(_: Any) -> AsyncIterator[None]:
            yield

        super().__init__(build_app(gateway, lambda status: None, idle))


def iso(time: datetime) -> str:
    return time.astimezone(UTC).isoformat()


def bundle(name: str, version: str, since: datetime) -> Json:
    return {"name": name, "version": version, "since": iso(since)}


SCORES = (2.0, 1.0, 0.5, 0.0, -1.0)


def draw_decision(n: int, *, uncertain: bool) -> tuple[Json, Json]:
    """Return a decision and its reason: scores have uncertainties, or else probabilities."""
    total = sum(map(math.exp, SCORES))
    choices = {
        group: [
            {
                "name": f"{group} {n + k}",
                "score": score,
                "uncertainty": 0.1 + 0.1 * k if uncertain else None,
                "probability": None if uncertain else math.exp(score) / total,
            }
            for k, score in enumerate(SCORES)
        ]
        for group in ("job", "machine")
    }
    reason = {"summary": f"job {n} fits on machine {n}", "choices": choices}
    return {"place": [{"job": n, "machine": n, "gpus": 4}], "preempt": []}, reason


class FakeSystem:
    """What the gateway uses of a DecisionService, with an hour of history."""

    def __init__(self, system: str, rule: str, now: datetime, *, uncertain: bool = False) -> None:
        self.draw = partial(draw_decision, uncertain=uncertain)
        self.now, self.rate = now, RATE
        self.pause_reason: str | None = None
        self.posted: list[tuple[str, Json]] = []  # actions and their bodies
        self.decided: deque[Json] = deque(maxlen=200)
        self.intervals: list[Json] = []
        self.fields: Json = {
            "system": system,
            "summary": f"What {system} decides",
            "rule": rule,
            "lifecycle": {"state": "SERVING", "since": iso(now), "why": "rewards hold"},
            "policies": {"shadow": None, "previous": None}
            | {"serving": bundle(f"{system}-small", "3f2a91bc04de", now)},
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

    @property
    def cause(self) -> str | None:
        """Why the rule acts; None if the policy does."""
        if self.pause_reason is not None:
            return "paused"
        return None if self.fields["lifecycle"]["state"] == "SERVING" else "lifecycle"

    def status(self) -> Json:
        self.run_to(datetime.now(UTC))
        lifecycle, paused = self.fields["lifecycle"], self.pause_reason is not None
        because = f"the lifecycle is {lifecycle['state']}: {lifecycle['why']}"
        return {
            **self.fields,
            "paused": paused,
            "acting": "fallback" if self.cause else "policy",
            "acting_because": f"paused: {self.pause_reason}" if paused else because,
        }

    def brief(self) -> Json:
        status = self.status()
        state, total = status["lifecycle"]["state"], status["decisions"]["total"]
        return {**status, "lifecycle": state, "decisions": total}

    def decisions(self, limit: int) -> Json:
        self.run_to(datetime.now(UTC))
        return {"decisions": list(self.decided)[:limit]}

    def history(self) -> Json:
        return {"interval_s": INTERVAL_S, "intervals": self.intervals}

    async def admin_action(self, verb: str, raw: bytes) -> Json:
        self.posted.append((verb, json.loads(raw)))
        policies = self.fields["policies"]
        if verb in ("pause", "resume"):
            reason = self.posted[-1][1].get("reason", "")
            self.pause_reason = reason if verb == "pause" else None
            return self.status()
        source = "shadow" if verb == "promote" else "previous"
        if policies[source] is None:
            raise Conflict(f"no {source} policy")
        serving, previous = policies[source], policies["serving"]
        policies |= {source: None, "serving": serving, "previous": previous}
        return self.status()

    def run_to(self, until: datetime) -> None:
        """Make the decisions up to that time."""
        while self.now + timedelta(seconds=1 / self.rate) <= until:
            self.now += timedelta(seconds=1 / self.rate)
            self._decide()

    def _decide(self) -> None:
        counts, policies = self.fields["decisions"], self.fields["policies"]
        decision, reason = self.draw(counts["total"])
        if cause := self.cause:
            counts["by_cause"][cause] = counts["by_cause"].get(cause, 0) + 1
            reason = {"summary": "the job with the least work left", "choices": {}}
        source = "fallback" if cause else "policy"
        counts[source] += 1
        shadow = policies["shadow"]
        self.decided.appendleft(
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
                "latency_ms": 2.5,
            }
        )
        counts["total"] += 1

    def add_history(self, drift_minutes_ago: int = -1) -> None:
        """An hour of intervals up to now, and two minutes of decisions."""
        rng, shadow = random.Random(1), self.fields["policies"]["shadow"]
        for i in range(INTERVALS, 0, -1):
            self.intervals.append(
                {
                    "time": iso(self.now - timedelta(seconds=INTERVAL_S * i)),
                    "decisions": rng.randint(8, 20),
                    "fallbacks": 1,
                    "by_cause": {"timeout": 1},
                    "drift": int(i * INTERVAL_S == 60 * drift_minutes_ago),
                    "p50_ms": rng.uniform(2, 3),
                    "p99_ms": rng.uniform(4, 9),
                    "reward_mean": rng.gauss(-14, 1),
                    "shadow_agreement": shadow and rng.uniform(0.8, 1),
                }
            )
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
        "job": "retrain-das-0007", "status": "RUNNING", "submitted_at": drift["last"],
        "why": "drift of rewards and of queue", "bundle": None, "verdict": None,
    }  # fmt: skip
    made.add_history(drift_minutes_ago=24)
    return made

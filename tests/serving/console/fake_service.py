"""The gateway over HTTP with simulated systems: decisions and history without policies or Ray."""

import json
import threading
from collections import deque
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import uvicorn

from loadmaster.serving.http.auth import AccessControl, TokenStore
from loadmaster.serving.http.routes import Gateway, build_app
from loadmaster.serving.replicas.autoscaling import LoadMeter
from loadmaster.serving.settings import LimitSettings
from tests.serving.live import free_port

INTERVAL_S, INTERVALS = 10, 360
Json = dict[str, Any]


class HttpServer:
    """An app on a free port; it can be stopped and started again there."""

    def __init__(self, app: Any) -> None:
        self.app, self.port = app, free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        options: Json = {"log_level": "error", "timeout_graceful_shutdown": 1}
        self._server = uvicorn.Server(uvicorn.Config(self.app, port=self.port, **options))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the service did not start"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=15)
        assert not self._thread.is_alive()


class FakeService(HttpServer):
    """Two systems, open to all."""

    def __init__(self) -> None:
        self.systems: dict[str, Any] = {"decima": FakeSystem(), "das": make_das()}
        self.access = AccessControl(TokenStore(None, {}), LimitSettings())
        gateway = Gateway(self.systems, self.access, LimitSettings(), LoadMeter())
        super().__init__(build_app(gateway, lambda status: None, lambda _: nullcontext()))


def ago(seconds: float = 0.0) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()


def bundle(name: str) -> Json:
    return {"name": name, "version": name.encode().hex()[-12:], "since": ago()}


def draw_decision(n: int, *, uncertain: bool) -> tuple[Json, Json]:
    """Return a decision and its reason: scores have uncertainties, or else probabilities."""
    choices = [
        {"name": f"job {n + k}", "score": score}
        | {"uncertainty": 0.1 if uncertain else None, "probability": None if uncertain else share}
        for k, (score, share) in enumerate(((2.0, 0.7), (0.5, 0.2), (-1.0, 0.1)))
    ]
    reason = {"summary": f"job {n} fits on machine {n}", "choices": {"job": choices}}
    return {"place": [{"job": n, "machine": n, "gpus": 4}], "preempt": []}, reason


class FakeSystem:
    """What the gateway uses of a RoutedSystem; without `fields` of its status, one that serves.

    Whenever its decisions are requested it makes another.
    """

    def __init__(self, *, uncertain: bool = False, **fields: Any) -> None:
        self.draw = partial(draw_decision, uncertain=uncertain)
        self.decided: deque[Json] = deque(maxlen=200)
        self.intervals: list[Json] = [
            {
                "time": ago(INTERVAL_S * i), "decisions": 8 + i % 12, "fallbacks": 1, "drift": 0,
                "by_cause": {"timeout": 1}, "p50_ms": 2 + i % 3, "p99_ms": 5 + i % 4,
                "reward_mean": -14 + i % 5, "shadow_agreement": 0.8 + i % 3 / 20,
            }
            for i in range(INTERVALS, 0, -1)
        ]  # fmt: skip
        self.fields: Json = {
            "system": "decima",
            "summary": "What it decides",
            "tenants": {"known": 1, "by_state": {"SERVING": 1}, "most_active": []},
            "paused_scope": None,
            "rule": "weighted-fair",
            "lifecycle": {
                "state": "SERVING",
                "since": ago(),
                "why": "rewards hold",
                "estimate": None,
                "evidence": "the mean -14 holds",
                "profile": {"stakes": "normal"},
            },
            "paused": False,
            "acting": "policy",
            "acting_because": "rewards hold",
            "policies": {role: bundle(f"my-{role}") for role in ("serving", "shadow", "previous")},
            "deadline_ms": 25.0,
            "decisions": {"total": 0, "policy": 0, "fallback": 9, "by_cause": {"timeout": 9}},
            "guard": dict.fromkeys(("bounds", "step", "total", "stabilisation", "flap"), 0),
            "latency_ms": {"p50": 2.4, "p99": 6.1},
            "rewards": {
                "policy": {"mean": -14.0, "std": 2.31, "count": 480},
                "rule": {"mean": -17.4, "std": 3.05, "count": 96},
                "thresholds": {"online": -19.0, "serving": -16.5, "deviation": 4.0},
            },
            "drift": {"rewards": {"count": 0, "last": None}, "inputs": {}},
            "shadow": {"decisions": 1479, "agreement": 0.918, "faults": 0},
            "retraining": None,
            "log": {"rows": 5484, "bytes": 2_260_000, "dropped": 0, "fault": None},
            "breaker": "closed",
            "steering": None,
            **fields,
        }
        for _ in range(50):
            self.decide()

    async def status(self, tenant: str = "default", _: Any = None) -> Json:
        return {**self.fields, "tenant": tenant}

    async def brief(self, _: str = "default") -> Json:
        state, total = self.fields["lifecycle"]["state"], self.fields["decisions"]["total"]
        return {**self.fields, "lifecycle": state, "decisions": total}

    async def decisions(self, limit: int, _: str) -> Json:
        self.decide()
        return {"decisions": list(self.decided)[:limit]}

    async def history(self, _: str) -> Json:
        return {"interval_s": INTERVAL_S, "intervals": self.intervals}

    async def admin_action(self, verb: str, raw: bytes, _: Any) -> Json:
        """Pause, whatever the verb."""
        reason = json.loads(raw)["reason"]
        self.fields |= {"paused": True, "acting": "fallback", "acting_because": reason}
        return await self.status()

    def decide(self) -> None:
        counts, policies = self.fields["decisions"], self.fields["policies"]
        decision, reason = self.draw(counts["total"])
        source, shadow = self.fields["acting"], policies["shadow"]
        counts[source] += 1
        made = {
            "id": f"{self.fields['system']}-{counts['total']}", "time": ago(), "mode": "active",
            "decision": decision, "source": source, "reason": reason,
            "cause": None if source == "policy" else "lifecycle",
            "policy": policies["serving"], "guard": ["bounds: job 3 from 24 to 20"],
            "shadow": shadow
            and {"decision": decision, "agrees": True, "agreement": 1.0, "policy": shadow},
            "latency_ms": 2.5,
        }  # fmt: skip
        self.decided.appendleft(made)
        counts["total"] += 1


def make_das() -> FakeSystem:
    """A system with drift 24 minutes ago: fallback to the rule, and a retraining job."""
    drift = {"count": 1, "last": ago(24 * 60)}
    made = FakeSystem(
        system="das",
        rule="las-consolidate",
        uncertain=True,
        drift={"rewards": drift, "inputs": {"queue": {**drift, "mean": 37.2}}},
        lifecycle={
            "state": "ONLINE", "since": drift["last"], "why": "rewards drifted",
            "evidence": "too few rewards", "profile": {"stakes": "high"},
            "estimate": {"mean": -15.0, "lower": -16.5, "source": "fqe", "episodes": 80},
        },
        acting="fallback",
        retraining={
            "job": "retrain-das-0007", "status": "RUNNING", "submitted_at": drift["last"],
            "why": "drift of rewards and of queue", "bundle": None, "verdict": None,
        },
    )  # fmt: skip
    made.intervals[-24 * 60 // INTERVAL_S]["drift"] = 1
    return made

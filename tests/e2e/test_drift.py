"""The load shifts: the service notices, lets the rule act, has a policy retrained, and promotes it.

On a real cluster, by the real commands: `loadmaster serve`, its job, and a client.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadmaster.envs.dag_scheduling.settings import DagSchedulingSettings
from loadmaster.models.bundle import load_bundle, save_bundle
from loadmaster.models.manifest import pretrained_folder
from loadmaster.serving.client import Client
from tests.e2e.operator import operate
from tests.e2e.test_jobs import free_ports

PATIENCE_S = 240.0
WINDOW = 12
CALM = DagSchedulingSettings(arrivals="poisson", interarrival_s=200, jobs=200)
BUSY = CALM.model_copy(update={"interarrival_s": 14})


def backwards(folder: Path) -> Path:
    """A policy that starts with the stage it should start last. With one job at a time that does
    little harm; with many it does."""
    good = load_bundle(pretrained_folder() / "decima-batch")
    turned = ("score_stage.6.weight", "score_stage.6.bias", "tilt_stage.weight")
    weights = {name: -w if name in turned else w for name, w in good.weights.items()}
    save_bundle(
        folder, name="backwards", system="decima", network=good.network, weights=weights,
        trained=good.trained,
    )  # fmt: skip
    return folder


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Client]:
    (port,) = free_ports(1)
    decima = {
        "bundle": str(backwards(tmp_path / "backwards")),
        "deadline_ms": 5000,
        "monitor": {"lifecycle": {"window": WINDOW, "degradation": 0.5}},
        "renewal": {"shadow_decisions": 40, "poll_s": 1},
        "retraining": {
            "iterations": 12,
            "minutes": 0.6,
            "sequences": 6,
            "settings": {
                "environment.jobs": 20,
                "rollouts.sequences": 2,
                "rollouts.per_sequence": 6,
                "validation.sequences": 4,
            },
        },
    }
    config = {"systems": {"decima": decima}, "port": port, "folder": str(tmp_path / "kept")}
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump(config))
    log = (tmp_path / "serve.log").open("wb")
    command = [sys.executable, "-P", "-m", "loadmaster.platform.cli.main", "serve", "--config"]
    running = subprocess.Popen(
        [*command, str(file)], stdout=log, stderr=subprocess.STDOUT, cwd=tmp_path
    )
    client = Client(f"http://127.0.0.1:{port}", deadline_s=20)
    try:
        wait_for(lambda: is_ready(client, running))
        yield client
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            running.wait(30)
        finally:
            if running.poll() is None:
                os.kill(running.pid, signal.SIGKILL)
            log.close()
            print((tmp_path / "serve.log").read_text()[-2000:])


def is_ready(client: Client, running: subprocess.Popen[bytes]) -> bool:
    assert running.poll() is None, "the service ended"
    try:
        return client.decide("decima", client.example("decima", "small")).source == "policy"
    except Exception:
        return False


def wait_for(reached: Any) -> None:
    began = time.monotonic()
    while not reached():
        assert time.monotonic() - began < PATIENCE_S
        time.sleep(0.5)


def told_by(client: Client) -> dict[str, Any]:
    return asdict(client.status("decima"))


def live(client: Client, settings: DagSchedulingSettings, seed: int, mode: str, until: Any) -> None:
    """Ask and tell until something is reached, looked for every few decisions."""
    episodes = (operate(client, settings, seed + more, mode) for more in itertools.count())
    began = time.monotonic()
    for count, _ in enumerate(itertools.chain.from_iterable(episodes)):
        if count % 20 == 0 and until(told_by(client)):
            return
        assert time.monotonic() - began < PATIENCE_S, json.dumps(told_by(client), indent=1)


def test_from_drift_to_another_policy(service: Client) -> None:
    live(service, CALM, 0, "shadow", lambda told: told["rewards"]["rule"]["count"] >= WINDOW)
    live(service, CALM, 100, "active", lambda told: told["rewards"]["policy"]["count"] >= WINDOW)
    told = told_by(service)
    assert told["acting"] == "policy"
    assert told["lifecycle"]["state"] in ("ONLINE", "SERVING"), "rewards of jobs vary much"

    # The load shifts.
    live(service, BUSY, 200, "active", lambda told: told["acting"] == "fallback")
    told = told_by(service)
    assert told["lifecycle"]["state"] == "OFFLINE"
    assert "below" in told["lifecycle"]["why"]
    assert sum(one["count"] for one in told["drift"]["inputs"].values()) > 0

    # A job retrains; meanwhile the rule decides.
    live(service, BUSY, 300, "active", lambda told: told["retraining"] is not None)
    answer = service.decide("decima", service.example("decima", "small"))
    assert (answer.source, answer.cause) == ("fallback", "lifecycle")
    wait_for(lambda: told_by(service)["retraining"]["status"] in ("done", "failed"))
    told = told_by(service)
    assert told["retraining"]["status"] == "done", told["retraining"]["error"]
    assert told["retraining"]["verdict"]["better"], told["retraining"]
    wait_for(lambda: told_by(service)["policies"]["shadow"] is not None)
    assert told_by(service)["acting"] == "fallback", "it only watches yet"

    # Its decisions in the shadow are sound: it takes the place.
    live(service, BUSY, 400, "active", lambda told: told["acting"] == "policy")
    told = told_by(service)
    assert told["lifecycle"]["state"] == "SERVING"
    assert told["policies"]["previous"]["name"] == "backwards"
    assert told["policies"]["serving"]["version"] != told["policies"]["previous"]["version"]
    assert service.decide("decima", service.example("decima", "small")).source == "policy"

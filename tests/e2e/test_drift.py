"""A shift of the load: drift, fallback to the rule, retraining job and promotion."""

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
from tests.serving.live import free_port

pytestmark = [pytest.mark.slow, pytest.mark.long]

TIMEOUT_S = 240.0
WINDOW = 12
CALM = DagSchedulingSettings(arrivals="poisson", interarrival_s=200, jobs=200)
BUSY = CALM.model_copy(update={"interarrival_s": 14})


def make_reversed_policy(folder: Path) -> Path:
    """A policy with negated scores: harmless with one job at a time, bad with many."""
    good = load_bundle(pretrained_folder() / "decima-batch")
    negated = ("score_stage.6.weight", "score_stage.6.bias", "tilt_stage.weight")
    weights = {name: -w if name in negated else w for name, w in good.weights.items()}
    save_bundle(
        folder, name="reversed", system="decima", network=good.network, weights=weights,
        trained=good.trained,
    )  # fmt: skip
    return folder


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Client]:
    port = free_port()
    decima = {
        "bundle": str(make_reversed_policy(tmp_path / "reversed")),
        "deadline_ms": 5000,
        "monitor": {"lifecycle": {"window": WINDOW, "degradation": 0.5}},
        "auto_retrain": {"shadow_decisions": 40, "poll_s": 1},
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
            client.close()
            log.close()
            print((tmp_path / "serve.log").read_text()[-2000:])


def is_ready(client: Client, running: subprocess.Popen[bytes]) -> bool:
    assert running.poll() is None, "the service ended"
    try:
        return client.decide("decima", client.example("decima", "small")).source == "policy"
    except Exception:
        return False


def wait_for(condition: Any) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < TIMEOUT_S
        time.sleep(0.5)


def status_of(client: Client) -> dict[str, Any]:
    return asdict(client.status("decima"))


def run_until(
    client: Client, settings: DagSchedulingSettings, seed: int, mode: str, condition: Any
) -> None:
    """Run episodes until the status meets a condition, checked every 20 decisions."""
    episodes = (operate(client, settings, seed + more, mode) for more in itertools.count())
    began = time.monotonic()
    for count, _ in enumerate(itertools.chain.from_iterable(episodes)):
        if count % 20 == 0 and condition(status_of(client)):
            return
        assert time.monotonic() - began < TIMEOUT_S, json.dumps(status_of(client), indent=1)


def test_drift_leads_to_a_retrained_policy(service: Client) -> None:
    run_until(
        service, CALM, 0, "shadow", lambda status: status["rewards"]["rule"]["count"] >= WINDOW
    )
    run_until(
        service, CALM, 100, "active", lambda status: status["rewards"]["policy"]["count"] >= WINDOW
    )
    status = status_of(service)
    assert status["acting"] == "policy"
    assert status["lifecycle"]["state"] in ("ONLINE", "SERVING")

    # Shift of the load.
    run_until(service, BUSY, 200, "active", lambda status: status["acting"] == "fallback")
    status = status_of(service)
    assert status["lifecycle"]["state"] == "OFFLINE"
    assert "below" in status["lifecycle"]["why"]
    assert sum(one["count"] for one in status["drift"]["inputs"].values()) > 0

    # Retraining; the rule decides meanwhile.
    run_until(service, BUSY, 300, "active", lambda status: status["retraining"] is not None)
    decision = service.decide("decima", service.example("decima", "small"))
    assert (decision.source, decision.cause) == ("fallback", "lifecycle")
    wait_for(lambda: status_of(service)["retraining"]["status"] in ("done", "failed"))
    status = status_of(service)
    assert status["retraining"]["status"] == "done", status["retraining"]["error"]
    assert status["retraining"]["verdict"]["better"], status["retraining"]
    wait_for(lambda: status_of(service)["policies"]["shadow"] is not None)
    assert status_of(service)["acting"] == "fallback"

    # Promotion after enough decisions in shadow.
    run_until(service, BUSY, 400, "active", lambda status: status["acting"] == "policy")
    status = status_of(service)
    assert status["lifecycle"]["state"] in ("ONLINE", "SERVING")  # on trial first
    assert status["policies"]["previous"]["name"] == "reversed"
    assert status["policies"]["serving"]["version"] != status["policies"]["previous"]["version"]
    assert service.decide("decima", service.example("decima", "small")).source == "policy"

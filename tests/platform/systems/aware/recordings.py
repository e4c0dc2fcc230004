"""Recorded episodes of pod scaling, each made once, for tests of the replay."""

import json
from functools import cache
from typing import Any

import numpy as np
import torch

from loadmaster.envs.pod_scaling.episode import Setup, build_setup
from loadmaster.envs.pod_scaling.episode_runner import EpisodeRunner
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.models.aware.network import AwareNetwork
from loadmaster.models.aware.rule import carry_out
from loadmaster.models.bundle import build_network
from loadmaster.platform.systems.aware.decision_trace import RecordedEpisode
from loadmaster.platform.systems.aware.evaluation import LearnedAware
from loadmaster.platform.systems.aware.replay import run
from loadmaster.serving.decisions.policy_memory import decide_with, memory_line
from loadmaster.serving.monitoring.log_files import DecisionRow
from loadmaster.serving.system import Policy
from loadmaster.serving.systems.aware.examples import state_of
from loadmaster.serving.systems.aware.system import ENDPOINT

ENVIRONMENT: dict[str, Any] = {"application": "test", "steps": 40}
SETTINGS = PodScalingSettings.model_validate(ENVIRONMENT)
NETWORK: dict[str, Any] = {"encoder": {"hidden": 8}}
SEED = 2
BEGAN, TENANT = 1_800_000_000.0, "cart"  # of the log


@cache
def setup() -> Setup:
    return build_setup(SETTINGS)


@cache
def untrained_policy() -> LearnedAware:
    torch.manual_seed(4)
    network = build_network("aware", NETWORK)
    assert isinstance(network, AwareNetwork)
    return LearnedAware(network, PodScalingSettings())


@cache
def recorded(policy: str = "aware") -> RecordedEpisode:
    learned = untrained_policy() if policy == "aware" else None
    return run(policy, learned, SETTINGS, SEED, setup(), True)


def logged_rows(policy: Policy, decisions: int = 12) -> list[DecisionRow]:
    """A log of one application: the rule decides in OFFLINE, then the policy in ONLINE.

    The plans are carried out in the simulator; the last row but one is missing.
    """
    runner, rule, memory = EpisodeRunner(SETTINGS, setup(), SEED), ENDPOINT.rule("hpa"), ""
    rows = []
    for number in range(decisions):
        offline = number < decisions // 2
        acting, state = (rule if offline else policy), state_of(runner)
        proposal = decide_with(acting, state, memory)
        reason = proposal.explanation
        choices = {
            kind: [{"name": each.name, "score": each.score} for each in options]
            for kind, options in reason.choices.items()
        }
        rows.append(
            DecisionRow(
                id=f"d{number}", time=BEGAN + 60.0 * number + 3.0 * (number % 2), system="aware",
                mode="active", source="fallback" if offline else "policy",
                cause="lifecycle" if offline else None, policy=acting.name, version=acting.version,
                state=state.model_dump_json(), decision=proposal.decision.model_dump_json(),
                shadow=None, guard=(), latency_ms=1.0, tenant=TENANT, memory=memory or None,
                reason=json.dumps({"summary": reason.summary, "choices": choices, "notes": []}),
                lifecycle="OFFLINE" if offline else "ONLINE",
            )
        )  # fmt: skip
        if not offline:
            memory = memory_line(policy, proposal)
        made = proposal.decision
        plan = np.array([made.cpu_m / 1000, made.memory_mib, made.replicas])
        carry_out(setup().constants, runner.episode.state, plan)
    del rows[-2]
    return rows

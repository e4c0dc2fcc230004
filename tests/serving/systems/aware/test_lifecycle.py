"""The lifecycle of applications over HTTP, on Ray: OFFLINE, ONLINE, SERVING, a shift, and back.

The simulator plays the applications. They request decisions, carry them out and report outcomes.
"""

from statistics import fmean

import pytest

from loadmaster.envs.pod_scaling.episode import build_setup
from loadmaster.envs.pod_scaling.settings import PodScalingSettings
from loadmaster.envs.settings import build_settings
from loadmaster.platform.bench.pod_client import PodClient
from loadmaster.serving.client import Client, Decision
from loadmaster.serving.client.responses import Status
from loadmaster.serving.decisions.tenant_names import tenant_of
from tests.serving.live import WINDOW, Live

pytestmark = pytest.mark.slow

SHIFT = 5 * WINDOW  # control step


class Operated:
    """A simulated application, and what the service knows of it."""

    def __init__(self, client: Client, application: str, factor: float) -> None:
        """`factor`: of the load, at the shift."""
        values = {"application": application, "workload": "toy", "steps": 12 * WINDOW}
        values["shift"] = f"load:{factor}@{SHIFT}"
        settings = build_settings(PodScalingSettings, values)
        self.pods, self.client = PodClient(settings, build_setup(settings), 0), client
        self.tenant = tenant_of(self.pods.name)
        self.rewards: list[float] = []

    def step(self) -> Decision:
        decision, reward = self.pods.step(self.client)
        self.rewards.append(reward)
        assert decision.tenant == self.tenant
        return decision

    def status(self) -> Status:
        return self.client.status("aware", tenant=self.tenant)

    def state(self) -> tuple[str, str]:
        """Lifecycle state, and what acts."""
        status = self.status()
        return status.lifecycle.state, status.acting

    def until(self, state: str, within: int) -> tuple[int, Status]:
        """Steps until the lifecycle has a state, and the status then."""
        before = self.status().lifecycle.state
        for steps in range(1, within + 1):
            self.step()
            status = self.status()
            if status.lifecycle.state != before:
                assert status.lifecycle.state == state, status.lifecycle
                return steps, status
        raise AssertionError(self.status())

    def estimate(self, lower: float) -> Status:
        return self.client.estimate(
            "aware", lower + 0.05, lower, "fqe", 1, tenant=self.tenant
        )  # fmt: skip


def bootstrap(one: Operated) -> float:
    """A new application whose rule acts; returns the rule's mean reward."""
    status = one.client.profile("aware", {"bootstrap": True}, tenant=one.tenant)
    assert status.lifecycle.state == "OFFLINE"
    assert status.lifecycle.why == "the profile of a new tenant"
    for number in range(WINDOW):
        assert f"{number} of {WINDOW} rewards of the rules" in one.status().lifecycle.evidence
        decision = one.step()
        assert (decision.source, decision.cause) == ("fallback", "lifecycle")
        assert decision.policy.name == "hpa"
    status, rule = one.status(), fmean(one.rewards)
    assert one.state() == ("OFFLINE", "fallback")
    assert "no estimate of the policy's reward" in status.lifecycle.evidence
    assert status.rewards["rule"]["mean"] == pytest.approx(rule)
    assert status.rewards["policy"]["count"] == 0
    assert status.shadow is not None
    assert status.shadow.decisions > 0, "the policy decides in the shadow"
    return rule


def end_offline(one: Operated, rule: float) -> None:
    """An estimate below the rule's reward changes nothing; one that reaches it ends OFFLINE."""
    status = one.estimate(rule - 0.01)
    assert (status.lifecycle.state, status.acting) == ("OFFLINE", "fallback")
    assert f"is below the {rule:.4g} of the rules" in status.lifecycle.evidence
    status = one.estimate(rule + 0.001)
    assert (status.lifecycle.state, status.acting) == ("ONLINE", "policy")
    assert f"(fqe) reaches the {rule:.4g} of the rules" in status.lifecycle.why


def serve(one: Operated, rule: float) -> float:
    """A trial, then SERVING until the shift; returns the converged reward."""
    decision = one.step()
    assert (decision.source, decision.cause) == ("policy", None)
    assert not any("is new" in note for note in decision.reason.notes), "known from the shadow"
    steps, status = one.until("SERVING", 2 * WINDOW)
    assert steps >= WINDOW - 1
    assert f"reaches the {rule:.4g} required by the rules" in status.lifecycle.why
    while len(one.rewards) < SHIFT:
        assert one.step().source == "policy"
    status = one.status()
    assert (status.lifecycle.state, status.acting) == ("SERVING", "policy")
    assert "required by its converged reward" in status.lifecycle.evidence
    converged: float = status.rewards["converged"]
    assert converged == pytest.approx(fmean(one.rewards[-2 * WINDOW :]), rel=0.03)
    assert converged > rule
    return converged


def fall(live: Live, one: Operated, to: str) -> Status:
    """The shift of the load: rewards fall, the state changes, and a retraining is recommended."""
    steps, status = one.until(to, 2 * WINDOW)
    why = status.lifecycle.why
    assert "below" in why
    assert status.drift["rewards"]["count"] > 0 or "the mean" in why
    assert steps <= WINDOW, "noticed in fewer rewards than a window has"

    def retraining_is_wanted() -> bool:
        """By a job that was submitted, or after one of another tenant; here no job can run."""
        found = one.status().retraining
        return found is not None and f"tenant {one.tenant}: {why}" in (
            found["why"], found["wanted"],
        )  # fmt: skip

    live.until(retraining_is_wanted, within_s=20)
    return status


def test_offline_online_serving_a_shift_and_back_offline(live: Live) -> None:
    """The policy earns less than the rule did: the rule acts again, until another estimate."""
    one = Operated(live.admin, "train:3", 0.05)
    rule = bootstrap(one)
    end_offline(one, rule)
    serve(one, rule)
    status = fall(live, one, "OFFLINE")
    assert status.acting == "fallback"
    assert status.lifecycle.estimate is None, "it is of before the shift"
    assert (status.rewards["policy"]["count"], status.rewards["converged"]) == (0, None)
    for _ in range(WINDOW):
        decision = one.step()
        assert (decision.source, decision.cause) == ("fallback", "lifecycle")
    end_offline(one, fmean(one.rewards[-WINDOW:]))
    assert one.step().source == "policy"


def test_a_policy_still_better_than_the_rule_goes_back_on_trial(live: Live) -> None:
    one = Operated(live.admin, "imageCompress+compress", 0.25)
    rule = bootstrap(one)
    end_offline(one, rule)
    converged = serve(one, rule)
    status = fall(live, one, "ONLINE")
    assert status.acting == "policy"
    assert rule < fmean(one.rewards[SHIFT:]) < converged
    assert one.step().source == "policy"

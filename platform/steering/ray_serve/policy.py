"""The policy class of `AutoscalingConfig(policy=...)`: decisions of the service, else Serve's rule.

Serve makes one object for each deployment in its controller and calls it every 0.1 s, so a call
does no more than compare a few numbers: a thread samples and requests decisions. Serve sends this
module by value; it imports what it needs from the package on the controller's node.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.envs.settings import build_settings
from loadmaster.platform.steering.ray_serve.decider import Answer, Decider
from loadmaster.platform.steering.ray_serve.history import View
from loadmaster.platform.steering.ray_serve.rule import OngoingRequestsRule
from loadmaster.platform.steering.ray_serve.settings import PolicySettings

POLICY = "loadmaster.platform.steering.ray_serve.policy:ServicePolicy"
GAUGE = "loadmaster_steer_replicas"  # exported by Ray with the prefix ray_


class ServicePolicy:
    """Replicas by the decision service; by the rule while there is no fresh decision.

    Keyword arguments are the fields of `PolicySettings`. With invalid ones the rule counts, and the
    controller's log has the reason: `autoscaling_policy` checks them before.
    """

    def __init__(
        self,
        decider: Callable[[str, PolicySettings], Decider] = Decider,
        clock: Callable[[], float] = time.monotonic,
        **settings: Any,
    ) -> None:
        self._log = logging.getLogger("ray.serve")
        self._make, self._clock = decider, clock
        self.decider: Decider | None = None  # made by the first call
        self._gauge: Any = None
        self._shown: tuple[Any, ...] = ()
        self._queued_since_s: float | None = None
        self._floor, self._floor_ends_s = 0.0, -math.inf
        try:
            self.settings: PolicySettings | None = build_settings(PolicySettings, settings)
        except InputError as fault:
            self._log.error("loadmaster: %s; Serve's rule decides", fault)
            self.settings = None
        chosen = self.settings or PolicySettings()
        self._rule = OngoingRequestsRule(
            chosen.rule_upscale_delay_s, chosen.rule_downscale_delay_s, chosen.load_metric
        )

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        """The number of replicas, and no state: Serve's interface."""
        now_s = self._clock()
        rule = self._rule.replicas(context, now_s)
        if self.settings is None:
            return rule, {}
        try:
            return self._replicas(self.settings, context, rule, now_s), {}
        except Exception:  # none may reach the controller's loop
            self._log.exception("loadmaster: the policy failed; Serve's rule decides")
            self.settings = None
            return rule, {}

    def _replicas(self, settings: PolicySettings, context: Any, rule: float, now_s: float) -> float:
        decider = self._started(settings, context)
        decider.view = view = self._view(context, now_s)
        answer = decider.answer
        if answer is not None and now_s - answer.at_s > settings.fresh_s:  # < 0: came since now_s
            answer = None
        floor = self._floor_of(settings, decider, view, rule)
        if settings.mode != "act" or answer is None or context.current_num_replicas == 0:
            found = rule
        else:
            found = max(float(min(max(answer.replicas, view.low), view.high)), floor)
        # Serve keeps to its bounds, so values beyond them are no news.
        within = [float(min(max(one, view.low), view.high)) for one in (rule, found)]
        self._show(decider.name, settings, answer, *within)
        return found

    def _view(self, context: Any, now_s: float) -> View:
        return View(
            now_s,
            context.target_num_replicas,
            frozenset(map(str, context.running_replicas)),
            context.capacity_adjusted_min_replicas,
            context.capacity_adjusted_max_replicas,
            float(context.config.get_target_ongoing_requests()),
            self._rule.load(context),
            float(context.total_queued_requests or 0.0),
        )

    def _floor_of(
        self, settings: PolicySettings, decider: Decider, view: View, rule: float
    ) -> float:
        """What requests that have waited for a replica for `queued_s` call for.

        That is what serves the arrivals and clears the queue within the SLO, and no more than the
        rule wants, which takes a queue for a lasting load. It stays for a control step after the
        last of them: replicas that start would be stopped before a decision has seen them.
        """
        if settings.queued_s is None:
            return 0.0
        if (view.queued or 0.0) < 1.0:
            self._queued_since_s = None
        elif self._queued_since_s is None:
            self._queued_since_s = view.at_s
        since_s = self._queued_since_s
        if since_s is not None and view.at_s - since_s >= settings.queued_s:
            floor, needed = math.ceil(rule), decider.history.needed(view.queued or 0.0)
            if needed is not None:
                floor = min(floor, max(math.ceil(needed), view.target))
            self._floor, self._floor_ends_s = float(floor), view.at_s + settings.step_s
        return self._floor if view.at_s < self._floor_ends_s else 0.0

    def _started(self, settings: PolicySettings, context: Any) -> Decider:
        """The decider, whose thread ends with this object or with its process."""
        if self.decider is None:
            name = f"{context.app_name}/{context.deployment_name}"
            self.decider = self._make(name, settings)
            weakref.finalize(self, self.decider.stop.set)
            threading.Thread(
                target=self.decider.run, name=f"loadmaster {name}", daemon=True
            ).start()
            delay_s = context.config.downscale_delay_s
            if settings.mode == "act" and delay_s > settings.step_s:
                self._log.warning(
                    "%s: loadmaster: downscale_delay_s is %g, so fewer replicas come that much "
                    "later than decided; expected at most step_s, %g",
                    name, delay_s, settings.step_s,
                )  # fmt: skip
        return self.decider

    def _show(
        self, name: str, settings: PolicySettings, answer: Answer | None, rule: float, found: float
    ) -> None:
        """Log and export what changed."""
        wanted = None if answer is None else answer.replicas
        shown = (wanted, math.ceil(rule) if answer is None else None, math.ceil(found))
        if shown == self._shown:
            return
        self._shown = shown
        by = "no decision: the rule" if answer is None else f"{answer.source}: {answer.reason}"
        self._log.info(
            "%s: loadmaster %s: wanted %s, rule %.2f, returned %g; %s",
            name, settings.mode, wanted, rule, found, by,
        )  # fmt: skip
        self._export(name, {"wanted": wanted, "rule": rule, "returned": found})

    def _export(self, name: str, values: dict[str, float | None]) -> None:
        import ray

        if not ray.is_initialized():
            return
        if self._gauge is None:
            from ray.util.metrics import Gauge

            self._gauge = Gauge(
                GAUGE,
                "Replicas by the decision service, by Serve's rule, and returned to Serve.",
                ("application", "deployment", "kind"),
            )
        application, _, deployment = name.partition("/")
        for kind, value in values.items():
            tags = {"application": application, "deployment": deployment, "kind": kind}
            self._gauge.set(-1.0 if value is None else float(value), tags=tags)


def autoscaling_policy(**settings: Any) -> dict[str, Any]:
    """`policy` of an `AutoscalingConfig`; an InputError for settings that are not valid."""
    build_settings(PolicySettings, settings)
    return {"policy_function": POLICY, "policy_kwargs": settings}

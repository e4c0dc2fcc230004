"""`loadmaster steer`: recommendations of a service or a rule, carried out in a running engine."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.platform.cli.options import (
    AsJson,
    Assignments,
    UsageError,
    argument,
    flag,
    option,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from loadmaster.platform.steering.core import Recommender, StepResult
    from loadmaster.platform.steering.registry import EngineSpec
    from loadmaster.platform.steering.settings import SteerSettings

METRICS_HOST = "0.0.0.0"  # scraped from other pods
REPORT_S = 2.0  # deadline of a report to the service


def steer(
    engine: Annotated[str | None, argument("ENGINE", "See --list.")] = None,
    application: Annotated[
        list[str] | None,
        argument("[NAME]...", "Applications: a cluster, a job, NAMESPACE/NAME. [default: all]"),
    ] = None,
    list_engines: Annotated[bool, flag("--list", "List the engines, and exit.")] = False,
    config: Annotated[
        Path | None, option("FILE", "YAML with settings, see docs/steering.md.")
    ] = None,
    mode: Annotated[
        str | None,
        option("watch|shadow|act", "Show, compare with the engine, or act. [default: watch]"),
    ] = None,
    apply: Annotated[bool, flag("--apply", "The same as --mode act.")] = False,
    recommender: Annotated[
        list[str] | None,
        option(
            "NAME",
            "service, a rule (see loadmaster list) or MODULE:NAME; may be repeated: the next one "
            "decides where the one before is silent. [default: service]",
        ),
    ] = None,
    url: Annotated[
        str | None, option("URL", "Address of the service. [default: http://127.0.0.1:8700]")
    ] = None,
    token_file: Annotated[
        Path | None,
        option("FILE", "File with the service's token. [default: variable LOADMASTER_TOKEN]"),
    ] = None,
    tenant: Annotated[
        str | None, option("NAME", "Tenant of the service. [default: one for each application]")
    ] = None,
    once: Annotated[bool, flag("--once", "One step, then exit.")] = False,
    every: Annotated[
        float | None, option("SECONDS", "Time between steps. [default: by engine]")
    ] = None,
    assignments: Assignments = None,
    prometheus: Annotated[
        str | None, option("URL", "Prometheus that has the metrics, as --set prometheus=URL.")
    ] = None,
    namespace: Annotated[
        str | None, option("NAME", "For kubernetes: steer all MPA objects of it.")
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        option(
            "FILE",
            "For kubernetes. "
            "[default: the pod's service account, else $KUBECONFIG or ~/.kube/config]",
        ),
    ] = None,
    context: Annotated[
        str | None, option("NAME", "For kubernetes: context of the kubeconfig.")
    ] = None,
    window: Annotated[
        float | None, option("SECONDS", "For kubernetes: time that rates are over. [default: 30]")
    ] = None,
    metrics_port: Annotated[
        int | None, option("N", "Serve metrics of the steps at /metrics.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Steer running applications by recommendations.

    Reads an engine, requests a decision with its reason, and shows it. With --mode shadow it is
    also compared with what the engine does, and outcomes are sent to the service; with --mode act
    it is carried out. If a part is silent, plans are held, and jobs left to the engine. Exit codes:
    0 done, 1 a part was silent or refused in the last step, 2 bad input.

    Example:

        loadmaster steer --list

        loadmaster steer slurm --recommender las-fastest --once

        loadmaster steer kubernetes shop/cart --prometheus http://prometheus:9090 --once

        loadmaster steer kubernetes --mode act --recommender service --recommender mpa
    """
    from loadmaster.envs.settings import build_settings, parse_assignments
    from loadmaster.platform.steering.registry import engines, find_engine
    from loadmaster.platform.steering.settings import read_settings

    if list_engines:
        specs = [find_engine(name) for name in engines()]
        if as_json:
            keys = "name", "system", "summary"
            print_json({"engines": [{key: getattr(spec, key) for key in keys} for spec in specs]})
            return
        rows = [(spec.name, spec.system, spec.summary) for spec in specs]
        print_table(("engine", "decided by", ""), rows)
        return
    if engine is None:
        raise UsageError(f"no ENGINE is named; expected one of: {', '.join(engines())}")
    spec = find_engine(engine)
    if apply and mode not in (None, "act"):
        raise UsageError(f"--apply is --mode act, and --mode is {mode}; expected one of them")
    given = {
        "mode": "act" if apply else mode, "recommender": recommender, "url": url,
        "token_file": token_file, "tenant": tenant, "every_s": every, "metrics_port": metrics_port,
        "applications": application or None,
    }  # fmt: skip
    own = {
        "prometheus": prometheus, "namespace": namespace, "kubeconfig": kubeconfig,
        "context": context, "window_s": window,
    }  # fmt: skip
    settings = read_settings(
        config, _present(given), {**parse_assignments(assignments or ()), **_present(own)}
    )
    inner = build_settings(spec.settings, settings.settings)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
    _run(spec, settings, inner, once, as_json)


def _run(spec: EngineSpec, settings: SteerSettings, inner: Any, once: bool, as_json: bool) -> None:
    from loadmaster.platform.cli.decide import read_token
    from loadmaster.platform.steering.core import Steerer
    from loadmaster.platform.steering.jobs import JobSteerer
    from loadmaster.platform.steering.loop import KEPT_S, SteeringMetrics, metrics_server
    from loadmaster.platform.steering.loop import steer as run
    from loadmaster.platform.steering.recommenders import SERVICE, find_recommender
    from loadmaster.platform.steering.reports import ServiceReports
    from loadmaster.serving.client import Client

    token = None if settings.token_file is None else read_token(settings.token_file)
    mode, names = settings.mode, settings.applications

    @cache
    def named(recommenders: tuple[str, ...], foreign: bool = False) -> Recommender:
        """By default those of an application, whose author must not have code loaded."""
        shadow, tenant = mode == "shadow", settings.tenant
        return find_recommender(
            recommenders, spec.endpoint, settings.url, token,
            foreign=foreign, shadow=shadow, tenant=tenant,
        )  # fmt: skip

    chosen = named(settings.recommender, True)
    steerer: Any
    if spec.by_jobs:
        steerer = JobSteerer(chosen, mode, settings.limits, settings.cadence_of(spec))
    else:
        steerer = Steerer(chosen, mode, named=named)
    every_s = settings.every_s or spec.every_s
    metrics = SteeringMetrics(max(KEPT_S, 3.0 * every_s))
    show = _Printer(as_json, changes_only=spec.by_jobs and not once)

    reports: ServiceReports | None = None

    def report(result: StepResult) -> None:
        metrics.record(result, time.time())
        show(result)
        if reports is not None:
            reports.record(result)

    with ExitStack() as stack:
        if SERVICE in settings.recommender:
            client = Client(settings.url, token, REPORT_S, retries=0)
            reports = stack.enter_context(
                ServiceReports(
                    client, spec.system, spec.name, mode, settings.tenant, time.monotonic
                )
            )
        applications = stack.enter_context(spec.connect(inner, names, mode))
        if settings.metrics_port is not None:
            stack.enter_context(metrics_server(metrics, METRICS_HOST, settings.metrics_port))
        stopped = stack.enter_context(_until_terminated())
        degraded = run(
            applications,
            steerer,
            report,
            None if once else every_s,
            strict=once or bool(names),
            stopped=stopped,
        )
    if degraded:
        raise typer.Exit(1)


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


class _Printer:
    """Print a step as a line on stdout; also on stderr if an operator should look.

    With `changes_only` a step that changes nothing is printed where it differs from the last one.
    """

    def __init__(self, as_json: bool, changes_only: bool) -> None:
        self._as_json, self._changes_only = as_json, changes_only
        self._last: dict[str, tuple[Any, ...]] = {}

    def __call__(self, result: StepResult) -> None:
        if self._changes_only:
            seen = result.result, result.silent, result.commands, result.source
            repeated = self._last.get(result.application) == seen
            self._last[result.application] = seen
            if result.result != "acted" and repeated:
                return
        if self._as_json:
            print(json.dumps({**_plain(asdict(result)), "degraded": result.degraded}), flush=True)
        else:
            print(result.line(), flush=True)
        if result.degraded:
            print(f"error: {result.line()}", file=sys.stderr, flush=True)


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    return {name: dict(one) if isinstance(one, dict) else one for name, one in record.items()}


@contextmanager
def _until_terminated() -> Iterator[threading.Event]:
    """An event that SIGTERM sets, so that the step under way ends first."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGTERM, before)

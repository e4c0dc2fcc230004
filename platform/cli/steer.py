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

from loadmaster.platform.cli.options import UsageError, argument, flag, option

if TYPE_CHECKING:
    from loadmaster.platform.steering.core import Recommender, StepResult

ENGINES = ("kubernetes",)
DEFAULT_EVERY_S = 60.0
METRICS_HOST = "0.0.0.0"  # scraped from other pods


def steer(
    engine: Annotated[str, argument("ENGINE", f"One of: {', '.join(ENGINES)}.")],
    application: Annotated[
        list[str] | None,
        argument("[NAMESPACE/NAME]...", "MPA objects. [default: all of --namespace]"),
    ] = None,
    prometheus: Annotated[
        str, option("URL", "Prometheus that has the metrics.")
    ] = "http://127.0.0.1:9090",
    recommender: Annotated[
        list[str] | None,
        option(
            "NAME",
            "service, a rule (see loadmaster list) or MODULE:NAME; may be repeated: the next one "
            "decides where the one before is silent. [default: service]",
        ),
    ] = None,
    url: Annotated[str, option("URL", "Address of the service.")] = "http://127.0.0.1:8700",
    token_file: Annotated[
        Path | None,
        option("FILE", "File with the service's token. [default: variable LOADMASTER_TOKEN]"),
    ] = None,
    apply: Annotated[
        bool, flag("--apply", "Change the cluster. Without it, recommendations only.")
    ] = False,
    once: Annotated[bool, flag("--once", "One step, then exit.")] = False,
    every: Annotated[float, option("SECONDS", "Time between steps.")] = DEFAULT_EVERY_S,
    namespace: Annotated[
        str | None, option("NAME", "Steer all MPA objects of it. [default: all namespaces]")
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        option("FILE", "[default: the pod's service account, else $KUBECONFIG or ~/.kube/config]"),
    ] = None,
    context: Annotated[str | None, option("NAME", "Context of the kubeconfig.")] = None,
    window: Annotated[
        float, option("SECONDS", "Time that rates are over: at least two scrapes.")
    ] = 30.0,
    metrics_port: Annotated[
        int | None, option("N", "Serve metrics of the steps at /metrics.")
    ] = None,
    as_json: Annotated[bool, flag("--json", "Print each step as a line of JSON.")] = False,
) -> None:
    """Steer running applications by recommendations.

    Reads metrics, requests a plan with its reason, and writes it to the status of the application's
    MPA object: a dry run. With --apply it also changes replicas, and sizes of pods in place. If a
    part is silent, the plan is held, later raised to the last safe one. Exit codes: 0 done, 1 a
    part was silent or refused in the last step, 2 bad input.

    Example:

        loadmaster steer kubernetes shop/cart --prometheus http://prometheus:9090 --once

        loadmaster steer kubernetes --apply --recommender service --recommender mpa
    """
    from loadmaster.envs.errors import unknown_name
    from loadmaster.platform.cli.decide import read_token
    from loadmaster.platform.steering.core import Steerer
    from loadmaster.platform.steering.kubernetes.access import find_access
    from loadmaster.platform.steering.kubernetes.client import KubernetesClient
    from loadmaster.platform.steering.kubernetes.engine import ENDPOINT, applications
    from loadmaster.platform.steering.kubernetes.queries import MetricReader
    from loadmaster.platform.steering.loop import SteeringMetrics, metrics_server
    from loadmaster.platform.steering.loop import steer as run
    from loadmaster.platform.steering.prometheus import Prometheus
    from loadmaster.platform.steering.recommenders import SERVICE, find_recommender

    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if not every > 0:
        raise UsageError(f"--every is {every:g}; expected seconds above 0")
    if not window >= 1:
        raise UsageError(f"--window is {window:g}; expected seconds, at least two scrapes")
    names = application or []
    for name in names:
        if name.count("/") != 1 or not all(name.split("/")):
            raise UsageError(f"application {name!r} is malformed; expected NAMESPACE/NAME")
    token = None if token_file is None else read_token(token_file)
    chosen = find_recommender(recommender or [SERVICE], ENDPOINT, url, token)

    @cache
    def named(names: tuple[str, ...]) -> Recommender:
        """Those of an object, whose author must not have code loaded."""
        return find_recommender(names, ENDPOINT, url, token, foreign=False)

    client = KubernetesClient(find_access(kubeconfig, context))
    reader = MetricReader(Prometheus(prometheus), window)
    metrics = SteeringMetrics()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")

    def report(result: StepResult) -> None:
        metrics.record(result, time.time())
        _print_step(result, as_json)

    with ExitStack() as stack:
        stack.callback(client.close)
        stack.callback(reader.prometheus.close)
        if metrics_port is not None:
            stack.enter_context(metrics_server(metrics, METRICS_HOST, metrics_port))
        stopped = stack.enter_context(_until_terminated())
        degraded = run(
            lambda: applications(client, reader, names, namespace, apply),
            Steerer(chosen, apply, named=named),
            report,
            None if once else every,
            strict=once or bool(names),
            stopped=stopped,
        )
    if degraded:
        raise typer.Exit(1)


def _print_step(result: StepResult, as_json: bool) -> None:
    """A line on stdout; also on stderr if an operator should look."""
    if as_json:
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

"""`loadmaster serve`: decisions of trained policies over HTTP."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadmaster.platform.cli.options import Assignments, UsageError, flag, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loadmaster.serving.client import Decision
    from loadmaster.serving.settings import ServeSettings


def serve(
    bundle: Annotated[
        list[str] | None,
        option(
            "SYSTEM=BUNDLE",
            "Serve this bundle: a folder, a URL, or a pretrained one's name; may be repeated.",
        ),
    ] = None,
    config: Annotated[Path | None, option("FILE", "Settings in YAML: see docs/serving.md.")] = None,
    host: Annotated[
        str | None, option("ADDRESS", "Address to listen on. [default: 127.0.0.1]")
    ] = None,
    port: Annotated[int | None, option("N", "Port. [default: 8700]")] = None,
    tokens: Annotated[
        Path | None,
        option(
            "FILE",
            "Access tokens: lines `read TOKEN` or `admin TOKEN`; limited: `read TOKEN tenant=a,b`.",
        ),
    ] = None,
    folder: Annotated[
        Path | None, option("DIR", "For state and logs, kept across restarts.")
    ] = None,
    assignments: Assignments = None,
    address: Annotated[
        str | None,
        option("auto|HOST:PORT", "A running Ray cluster. [default: a new local Ray]"),
    ] = None,
    name: Annotated[
        str | None, option(None, "Application on the cluster. [default: loadmaster]")
    ] = None,
    replace: Annotated[
        bool, flag("--replace", "Replace the cluster's application of that name.")
    ] = False,
    only_try: Annotated[
        bool, flag("--try", "Print one decision of every system, and stop.")
    ] = False,
) -> None:
    """Serve policies: decisions over HTTP, with reasons.

    Without arguments the pretrained policies of every system are served to this machine alone.
    Stop it with Ctrl-C. With --address, the service runs on a node of the cluster, the one of this
    command, and only its own application is removed at the end. With --try, the exit code is 1 if a
    decision was not made by the policy within the deadline.

    Example:

        loadmaster serve

        loadmaster serve --bundle decima=bundles/decima-mine --set systems.decima.deadline_ms=50

        loadmaster serve --address auto --host 0.0.0.0 --tokens tokens
    """
    from loadmaster.envs.settings import build_settings
    from loadmaster.models.storage import check_local
    from loadmaster.platform.ray import serve_session as service
    from loadmaster.platform.ray.cleanup import terminable
    from loadmaster.platform.ray.serve_settings import serve_arguments
    from loadmaster.platform.ray.session import ray_session, set_ray_env
    from loadmaster.serving.settings import ServeSettings

    check_local(folder, "--folder")
    given = {"host": host, "port": port, "tokens": tokens, "folder": folder}
    arguments = serve_arguments(config, bundle or [], assignments or [], given)
    settings = build_settings(ServeSettings, arguments)
    application = name or service.APPLICATION
    if address is None:
        if name is not None or replace:
            raise UsageError("--name and --replace need --address; a new Ray has no applications")
        set_ray_env(None)
        service.set_serve_env()
        session = ray_session(dashboard=True, cpus=service.own_head_cpus(settings))
        deployed = service.serving(arguments)
    else:
        set_ray_env(address)
        service.refuse_token_variable(os.environ)
        service.set_variables()
        session = ray_session(address, env=service.ENVIRONMENT)
        deployed = service.serving_on_cluster(arguments, application, replace)
    service.check_reachability(settings, os.environ, takes_over=replace)
    for one in settings.systems.values():
        one.log.check_folder()
    where = "Ray and the service" if address is None else f"the service on {address}"
    typer.echo(f"starting {where}; the first time this compiles, for some minutes")
    faults: list[str] = []
    with (
        service.private_umask(),
        terminable(),
        session,
        service.until_stopped() as stopped,  # after Ray, which replaces the SIGTERM handler
        deployed,
    ):
        if service.wait_until_ready(settings, stopped, application):
            print_endpoints(settings)
            if only_try:
                faults = try_systems(settings)
            else:
                stopped.wait()
    typer.echo("stopped")
    if faults:
        typer.echo(f"error: {'; '.join(faults)}", err=True)
        raise typer.Exit(1)


def print_endpoints(settings: ServeSettings) -> None:
    """Print each system's bundle, deadline and rule, the addresses, and who has access."""
    from loadmaster.platform.ray.serve_session import base_url
    from loadmaster.serving.http.auth import TokenStore, file_warning
    from loadmaster.serving.policies.store import resolve_bundle
    from loadmaster.serving.system import find_endpoint

    url = base_url(settings)
    for name, one in settings.systems.items():
        endpoint = find_endpoint(name, one.endpoint)
        bundle = resolve_bundle(one.bundle or endpoint.pretrained).name
        typer.echo(
            f"{name}: {bundle}, within {one.deadline_ms:g} ms, else {one.rule or endpoint.rules[0]}"
        )
    typer.echo(f"Serving at {url}; console: {url}/console, routes: {url}/docs")
    if settings.tokens is not None and (warning := file_warning(settings.tokens)) is not None:
        typer.echo(f"warning: {warning}", err=True)
    uses_tokens = bool(TokenStore(settings.tokens).principals)
    if not uses_tokens:
        typer.echo("No tokens are set: only this machine has access.")
    typer.echo("Try:")
    for line in _commands(settings, url, uses_tokens):
        typer.echo(f"  {line}")


def _commands(settings: ServeSettings, url: str, uses_tokens: bool) -> Iterator[str]:
    """Shell commands, to be typed as they are, that request a decision about an example."""
    from loadmaster.envs.registry import systems
    from loadmaster.serving.client.clients import DEFAULT_URL
    from loadmaster.serving.client.http1 import TOKEN_VARIABLE
    from loadmaster.serving.http.auth import TOKENS

    if uses_tokens:
        lines = f"printenv {TOKENS}"
        if settings.tokens is not None:
            lines = f"cat {shlex.quote(str(settings.tokens.resolve()))}"
        first = """awk '$1 == "read" || $1 == "admin" {print $2; exit}'"""
        yield f"export {TOKEN_VARIABLE}=$({lines} | tr , '\\n' | {first})"
    system = next(iter(settings.systems))
    example = f"loadmaster state {system}"
    if system not in systems():
        token = f'--header "Authorization: Bearer ${TOKEN_VARIABLE}" ' if uses_tokens else ""
        example = f"curl --silent {token}{shlex.quote(f'{url}/v1/{system}/example')}"
    at = f" --url {shlex.quote(url)}" if url != DEFAULT_URL else ""
    yield f"{example} | loadmaster decide {system} -{at}"


def try_systems(settings: ServeSettings) -> list[str]:
    """Request one decision from every system about its example; return the faults."""
    from loadmaster.platform.cli.decide import decision_lines
    from loadmaster.platform.ray.serve_session import base_url
    from loadmaster.serving.client import Client, ServiceError
    from loadmaster.serving.http.auth import first_token

    faults, token = [], first_token(settings.tokens)
    with Client(base_url(settings), token, deadline_s=30.0) as client:
        for system, one in settings.systems.items():
            try:
                decision = client.decide(system, client.example(system, "small"))
            except ServiceError as fault:
                faults.append(f"{system} does not decide: {fault}")
                continue
            typer.echo(f"\n{system}, decision about its example:")
            for line in decision_lines(decision):
                typer.echo(f"  {line}")
            if wrong := decision_fault(decision, one.deadline_ms):
                faults.append(f"{system} {wrong}")
    return faults


def decision_fault(decision: Decision, deadline_ms: float) -> str | None:
    """Why a decision is not one of the policy within the deadline; None if it is."""
    if decision.source != "policy":
        cause = f" ({decision.cause})" if decision.cause else ""
        return f"was decided by the {decision.source}{cause}; expected the policy"
    if decision.latency_ms > deadline_ms:
        return f"took {decision.latency_ms:.1f} ms; expected at most {deadline_ms:g} ms"
    return None

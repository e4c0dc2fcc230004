"""`loadmaster serve`: trained policies behind HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from loadmaster.serving.settings import ServeSettings


def serve(
    bundle: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SYSTEM=BUNDLE",
            help="Serve this bundle: a folder, or a pretrained one's name; may be repeated.",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings in YAML: see docs/serving.md.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Listen here. [default: 127.0.0.1]")
    ] = None,
    port: Annotated[int | None, typer.Option(metavar="N", help="And here. [default: 8700]")] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Who may ask: lines `read TOKEN` or `admin TOKEN`."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where state and logs are kept across restarts."),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting; may be repeated."),
    ] = None,
    only_try: Annotated[
        bool,
        typer.Option("--try", help="Ask every system for one decision, print it, and stop."),
    ] = False,
) -> None:
    """Serve policies: decisions over HTTP, with reasons.

    Without arguments the pretrained policies of every system are served on this machine alone.
    Stop it with Ctrl-C.

    Example:

        loadmaster serve

        loadmaster serve --bundle decima=bundles/decima-mine --set systems.decima.deadline_ms=50
    """
    from loadmaster.platform.ray.serve_settings import serve_arguments

    given = {"host": host, "port": port, "tokens": tokens, "folder": folder}
    arguments = serve_arguments(config, bundle or [], assignments or [], given)
    _run(arguments, only_try)


def _run(arguments: dict[str, Any], only_try: bool) -> None:
    import os

    from loadmaster.envs.settings import build_settings
    from loadmaster.platform.ray.serve_session import (
        check_reachability,
        serving,
        set_serve_env,
        terminable,
        until_stopped,
        wait_until_ready,
    )
    from loadmaster.platform.ray.session import ray_session, set_ray_env
    from loadmaster.serving.settings import ServeSettings

    settings = build_settings(ServeSettings, arguments)
    check_reachability(settings, os.environ)
    set_ray_env(None)
    set_serve_env()
    typer.echo("starting Ray and the service; the first time this compiles, for some minutes")
    # Ray takes SIGTERM for itself when it starts: whoever wants it has to come after.
    with terminable(), ray_session(dashboard=True), until_stopped() as stopped, serving(arguments):
        if wait_until_ready(settings, stopped):
            _tell(settings)
            if only_try:
                _ask_each(settings)
            else:
                stopped.wait()
    typer.echo("stopped")


def _tell(settings: ServeSettings) -> None:
    from loadmaster.platform.ray.serve_session import base_url
    from loadmaster.serving.http.auth import exposure
    from loadmaster.serving.policies.store import resolve_bundle
    from loadmaster.serving.system import find_endpoint

    url = base_url(settings)
    for name, one in settings.systems.items():
        endpoint = find_endpoint(name, one.endpoint)
        served = resolve_bundle(one.bundle or endpoint.pretrained).name
        typer.echo(
            f"{name}: {served}, within {one.deadline_ms:g} ms, else {one.rule or endpoint.rules[0]}"
        )
    typer.echo(f"Serving at {url}; console: {url}/console, routes: {url}/docs")
    if settings.tokens is None and settings.is_private:
        typer.echo("No tokens are set: only this machine can ask.")
    if settings.tokens is not None and (warning := exposure(settings.tokens)) is not None:
        typer.echo(f"warning: {warning}", err=True)
    first = next(iter(settings.systems))
    typer.echo(f"Try: loadmaster state {first} | loadmaster decide {first} -")


def _ask_each(settings: ServeSettings) -> None:
    """One decision of every system, about its own example."""
    from loadmaster.envs.errors import InputError
    from loadmaster.platform.cli.decide import described
    from loadmaster.platform.ray.serve_session import base_url
    from loadmaster.serving.client import Client, ServiceError

    with Client(base_url(settings), deadline_s=30.0) as client:
        for system in settings.systems:
            try:
                decision = client.decide(system, client.example(system, "small"))
            except ServiceError as fault:
                raise InputError(f"{system} does not decide: {fault}") from None
            typer.echo(f"\n{system}, asked about its example:")
            for line in described(decision):
                typer.echo(f"  {line}")

"""`loadmaster doctor`: check the installation."""

from __future__ import annotations

from typing import Annotated

import typer

from loadmaster.platform.cli.options import AsJson


def doctor(
    as_json: AsJson = False,
    ray: Annotated[
        bool,
        typer.Option("--ray", help="Also connect to Ray, or start it, and list its resources."),
    ] = False,
) -> None:
    """Check this installation, with a remedy for each fault.

    The exit code is 1 if a check fails; warnings do not count.

    Example:

        loadmaster doctor

        loadmaster doctor --ray --json
    """
    from loadmaster.platform.ray.health import examine

    if as_json:
        import json
        from dataclasses import asdict

        checks = list(examine(start_ray=ray))
        print(json.dumps({"checks": [asdict(check) for check in checks]}, indent=2))
    else:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        console = Console(highlight=False)
        table = Table("check", "", "finding", box=None, header_style="dim")
        colours = {"ok": "green", "warn": "yellow", "fail": "red"}
        checks = []
        with console.status("checking"):
            for check in examine(start_ray=ray):
                checks.append(check)
                remedy = f"\n-> {check.remedy}" if check.remedy else ""
                mark = f"[{colours[check.status]}]{check.status}[/]"
                table.add_row(check.name, mark, escape(check.detail + remedy))
        console.print(table)
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)

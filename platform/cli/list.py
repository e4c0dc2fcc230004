"""`loadmaster list` and `loadmaster doctor`: contents and state of this installation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.platform.cli import options
from loadmaster.platform.cli.options import AsJson, flag

if TYPE_CHECKING:
    from rich.table import Table

    from loadmaster.envs.registry import Named


def list_everything(as_json: AsJson = False) -> None:
    """List systems, environments and policies.

    Example:

        loadmaster list

        loadmaster list --json
    """
    if as_json:
        options.print_json(listing())
    else:
        _print_tables()


def listing() -> dict[str, Any]:
    """Systems, environments and pretrained policies as JSON; keys are stable."""
    from loadmaster.envs.registry import environments, systems
    from loadmaster.models.manifest import pretrained_policies
    from loadmaster.platform.systems.bundle_ref import pretrained

    return {
        "systems": [
            {
                "id": system.name,
                "environment": system.environment,
                "summary": system.summary,
                "available": system.available,
                "pretrained": [
                    {"id": found.folder.name, "trained_on": found.trained_on}
                    for found in pretrained(system)
                ],
            }
            for system in systems().values()
        ],
        "environments": [
            {
                "id": spec.gym_id,
                "name": spec.name,
                "summary": spec.summary,
                "baselines": list(spec.baselines),
                "workloads": list(spec.workloads),
            }
            for spec in environments().values()
        ],
        "pretrained": pretrained_policies(),
    }


def _print_tables() -> None:
    from rich.console import Console

    from loadmaster.envs.registry import environments, systems
    from loadmaster.platform.systems.bundle_ref import pretrained

    console = Console(highlight=False)
    for spec in environments().values():
        console.print(f"[bold]{spec.name}[/bold]  {spec.gym_id}\n{spec.summary}\n")
        console.print(_table("baseline", _summaries(spec.baseline_records.values())))
        console.print(_table("workload", _summaries(spec.workload_records.values())))
    console.print(_table("system", _summaries(systems().values())))
    bundles = {
        found.folder.name: f"{system.name}, trained on {found.trained_on}"
        for system in systems().values()
        for found in pretrained(system)
    }
    console.print(_table("pretrained policy", bundles) if bundles else "pretrained policies: none")


def _summaries(records: Iterable[Named]) -> dict[str, str]:
    return {record.name: record.summary for record in records}


def _table(heading: str, rows: Mapping[str, str]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(heading, "summary", box=None, header_style="dim")
    for name, summary in rows.items():
        table.add_row(name, escape(summary))
    table.add_row()
    return table


def doctor(
    as_json: AsJson = False,
    ray: Annotated[
        bool, flag("--ray", "Also connect to Ray, or start it, and list its resources.")
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
        checks = list(examine(start_ray=ray))
        options.print_json({"checks": [asdict(check) for check in checks]})
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

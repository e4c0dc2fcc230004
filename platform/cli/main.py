"""The command line, `loadmaster COMMAND`.

A command's module is imported when it is called, so that `--help` is quick. Bad input ends here as
one line on stderr and an exit code: 0 done, 1 a check failed, 2 bad input, 130 interrupted.
"""

import errno
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class Command(NamedTuple):
    """Module and function of a command; the summary is the docstring's first line."""

    module: str
    function: str
    summary: str


COMMANDS = {
    "list": Command("list", "list_everything", "List systems, environments and policies."),
    "evaluate": Command("evaluate", "evaluate", "Compare policies on the same job sequences."),
    "train": Command("train", "train", "Train a policy in parallel rollout workers on Ray."),
    "curve": Command("runs", "curve", "Draw the learning curves of runs in one picture."),
    "export": Command("runs", "export", "Save a run's policy as a bundle of its own."),
    "tune": Command("tune", "tune", "Search a system's settings with a sweep file."),
    "serve": Command("serve", "serve", "Serve policies: decisions over HTTP, with reasons."),
    "replay": Command(
        "replay", "replay", "Watch policies at work: one web page, no network needed."
    ),
    "decide": Command("decide", "decide", "Request one decision from a running service."),
    "state": Command(
        "decide", "state", "Print an example of the state that a system decides about."
    ),
    "steer": Command("steer", "steer", "Steer running applications by recommendations."),
    "calibrate": Command("calibrate", "calibrate", "Tune the baselines that have parameters."),
    "retrain": Command(
        "retrain", "retrain", "Train a bundle further on a changed workload, and compare."
    ),
    "fit": Command("fit", "fit", "Find the best scheduler for your own trace."),
    "adapt": Command(
        "adapt", "adapt", "Adapt a policy to one application, and compare it with rules."
    ),
    "submit": Command("jobs", "submit", "Run a command as a job on a Ray cluster."),
    "jobs": Command("jobs", "jobs", "List the jobs of a cluster, show their logs, stop them."),
    "bench": Command("bench", "bench", "Measure speed against published figures."),
    "doctor": Command("list", "doctor", "Check this installation, with a remedy for each fault."),
}
# Packages of the extras `train` and `serve`, by import name.
SERVE_PACKAGES = ("aiohttp", "fastapi", "starlette", "uvicorn")
OPTIONAL_PACKAGES = {
    "ray": "Ray",
    "cma": "cma",
    "requests": "requests",
    "tensorboardX": "tensorboardX",
    **{name: name for name in SERVE_PACKAGES},
}


class LazyGroup(TyperGroup):
    """Lists the commands of the table above; imports the one that is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, command in COMMANDS.items():
            self.add_command(TyperCommand(name, help=command.summary, rich_markup_mode=None), name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name else None, rest


def load_command(name: str) -> Any:
    """Import the command `name` and build its parser from the function's signature."""
    command = COMMANDS[name]
    module = import_module(f"loadmaster.platform.cli.{command.module}")
    function: Callable[..., None] = getattr(module, command.function)
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, context_settings={"help_option_names": ["-h", "--help"]})(function)
    return typer.main.get_command(single)


app = typer.Typer(
    cls=LazyGroup, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"loadmaster {version('loadmaster')}")
        raise typer.Exit


@app.callback()
def loadmaster(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Train, evaluate and serve learned schedulers and autoscalers.

    Example:

        loadmaster evaluate dag_scheduling --against all --seeds 20
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        group = typer.main.get_command(app)
        code = group.main(given or ["--help"], prog_name="loadmaster", standalone_mode=False)
    except KeyboardInterrupt:
        code = 130
    except Exception as fault:
        line = _one_line(fault, given[0] if given else "")
        if line is None or os.environ.get("LOADMASTER_TRACEBACK"):
            raise
        print(f"error: {line}", file=sys.stderr)
        return 2
    if code == 130:
        print("interrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _one_line(fault: Exception, command: str) -> str | None:
    """The message for the user; None for a bug, which keeps its traceback."""
    from loadmaster.envs.errors import InputError  # late: it imports numpy

    if isinstance(fault, InputError):
        text = str(fault)
    elif isinstance(fault, ModuleNotFoundError):
        package = (fault.name or "").partition(".")[0]
        if package not in OPTIONAL_PACKAGES:
            return None
        extra = "serve" if command == "serve" or package in SERVE_PACKAGES else "train"
        name = OPTIONAL_PACKAGES[package]
        text = f"`loadmaster {command}` needs {name}; expected pip install 'loadmaster[{extra}]'"
    elif isinstance(fault, typer.TyperException):  # an unknown command or option, a wrong type
        text = fault.format_message()
    elif isinstance(fault, OSError) and fault.filename is not None:
        text = f"{fault.filename}: {fault.strerror or fault}"
    elif isinstance(fault, OSError) and fault.errno in (errno.ENOSPC, errno.EDQUOT):
        text = f"cannot write: {fault.strerror}"
    else:
        return None
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main())

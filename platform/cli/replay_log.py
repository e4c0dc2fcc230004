"""`loadmaster replay --log`: what the service has decided, decided again."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import typer

from loadmaster.envs.errors import InputError
from loadmaster.models.manifest import visible
from loadmaster.platform.replay.decision_log import Outcome, given_bundles, replay_log
from loadmaster.serving.monitoring.log_files import read_log
from loadmaster.serving.timestamps import parse_timestamp

FOR_LOGS = ("log", "bundle", "since", "until")
FOR_BOTH = ("as_json",)
LOG_OPTIONS = "--bundle, --since, --until or --json"
LONGEST = 300  # characters of a decision that are shown


def check_options(context: typer.Context, logged: bool) -> None:
    """Refuse what belongs to the other kind of replay: it would be ignored in silence."""
    given = [
        option
        for option in context.command.params
        if getattr(context.get_parameter_source(option.name or ""), "name", "") == "COMMANDLINE"
    ]
    for option in given:
        name = option.opts[0] if option.opts[0].startswith("-") else "TARGET"
        if logged and option.name not in (*FOR_LOGS, *FOR_BOTH):
            raise InputError(f"{name} is of no use with --log; expected {LOG_OPTIONS} beside it")
        if not logged and option.name in FOR_LOGS:
            raise InputError(f"{name} is of no use without --log; expected --log FOLDER beside it")
    if not logged and all(option.name != "target" for option in given):
        raise InputError("Missing argument 'TARGET'; expected it, or --log FOLDER")


def replay_decisions(
    folder: Path, bundles: list[str], since: str | None, until: str | None, as_json: bool
) -> None:
    """Print how the log compares; the exit code is 1 if a version contradicts itself."""
    from rich.console import Console

    now = time.time()
    first = None if since is None else parse_timestamp(since, "--since", now)
    last = None if until is None else parse_timestamp(until, "--until", now)
    if first is not None and last is not None and first >= last:
        raise InputError(f"--since {since} is not before --until {until}; expected it to be")
    given = given_bundles(bundles)
    rows = read_log(folder, first, last, lambda line: print(f"warning: {line}", file=sys.stderr))
    with Console(stderr=True, highlight=False).status("reading the log") as status:
        outcome = replay_log(rows, given, lambda count: status.update(f"{count:,} decisions"))
    print(json.dumps(outcome.record(), indent=2) if as_json else in_words(outcome))
    if outcome.broken:
        raise typer.Exit(1)


def in_words(outcome: Outcome) -> str:
    lines = [
        f"{outcome.replayed:,} decisions replayed: {outcome.identical:,} identical, "
        f"{outcome.different:,} different"
    ]
    if outcome.broken:
        lines.append(f"{outcome.broken:,} of the different ones by the same version: look into it")
    for each in outcome.shown:
        whose = "same version" if each.same_version else f"now {each.by}"
        lines.append(f"  {visible(each.id)}, {each.time}, {each.system}, {each.policy} ({whose})")
        lines += [
            f"    then: {visible(each.then, LONGEST)}",
            f"    now:  {visible(each.now, LONGEST)}",
        ]
    if outcome.different > len(outcome.shown):
        lines.append(f"  and {outcome.different - len(outcome.shown):,} more")
    left = outcome.not_replayable
    if left:
        lines.append(f"{sum(left.values()):,} not replayable:")
        lines += [f"  {count:,}: {why}" for why, count in left.items()]
    return "\n".join(lines)

"""`loadmaster decide`: one decision of a running service, from the shell."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from loadmaster.serving.client import Choice, Client, Decision, ServiceError, calls
from loadmaster.serving.client.base import URL
from loadmaster.serving.client.calls import Mode
from loadmaster.serving.client.errors import one_line

MOST_BYTES = 32 * 2**20  # of a state: the largest cluster's takes a few MB
MOST_TOKEN_BYTES = 4096
SHOWN_CHOICES = 5
BAD_INPUT = (400, 404, 413, 415, 422)  # refusals whose cause is what was sent


def decide(
    system: Annotated[str, typer.Argument(metavar="SYSTEM", help="See loadmaster list.")],
    state: Annotated[
        str, typer.Argument(metavar="STATE.json", help="The state as JSON; - reads it from stdin.")
    ],
    url: Annotated[str, typer.Option(metavar="URL", help="Where the service is.")] = URL,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Holds the token. [default: the environment's LOADMASTER_TOKEN]"
        ),
    ] = None,
    shadow: Annotated[
        bool, typer.Option("--shadow", help="Let the rule decide, and see what the policy would.")
    ] = False,
    deadline: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long to wait for an answer.")
    ] = 5.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the whole answer as JSON.")
    ] = False,
) -> None:
    """Ask a running service for one decision.

    Shows what it decided, who did (the policy or the rule that stands in for it), why, and what
    else was weighed. Exit codes: 0 decided, 1 the service refused or cannot be reached, 2 bad
    input.

    Example:

        loadmaster decide decima state.json --shadow

        loadmaster state das | loadmaster decide das - --json
    """
    from loadmaster.envs.errors import InputError

    content = _read_state(state)
    token = None if token_file is None else _read_token(token_file)
    mode: Mode = "shadow" if shadow else "active"
    call = calls.decide(system, content, mode, None, secrets.token_hex(12))
    try:
        client = Client(url, token, deadline)
    except ValueError as fault:
        raise InputError(str(fault)) from None
    try:
        with client:
            decision, original = client.ask(calls.with_original(call))
    except ServiceError as fault:
        if fault.status in BAD_INPUT:
            raise InputError(str(fault)) from None
        print(f"error: {fault}", file=sys.stderr)
        raise typer.Exit(1) from None
    if as_json:
        print(json.dumps(original, indent=2))
        return
    for line in described(decision):
        print(line)


def described(decision: Decision) -> Iterator[str]:
    """For people: a line for each part that there is."""
    by = f"{decision.source}, {decision.policy.name} {decision.policy.version}".rstrip()
    cause = f" ({decision.cause})" if decision.cause else ""
    rows = [
        ("decision", json.dumps(decision.decision)),
        ("source", f"{by}{cause}, {decision.latency_ms:.1f} ms"),
        ("reason", decision.reason.summary),
        *(("guard", change) for change in decision.guard),
    ]
    if (shadow := decision.shadow) is not None:
        name = shadow.policy.name if shadow.policy else "the policy"
        view = "agrees" if shadow.agrees else f"would decide {json.dumps(shadow.decision)}"
        rows.append(("shadow", f"{name} {view}"))
    for kind, choices in decision.reason.choices.items():
        rows += [(kind, choice) for choice in _choices(choices[:SHOWN_CHOICES])]
    width = max(len(one_line(name)) for name, _ in rows)
    for name, text in rows:
        # Whatever a service answers, it does not get to move the terminal's cursor.
        yield f"{one_line(name):{width}}  {_printable(text)}"


def _choices(choices: Sequence[Choice]) -> Iterator[str]:
    width = max((len(choice.name) for choice in choices), default=0)
    for choice in choices:
        parts = [f"{choice.name:{width}}"]
        if choice.score is not None:
            spread = "" if choice.uncertainty is None else f" ± {choice.uncertainty:.3g}"
            parts.append(f"score {choice.score:.4g}{spread}")
        if choice.probability is not None:
            parts.append(f"probability {choice.probability:.1%}")
        yield "  ".join(parts)


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _read_state(name: str) -> dict[str, Any]:
    from loadmaster.envs.errors import InputError

    where = "stdin" if name == "-" else repr(name)
    data = _read_bounded(sys.stdin.buffer if name == "-" else name, where, MOST_BYTES)
    try:
        content = json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError) as fault:
        raise InputError(
            f"{where} is not JSON: {fault}; expected a state, see state --help"
        ) from None
    if not isinstance(content, dict):
        raise InputError(f"{where} holds no JSON object; expected a state, see state --help")
    return content


def _read_token(file: Path) -> str:
    from loadmaster.envs.errors import InputError

    data = _read_bounded(str(file), repr(str(file)), MOST_TOKEN_BYTES)
    try:
        return data.decode("ascii").strip()
    except UnicodeDecodeError:
        raise InputError(f"--token-file {str(file)!r} holds no token; expected ASCII") from None


def _read_bounded(source: str | IO[bytes], where: str, most: int) -> bytes:
    from loadmaster.envs.errors import InputError

    if isinstance(source, str):
        with open(source, "rb") as file:  # what cannot be opened is told by the command line
            return _read_bounded(file, where, most)
    data = source.read(most + 1)
    if len(data) > most:
        raise InputError(f"{where} is too large; expected at most {most:,} bytes")
    return data


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number there")

"""`loadmaster decide` and `loadmaster state`: one decision of a service, and example states."""

import json
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from loadmaster.platform.cli import options
from loadmaster.platform.cli.options import SystemName, UsageError, argument, flag, option
from loadmaster.serving.client import Choice, Client, Decision, ServiceError, calls
from loadmaster.serving.client.calls import Mode
from loadmaster.serving.client.clients import DEFAULT_URL
from loadmaster.serving.client.errors import one_line

MOST_BYTES = 32 * 2**20  # of a state; those of the largest clusters take a few MB
MOST_TOKEN_BYTES = 4096
SHOWN_CHOICES = 5
SHOWN_CHARACTERS = 500  # of a decision
EXPECTED = "expected a state, see state --help"
Result = TypeVar("Result")
BAD_INPUT = (400, 404, 413, 415, 422)  # status codes that mean exit code 2


def decide(
    system: SystemName,
    state: Annotated[str, argument("STATE.json", "The state as JSON; - reads it from stdin.")],
    url: Annotated[str, option("URL", "Address of the service.")] = DEFAULT_URL,
    token_file: Annotated[
        Path | None, option("FILE", "File with the token. [default: variable LOADMASTER_TOKEN]")
    ] = None,
    shadow: Annotated[
        bool, flag("--shadow", "Let the rule decide and show the policy's decision.")
    ] = False,
    tenant: Annotated[
        str | None, option("NAME", "Cluster or application to decide for. [default: default]")
    ] = None,
    deadline: Annotated[float, option("SECONDS", "Timeout of the request.")] = 5.0,
    as_json: Annotated[bool, flag("--json", "Print the whole response as JSON.")] = False,
) -> None:
    """Request one decision from a running service.

    Prints the decision, its source (the policy or the fallback rule), the reason and the
    alternatives; a decision of more than 500 characters is cut off without --json. Exit codes: 0
    decided, 1 the service failed or cannot be reached, 2 bad input.

    Example:

        loadmaster decide decima state.json --shadow

        loadmaster state das | loadmaster decide das - --json --tenant cluster-7
    """
    content = _read_state(state)
    mode: Mode = "shadow" if shadow else "active"
    call = calls.decide(system, content, mode, None, secrets.token_hex(12), tenant)
    decision, original = call_service(calls.with_original(call), url, token_file, deadline)
    if as_json:
        options.print_json(original)
        return
    for line in decision_lines(decision):
        print(line)


def call_service(
    call: calls.Call[Result], url: str, token_file: Path | None, deadline: float
) -> Result:
    """Carry out a call; bad input is a UsageError, other failures exit with 1."""
    token = None if token_file is None else read_token(token_file)
    try:
        client = Client(url, token, deadline)
    except ValueError as fault:
        raise UsageError(str(fault)) from None
    try:
        with client:
            return client.ask(call)
    except ServiceError as fault:
        if fault.status in BAD_INPUT:
            raise UsageError(str(fault)) from None
        print(f"error: {fault}", file=sys.stderr)
        raise typer.Exit(1) from None


def decision_lines(decision: Decision) -> Iterator[str]:
    """Lines of text for a terminal, one for each part of the decision."""
    by = f"{decision.source}, {decision.policy.name} {decision.policy.version}".rstrip()
    cause = f" ({decision.cause})" if decision.cause else ""
    rows = [
        ("decision", _shortened(decision.decision)),
        ("source", f"{by}{cause}, {decision.latency_ms:.1f} ms"),
        ("reason", decision.reason.summary),
        *(("note", note) for note in decision.reason.notes),
        *(("guard", change) for change in decision.guard),
    ]
    if (shadow := decision.shadow) is not None:
        name = shadow.policy.name if shadow.policy else "the policy"
        view = "agrees" if shadow.agrees else f"would decide {_shortened(shadow.decision)}"
        rows.append(("shadow", f"{name} {view}"))
    for kind, choices in decision.reason.choices.items():
        rows += [(kind, choice) for choice in _choices(choices[:SHOWN_CHOICES])]
    width = max(len(one_line(name)) for name, _ in rows)
    for name, text in rows:
        # Control characters of a response must not reach the terminal.
        yield f"{one_line(name):{width}}  {_printable(text)}"


def _shortened(decision: object) -> str:
    text = json.dumps(decision)
    if len(text) <= SHOWN_CHARACTERS:
        return text
    return f"{text[:SHOWN_CHARACTERS]}... ({len(text):,} characters; decide --json prints all)"


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
    where = "stdin" if name == "-" else repr(name)
    data = _read_bounded(name, where, MOST_BYTES)
    try:
        content = json.loads(data, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as fault:
        raise UsageError(f"{where} is not JSON: {fault}; {EXPECTED}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{where} holds no JSON object; {EXPECTED}")
    return content


def read_token(file: Path) -> str:
    """The token in a file of an option."""
    data = _read_bounded(str(file.absolute()), repr(str(file)), MOST_TOKEN_BYTES)
    try:
        return data.decode("ascii").strip()
    except UnicodeDecodeError:
        raise UsageError(f"--token-file {str(file)!r} holds no token; expected ASCII") from None


def _read_bounded(name: str, where: str, most: int) -> bytes:
    with nullcontext(sys.stdin.buffer) if name == "-" else open(name, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise UsageError(f"{where} is too large; expected at most {most:,} bytes")
    return data


def _reject_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number in JSON")


def state(
    system: SystemName,
    name: Annotated[str, option("NAME", "Name of the example: small, large, ...")] = "small",
    schema: Annotated[bool, flag("--schema", "Print the JSON schema of states instead.")] = False,
    output: Annotated[Path | None, option("FILE", "Where to write it.", "--output", "-o")] = None,
) -> None:
    """Print an example of the state that a system decides about.

    Needs no service. The output is JSON that `loadmaster decide` takes, as it is or edited.

    Example:

        loadmaster state decima -o state.json

        loadmaster decide decima state.json
    """
    from loadmaster.envs.errors import unknown_name
    from loadmaster.models.files import atomic_text_file
    from loadmaster.serving.system import find_endpoint

    endpoint = find_endpoint(system)
    if schema:
        text = json.dumps(endpoint.state.model_json_schema(), indent=2)
    else:
        examples = endpoint.examples()
        if name not in examples:
            raise unknown_name("example", name, examples)
        text = examples[name].model_dump_json(indent=2)
    if output is None:
        sys.stdout.write(text + "\n")
        return
    with atomic_text_file(output) as file:
        file.write(text + "\n")

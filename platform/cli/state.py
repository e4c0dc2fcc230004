"""`loadmaster state`: what a system's service wants to be told, by example."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def state(
    system: Annotated[str, typer.Argument(metavar="SYSTEM", help="See loadmaster list.")],
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Which example: small, large, ...")
    ] = "small",
    schema: Annotated[
        bool, typer.Option("--schema", help="The JSON schema of all such states instead.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")
    ] = None,
) -> None:
    """Print an example of the state that a system decides about.

    No service is needed for it. It is JSON, ready to be changed and handed to `loadmaster decide`.

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

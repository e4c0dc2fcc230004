"""The service described in OpenAPI 3.1: one path for each system and verb, with its own schemas."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel

from loadmaster.serving.decisions.request import feedback_model, request_model
from loadmaster.serving.http.schemas import (
    DecisionAnswer,
    DecisionList,
    Error,
    FeedbackAnswer,
    HistoryAnswer,
    PromoteOrder,
    StatusAnswer,
    SystemList,
    VerbOrder,
)
from loadmaster.serving.system import Endpoint

REFERENCE = "#/components/schemas/{model}"
MEANINGS = {
    401: "no valid token",
    403: "the token may not do this; without tokens: asked from elsewhere than this machine",
    408: "the body took too long to arrive",
    409: "it cannot be done as things are; nothing has changed",
    413: "the body is too large, or holds too much",
    415: "the body is not JSON",
    422: "the request is wrong; `field` names where",
    429: "too many requests; Retry-After says how long to wait",
    503: "not ready, or too busy; Retry-After says how long to wait",
}


BY_HAND = {"by hand": {"summary": "with a reason", "value": {"reason": "maintenance"}}}


def document(endpoints: Mapping[str, Endpoint[Any, Any, Any]]) -> dict[str, Any]:
    """For these systems."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {
        "/healthz": {"get": _plain("The process is alive.")},
        "/readyz": {"get": _plain("Every system can be asked.", refused=(503,))},
        "/v1/systems": {"get": _get("What is served.", _known(schemas, SystemList))},
    }
    for system, endpoint in endpoints.items():
        paths |= _of_system(schemas, system, endpoint)
    _known(schemas, Error)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Loadmaster decisions",
            "version": version("loadmaster"),
            "description": "Decisions of learned schedulers and autoscalers: bounded, explained, "
            "with a rule that steps in.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _of_system(
    schemas: dict[str, Any], system: str, endpoint: Endpoint[Any, Any, Any]
) -> dict[str, Any]:
    request, feedback = request_model(endpoint), feedback_model(endpoint)
    title = system.title().replace("_", "")
    decision = _known(schemas, endpoint.decision, title)
    answer = f"{title}Answer"
    schemas[answer] = {
        "allOf": [
            _known(schemas, DecisionAnswer),
            {"type": "object", "properties": {"decision": decision}},
        ]
    }
    base = f"/v1/{system}"
    examples = {
        name: {"summary": f"a {name} state", "value": {"state": state.model_dump(mode="json")}}
        for name, state in endpoint.examples().items()
        if name != "large"  # too long to read
    }
    names = sorted(endpoint.examples())
    status = _known(schemas, StatusAnswer)
    return {
        f"{base}/decide": {
            "post": _post(
                f"A decision of {system}. {endpoint.summary}",
                _known(schemas, request, title),
                {"$ref": REFERENCE.format(model=answer)},
                examples,
                refused=(503,),
            )
        },
        f"{base}/feedback": {
            "post": _post(
                "How a decision turned out; the monitor learns from it.",
                _known(schemas, feedback, title),
                _known(schemas, FeedbackAnswer),
            )
        },
        f"{base}/status": {"get": _get("Lifecycle, rewards, drift, fallbacks.", status)},
        f"{base}/history": {
            "get": _get("The last hour in short intervals.", _known(schemas, HistoryAnswer))
        },
        f"{base}/decisions": {
            "get": _get(
                "The latest decisions, newest first.",
                _known(schemas, DecisionList),
                _query("limit", {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}),
            )
        },
        f"{base}/example": {
            "get": _get(
                "An example of a state.",
                _known(schemas, endpoint.state, title),
                _query("name", {"type": "string", "enum": names, "default": "small"}),
            )
        },
        **{
            f"{base}/{verb}": {
                "post": _post(line, _known(schemas, order), status, example, refused=(409,))
            }
            for verb, line, order, example in (
                ("pause", "The rule acts until it is resumed. (admin)", VerbOrder, BY_HAND),
                ("resume", "The policy acts again. (admin)", VerbOrder, BY_HAND),
                ("promote", "A bundle takes its place. (admin)", PromoteOrder, None),
                ("rollback", "The previous bundle serves again. (admin)", VerbOrder, None),
            )
        },
    }


def _known(schemas: dict[str, Any], model: type[BaseModel], title: str = "") -> dict[str, Any]:
    """A reference to the model, which is added with all it refers to.

    Two systems may both speak of a Job: with a `title` names begin with it.
    """

    def own(name: str) -> str:
        return name if name.startswith(title) else title + name

    def renamed(schema: Any) -> Any:
        if isinstance(schema, list):
            return [renamed(one) for one in schema]
        if not isinstance(schema, dict):
            return schema
        name = schema.get("$ref")
        if isinstance(name, str):
            return {**schema, "$ref": REFERENCE.format(model=own(name))}
        return {key: renamed(one) for key, one in schema.items()}

    if own(model.__name__) not in schemas:
        schema = model.model_json_schema(ref_template="{model}")
        for name, inner in schema.pop("$defs", {}).items():
            schemas[own(name)] = renamed(inner)
        schemas[own(model.__name__)] = renamed(schema)
    return {"$ref": REFERENCE.format(model=own(model.__name__))}


def _plain(line: str, refused: tuple[int, ...] = ()) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"status": {"const": "ok"}}, "required": ["status"]}
    return {"summary": line, "security": [{}], "responses": _responses(schema, refused)}


def _get(line: str, schema: dict[str, Any], *query: dict[str, Any]) -> dict[str, Any]:
    refused = (401, 403, 422, 429) if query else (401, 403, 429)
    told: dict[str, Any] = {"summary": line, "responses": _responses(schema, refused)}
    return told | ({"parameters": list(query)} if query else {})


def _post(
    line: str,
    body: dict[str, Any],
    schema: dict[str, Any],
    examples: dict[str, Any] | None = None,
    refused: tuple[int, ...] = (),
) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": body}
    if examples:
        content["examples"] = examples
    return {
        "summary": line,
        "requestBody": {"required": True, "content": {"application/json": content}},
        "responses": _responses(schema, (401, 403, 408, 413, 415, 422, 429, *refused)),
    }


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _responses(schema: dict[str, Any], refused: tuple[int, ...]) -> dict[str, Any]:
    error = {"$ref": REFERENCE.format(model=Error.__name__)}
    return {
        "200": {"description": "as asked", "content": {"application/json": {"schema": schema}}},
        **{
            str(status): {
                "description": MEANINGS[status],
                "content": {"application/json": {"schema": error}},
            }
            for status in sorted(refused)
        },
    }


# /docs: the OpenAPI document as a page for people; no script, nothing from elsewhere.


STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 18%, transparent); }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.5rem; }
section { border-top: 1px solid var(--line); padding: .8rem 0; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { overflow: auto; max-height: 28rem; padding: .8rem; border: 1px solid var(--line);
      border-radius: 6px; }
.verb { display: inline-block; min-width: 3.2rem; font-weight: 600; }
summary { cursor: pointer; }
table { border-collapse: collapse; }
td { padding: .1rem 1rem .1rem 0; }
"""


_SEAL = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_SEAL}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def docs_page(described: dict[str, Any]) -> bytes:
    """One section for each path, one block for each schema."""
    info = described["info"]
    sections = [
        _operation(path, verb, operation)
        for path, verbs in described["paths"].items()
        for verb, operation in verbs.items()
    ]
    schemas = [
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        f"{_block(schema)}</details>"
        for name, schema in sorted(described["components"]["schemas"].items())
    ]
    title = escape(f"{info['title']} {info['version']}")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>'
        f"<body><h1>{title}</h1><p>{escape(info['description'])} The same for machines: "
        '<a href="/openapi.json">/openapi.json</a>. To watch it: <a href="/console">/console</a>.'
        f"</p>{''.join(sections)}<h2>Schemas</h2>{''.join(schemas)}</body></html>"
    ).encode()


def _operation(path: str, verb: str, operation: dict[str, Any]) -> str:
    parts = [
        f'<section><p><span class="verb">{verb.upper()}</span> <code>{escape(path)}</code></p>'
        f"<p>{escape(operation['summary'])}</p>"
    ]
    parts.extend(
        f"<p>?<code>{escape(one['name'])}</code> {escape(json.dumps(one['schema']))}</p>"
        for one in operation.get("parameters", [])
    )
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    if "schema" in content:
        parts.append(f"<p>takes {_link(content['schema'])}</p>")
    for name, example in content.get("examples", {}).items():
        shown = _block(example["value"])
        parts.append(f"<details><summary>example: {escape(name)}</summary>{shown}</details>")
    rows = [
        f"<tr><td>{status}</td><td>{escape(answer['description'])}</td>"
        f"<td>{_link(answer['content']['application/json']['schema'])}</td></tr>"
        for status, answer in operation["responses"].items()
    ]
    return "".join(parts) + f"<table>{''.join(rows)}</table></section>"


def _link(schema: dict[str, Any]) -> str:
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return f'<a href="#{escape(name)}"><code>{escape(name)}</code></a>' if name else ""


def _block(value: Any) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2))}</pre>"

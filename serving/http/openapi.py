"""OpenAPI document of the service, with schemas of each system, and the page at /docs.

The routes are generic over systems and validate nothing, so FastAPI cannot document them. Here the
same paths are declared once per system as FastAPI routes, for the document only.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from importlib.metadata import version
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Query
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, create_model

from loadmaster.serving.decisions.request import feedback_model, request_model
from loadmaster.serving.http import schemas
from loadmaster.serving.system import Endpoint

ERRORS = {
    401: "no valid token",
    403: "the token may not do this; without tokens: the request is not from this machine",
    408: "the body took too long to arrive",
    409: "not possible now; nothing has changed",
    413: "the body is too large, or holds too many values",
    415: "the body is not JSON",
    422: "the request is invalid; `field` is the path of the field",
    429: "too many requests; Retry-After gives the time to wait",
    503: "not ready, or too busy; Retry-After gives the time to wait",
}
READ_ERRORS = (401, 403, 429)
BODY_ERRORS = (401, 403, 408, 413, 415, 422, 429)
WITH_REASON = {"by hand": {"summary": "with a reason", "value": {"reason": "maintenance"}}}


def document(endpoints: Mapping[str, Endpoint[Any, Any, Any]]) -> dict[str, Any]:
    """Build the OpenAPI document of these systems."""
    api = _Declarations()
    probe = schemas.ProbeResponse
    api.get("/healthz", "The process is alive.", probe, errors=(), public=True)
    api.get("/readyz", "Every policy answers in time.", probe, errors=(503,), public=True)
    api.get("/v1/systems", "The systems that are served.", schemas.SystemsResponse)
    for system, endpoint in endpoints.items():
        _declare_system(api, system, endpoint)
    found = get_openapi(
        title="Loadmaster decisions",
        version=version("loadmaster"),
        description="Decisions of learned schedulers and autoscalers: bounded, explained, with a "
        "rule as fallback.",
        routes=api.router.routes,
        separate_input_output_schemas=False,
    )
    found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return found | {"security": [{"token": []}, {}]}


def _declare_system(api: _Declarations, system: str, endpoint: Endpoint[Any, Any, Any]) -> None:
    base, title = f"/v1/{system}", system.title().replace("_", "")
    states = endpoint.examples()
    examples = {
        name: {"summary": f"a {name} state", "value": {"state": state.model_dump(mode="json")}}
        for name, state in states.items()
        if name != "large"  # too long to read
    }
    response = create_model(
        f"{title}Response",
        __base__=schemas.DecisionResponse,
        decision=(endpoint.decision, ...),
    )
    api.post(
        f"{base}/decide",
        f"Decide for {system}. {endpoint.summary}",
        request_model(endpoint),
        response,
        examples,
        errors=(503,),
    )
    api.post(
        f"{base}/feedback",
        "Report the outcome of a decision to the monitor.",
        feedback_model(endpoint),
        schemas.FeedbackResponse,
    )
    api.get(f"{base}/status", "Lifecycle, rewards, drift, fallbacks.", schemas.StatusResponse)
    api.get(f"{base}/history", "The last hour in short intervals.", schemas.HistoryResponse)
    api.get(
        f"{base}/decisions",
        "The latest decisions, newest first.",
        schemas.DecisionsResponse,
        query=_query("limit", Annotated[int, Query(ge=1, le=200)], 50),
    )
    api.get(
        f"{base}/example",
        "An example of a state.",
        endpoint.state,
        query=_query("name", Literal[tuple(sorted(states))], "small"),
    )
    for verb, summary, body, shown in (
        ("pause", "Let the rule act until resume. (admin)", schemas.VerbOrder, WITH_REASON),
        ("resume", "Let the policy act again. (admin)", schemas.VerbOrder, WITH_REASON),
        ("promote", "Serve a bundle, or put it in the shadow. (admin)", schemas.PromoteOrder, None),
        ("rollback", "Serve the previous bundle again. (admin)", schemas.VerbOrder, None),
    ):
        api.post(f"{base}/{verb}", summary, body, schemas.StatusResponse, shown, errors=(409,))


class _Declarations:
    """FastAPI routes that are never called."""

    def __init__(self) -> None:
        self.router = APIRouter()

    def get(
        self,
        path: str,
        summary: str,
        response: type[BaseModel],
        errors: tuple[int, ...] = READ_ERRORS,
        query: Parameter | None = None,
        public: bool = False,
    ) -> None:
        parameters = [] if query is None else [query]
        errors += () if query is None else (422,)
        self._add("GET", path, summary, response, errors, parameters, public)

    def post(
        self,
        path: str,
        summary: str,
        body: type[BaseModel],
        response: type[BaseModel],
        examples: dict[str, Any] | None = None,
        errors: tuple[int, ...] = (),
    ) -> None:
        content = Body(openapi_examples=examples)
        parameter = Parameter("body", Parameter.KEYWORD_ONLY, default=content, annotation=body)
        self._add("POST", path, summary, response, (*BODY_ERRORS, *errors), [parameter])

    def _add(
        self,
        method: str,
        path: str,
        summary: str,
        response: type[BaseModel],
        errors: tuple[int, ...],
        parameters: list[Parameter],
        public: bool = False,
    ) -> None:
        def endpoint(**_: Any) -> None: ...

        endpoint.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        self.router.add_api_route(
            path,
            endpoint,
            methods=[method],
            operation_id=f"{method.lower()}{path.replace('/', '_')}",
            summary=summary,
            response_model=response,
            response_description="success",
            responses={
                status: {"model": schemas.ErrorResponse, "description": ERRORS[status]}
                for status in sorted(errors)
            },
            openapi_extra={"security": [{}]} if public else None,
        )


def _query(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


# The page at /docs: no script, nothing from another site.


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


_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def docs_page(document: dict[str, Any]) -> bytes:
    """Render the OpenAPI document: a section for each operation, a block for each schema."""
    info = document["info"]
    sections = [
        _operation(path, verb, operation)
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
    ]
    schemas = [
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        f"{_block(schema)}</details>"
        for name, schema in sorted(document["components"]["schemas"].items())
    ]
    title = escape(f"{info['title']} {info['version']}")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>'
        f"<body><h1>{title}</h1><p>{escape(info['description'])} Machine-readable: "
        '<a href="/openapi.json">/openapi.json</a>. Console: <a href="/console">/console</a>.'
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
        parts.append(f"<p>body: {_link(content['schema'])}</p>")
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

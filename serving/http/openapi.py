"""OpenAPI document of the service, with schemas of each system, and the page at /docs.

The routes are generic over systems and validate nothing, so FastAPI cannot document them. Here the
same paths are declared once per system as FastAPI routes, for the document only.
"""

import json
from collections.abc import Mapping
from html import escape
from importlib.metadata import version
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Query
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, create_model

from loadmaster.serving.console.page_bundle import csp_hash
from loadmaster.serving.decisions.request import feedback_model, request_model
from loadmaster.serving.decisions.steering import SteeringReport
from loadmaster.serving.decisions.tenant_names import DEFAULT_TENANT, TENANT_PATTERN
from loadmaster.serving.http import schemas
from loadmaster.serving.http.body import JSON, MSGPACK
from loadmaster.serving.system import Endpoint

ERRORS = {
    400: "the body is incomplete, or a trusted proxy named no address",
    401: "no valid token",
    403: "the token may not do this, or not for this tenant; without tokens: the request is not "
    "from this machine",
    408: "the body took too long to arrive",
    409: "not possible now; nothing has changed",
    413: "the body is too large, or holds too many values",
    415: "the content type of the body is not supported",
    422: "the request is invalid; `field` is the path of the field",
    429: "too many requests; Retry-After gives the time to wait",
    503: "not ready, or too busy; Retry-After gives the time to wait",
}
ACCESS_ERRORS = (400, 401, 403, 429)
BODY_ERRORS = (408, *ACCESS_ERRORS, 413, 415, 422, 503)
TENANT_QUERY = Annotated[str, Query(pattern=TENANT_PATTERN)], DEFAULT_TENANT
EXAMPLE_CHARACTERS = 30_000  # a longer state is too long to read
WITH_REASON = {"by hand": {"summary": "with a reason", "value": {"reason": "maintenance"}}}

ESTIMATE = {
    "fqe": {
        "summary": "by fitted Q evaluation",
        "value": {"tenant": "shop", "mean": 141.0, "lower": 133.5, "source": "fqe", "episodes": 80},
    }
}
PROFILE = {
    "high stakes": {
        "summary": "high stakes",
        "value": {
            "tenant": "shop",
            "profile": {"slo": 0.2, "utilisation": {"cpu": 0.6, "memory": 0.7}, "stakes": "high"},
        },
    }
}
MEMORY = {
    "adapted": {
        "summary": "by loadmaster adapt",
        "value": {"tenant": "shop", "memory": {"aware-18": [0.5] * 36}},
    }
}


def document(endpoints: Mapping[str, Endpoint[Any, Any, Any]]) -> dict[str, Any]:
    """Build the OpenAPI document of these systems."""
    api = APIRouter()
    _declare(api, "/healthz", "The process is alive.", schemas.ProbeResponse, ())
    _declare(api, "/readyz", "Every policy answers.", schemas.ProbeResponse, (503,))
    summary = "The systems that are served."
    errors = (*ACCESS_ERRORS, 422)
    _declare(api, "/v1/systems", summary, schemas.SystemsResponse, errors, tenant=TENANT_QUERY)
    for system, endpoint in endpoints.items():
        _declare_system(api, system, endpoint)
    found = get_openapi(
        title="Loadmaster decisions",
        version=version("loadmaster"),
        description="Decisions of learned schedulers and autoscalers: bounded, explained, with a "
        "rule as fallback.",
        routes=api.routes,
        separate_input_output_schemas=False,
    )
    for system in endpoints:
        decide = found["paths"][f"/v1/{system}/decide"]["post"]
        for content in (decide["requestBody"]["content"], decide["responses"]["200"]["content"]):
            content[MSGPACK[0]] = {"schema": content[JSON]["schema"]}
    found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return found | {"security": [{"token": []}, {}]}


def _declare_system(api: APIRouter, system: str, endpoint: Endpoint[Any, Any, Any]) -> None:
    states = endpoint.examples()
    examples = {
        name: {"summary": f"a {name} state", "value": {"state": state.model_dump(mode="json")}}
        for name, state in states.items()
        if len(state.model_dump_json()) <= EXAMPLE_CHARACTERS
    }
    decision = create_model(
        f"{system.title().replace('_', '')}Response",
        __base__=schemas.DecisionResponse,
        decision=(endpoint.decision, ...),
    )

    def get(verb: str, summary: str, response: Any, **query: Any) -> None:
        errors = (*ACCESS_ERRORS, 422) if query else ACCESS_ERRORS
        _declare(api, f"/v1/{system}/{verb}", summary, response, errors, **query)

    def post(
        verb: str, summary: str, response: Any, body: Any, examples: Any, *errors: int
    ) -> None:
        content = body, Body(openapi_examples=examples)
        errors = (*BODY_ERRORS, *errors)
        _declare(api, f"/v1/{system}/{verb}", summary, response, errors, body=content)

    status, action = schemas.StatusResponse, schemas.AdminRequest
    summary = f"Decide for {system}. {endpoint.summary}"
    post("decide", summary, decision, request_model(endpoint), examples)
    feedback = feedback_model(endpoint)
    post("feedback", "Report an outcome.", schemas.FeedbackResponse, feedback, None)
    summary = "Report the last step of a steerer, for the status of its tenant."
    post("steering", summary, schemas.SteeringResponse, SteeringReport, None)
    tenant = TENANT_QUERY
    get("status", "Lifecycle, rewards, drift, fallbacks.", status, tenant=tenant)
    summary = "The last hour in short intervals."
    get("history", summary, schemas.HistoryResponse, tenant=tenant)
    limit = Annotated[int, Query(ge=1, le=200)]
    listed = schemas.DecisionsResponse
    get(
        "decisions", "The latest decisions, newest first.", listed, limit=(limit, 50), tenant=tenant
    )
    name: Any = Literal[tuple(sorted(states))]
    get("example", "An example of a state.", endpoint.state, name=(name, "small"))
    pause = schemas.PauseRequest
    post("pause", "Let the rule act until resume. (admin)", status, pause, WITH_REASON, 409)
    post("resume", "Let the policy act again. (admin)", status, pause, WITH_REASON, 409)
    estimate, profile = schemas.EstimateRequest, schemas.ProfileRequest
    summary = "Report an off-policy estimate of the serving bundle's reward. (admin)"
    post("estimate", summary, status, estimate, ESTIMATE, 409)
    post("profile", "Set the profile of a tenant. (admin)", status, profile, PROFILE, 409)
    summary, memory = "Set what the policy remembers of a tenant. (admin)", schemas.MemoryRequest
    post("memory", summary, status, memory, MEMORY, 409)
    promote = schemas.PromoteRequest
    post("promote", "Serve or shadow a bundle. (admin)", status, promote, None, 409)
    post("rollback", "Serve the previous bundle again. (admin)", status, action, None, 409)


def _declare(
    api: APIRouter,
    path: str,
    summary: str,
    response: type[BaseModel],
    errors: tuple[int, ...],
    **parameters: tuple[Any, Any],
) -> None:
    """Declare a route that is never called: GET, or POST if it has a body.

    `parameters` are annotations and defaults, by name.
    """

    def endpoint(**_: Any) -> None: ...

    endpoint.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            for name, (annotation, default) in parameters.items()
        ]
    )
    method = "POST" if "body" in parameters else "GET"
    api.add_api_route(
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
        openapi_extra=None if 401 in errors else {"security": [{}]},
    )


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
section p { margin: .2rem 0; }
"""

HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src {csp_hash(STYLE)}; "
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
    content = operation.get("requestBody", {}).get("content", {}).get(JSON, {})
    if "schema" in content:
        parts.append(f"<p>body: {_link(content['schema'])}</p>")
    for name, example in content.get("examples", {}).items():
        shown = _block(example["value"])
        parts.append(f"<details><summary>example: {escape(name)}</summary>{shown}</details>")
    for status, answer in operation["responses"].items():
        schema = answer["content"][JSON]["schema"]
        parts.append(f"<p>{status} {_link(schema)} {escape(answer['description'])}</p>")
    return "".join(parts) + "</section>"


def _link(schema: dict[str, Any]) -> str:
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return f'<a href="#{escape(name)}"><code>{escape(name)}</code></a>' if name else ""


def _block(value: Any) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2))}</pre>"

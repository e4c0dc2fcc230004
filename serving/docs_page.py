"""/docs: the OpenAPI document as a page for people; no script, nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from typing import Any

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

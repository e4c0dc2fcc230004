"""The console: one HTML document with style and script inside, and the headers it is sent with.

It asks nobody but the service it came from, and nothing in it can run but what stands here: a name
that reads like markup stays a name.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from string import Template
from types import MappingProxyType
from typing import Final

# In the order in which they are joined; start.js comes last, as it starts the others.
SCRIPTS: Final = (
    "dom",
    "words",
    "api",
    "systems",
    "overview",
    "panels",
    "plot",
    "charts",
    "choices",
    "decisions",
    "dialogs",
    "actions",
    "theme",
    "keys",
    "heartbeat",
    "start",
)


def _asset(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_STYLE: Final = _asset("console.css")
_SCRIPT: Final = (
    '"use strict";\n(() => {\n'
    + "\n".join(_asset(f"script/{name}.js") for name in SCRIPTS)
    + "})();\n"
)
_PAGE: Final = Template(_asset("console.html")).substitute(style=_STYLE, script=_SCRIPT).encode()

_SECURITY: Final = {
    "default-src": "'none'",
    "script-src": _digest(_SCRIPT),
    "style-src": _digest(_STYLE),
    "connect-src": "'self'",
    "img-src": "data:",  # the icon of the tab
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",  # nobody gets to lay a page of their own over the buttons
    "require-trusted-types-for": "'script'",  # a browser that knows it refuses innerHTML outright
    "trusted-types": "'none'",
}

HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": "; ".join(
            f"{name} {value}" for name, value in _SECURITY.items()
        ),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }
)


def page() -> bytes:
    """The document; to be sent with `HEADERS`."""
    return _PAGE

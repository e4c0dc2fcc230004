"""The console: one HTML document with inline style and script, and the headers to send with it.

The Content-Security-Policy allows no other script and no connection but to the service itself.
"""

from collections.abc import Mapping
from importlib.resources import files
from string import Template
from types import MappingProxyType
from typing import Final

from loadmaster.serving.console.page_bundle import bundle_modules, csp_hash

_FOLDER: Final = files(__name__)
_STYLE: Final = _FOLDER.joinpath("console.css").read_text(encoding="utf-8")
_SCRIPT: Final = bundle_modules(_FOLDER.joinpath("script"), "main.js")
_TEMPLATE: Final = Template(_FOLDER.joinpath("console.html").read_text(encoding="utf-8"))

# The document, to be sent with `HEADERS`.
PAGE: Final = _TEMPLATE.substitute(style=_STYLE, script=_SCRIPT).encode()

_SECURITY: Final = {
    "default-src": "'none'",
    "script-src": csp_hash(_SCRIPT),
    "style-src": csp_hash(_STYLE),
    "connect-src": "'self'",
    "img-src": "data:",  # the icon of the tab
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",  # no other page can overlay the buttons
    "require-trusted-types-for": "'script'",  # browsers that support it block innerHTML
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

"""HTTP listener for the reports of drivers; a reply has the plan of the application.

`POST /v1/report` takes a report, `GET /v1/plans` shows the plans with their reasons.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.loop import LocalServer, http_server
from loadmaster.platform.steering.spark.reports import Report, parse_report

BODY_MAX = 16 << 20
IDLE_S = 30.0  # connections without a request are closed

Document = Mapping[str, Any]


class _Server(LocalServer):
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A driver that has closed its connection is no error: it sends another report."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def listen(
    host: str,
    port: int,
    token: str | None,
    receive: Callable[[Report], Document],
    plans: Callable[[], Document],
) -> Iterator[str]:
    """Listen while the block runs; yields the URL. Without a token only on a loopback address."""
    if token is None and not is_loopback(host):
        raise InputError(f"host {host!r} needs a token_file; expected one, or 127.0.0.1")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = IDLE_S
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            self._reply(*self._post())

        def do_GET(self) -> None:
            self._reply(*self._get())

        def _post(self) -> tuple[int, Document]:
            length = self.headers.get("Content-Length", "")
            if not length.isdigit() or int(length) > BODY_MAX:
                self.close_connection = True
                return 413, {"error": f"expected a body of at most {BODY_MAX} bytes"}
            body = self.rfile.read(int(length))
            if not self._is_allowed():
                return 401, {"error": "expected the token of token_file"}
            if self.path != "/v1/report":
                return 404, {"error": "expected POST /v1/report"}
            # A page in a browser cannot send this type to another origin.
            if self.headers.get("Content-Type", "").partition(";")[0] != "application/json":
                return 415, {"error": "expected Content-Type: application/json"}
            try:
                report = parse_report(body)
            except InputError as fault:
                return 400, {"error": str(fault)}
            return 200, receive(report)

        def _get(self) -> tuple[int, Document]:
            if not self._is_allowed():
                return 401, {"error": "expected the token of token_file"}
            if self.path == "/v1/plans":
                return 200, plans()
            return 404, {"error": "expected GET /v1/plans"}

        def _is_allowed(self) -> bool:
            if token is None:
                return True
            given = self.headers.get("Authorization", "").removeprefix("Bearer ")
            return hmac.compare_digest(given.encode(), token.encode())

        def _reply(self, status: int, document: Document) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http_server(Handler, host, port, _Server) as chosen:
        yield f"http://{host}:{chosen}"

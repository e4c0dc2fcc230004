"""Schemathesis over the whole OpenAPI document: whatever is sent, the answer is documented."""

from __future__ import annotations

import math
import os
from collections import Counter
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from requests.adapters import HTTPAdapter
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from urllib3 import HTTPResponse

from tests.serving.built_in import ALL
from tests.serving.conftest import Here

# How many requests are made up in all, at least. More of them find more: LOADMASTER_FUZZ=100000.
EXAMPLES = int(os.environ.get("LOADMASTER_FUZZ", "2000"))
# Shares of it. States of real systems take long to make up, and are nearly always refused: what
# comes close to a valid one is tried in test_bad_input.py.
SHARES = {
    "decide": 2,
    "feedback": 6,
    "promote": 4,
    "decisions": 4,
    "pause": 1,
    "resume": 1,
    "rollback": 1,
    "example": 1,
}
TOY_DECIDE = 24
MARGIN = 1.05  # some operations have fewer forms than they are granted
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


class InProcess(HTTPAdapter):
    """Requests that stay in this process."""

    def __init__(self, here: Here) -> None:
        super().__init__()
        self._here = here

    def send(self, request: Any, *_: Any, **__: Any) -> requests.Response:
        parts = urlsplit(request.url)
        body = request.body.encode() if isinstance(request.body, str) else request.body
        answered = self._here.ask(
            request.method,
            f"{parts.path}?{parts.query}",
            body or b"",
            headers=[(name, _text(value)) for name, value in request.headers.items()],
        )
        raw = HTTPResponse(
            BytesIO(answered.body), answered.headers, answered.status, preload_content=False
        )
        return self.build_response(request, raw)


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def test_every_answer_is_a_documented_one(everything: Here) -> None:
    described = everything.ask("GET", "/openapi.json").json
    schema = schemathesis.openapi.from_dict(described)
    session = requests.Session()
    session.mount("http://", InProcess(everything))
    counted: Counter[tuple[str, int]] = Counter()
    shares = 2 * (sum(SHARES.values()) * len(ALL) + TOY_DECIDE - SHARES["decide"])

    for found in schema.get_all_operations():
        operation = found.ok()
        verb = operation.path.rpartition("/")[2]
        share = TOY_DECIDE if operation.path == "/v1/toy/decide" else SHARES.get(verb, 1)
        most = math.ceil(MARGIN * EXAMPLES * share / shares)
        modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        if operation.method == "get" and verb not in SHARES:
            modes = (GenerationMode.POSITIVE,)  # nothing about them can be wrong
        for mode in modes:
            strategy = operation.as_strategy(generation_mode=mode)

            @settings(
                max_examples=most,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            @given(case=strategy)
            def fuzz(case: Any) -> None:
                response = case.call(base_url="http://127.0.0.1", session=session)
                case.validate_response(response, checks=CHECKS)
                counted[case.operation.path, response.status_code] += 1

            fuzz()

    assert sum(counted.values()) >= EXAMPLES, counted
    for name in ALL:  # what was made up was not all refused
        assert counted[f"/v1/{name}/feedback", 200] > 10
        assert counted[f"/v1/{name}/decide", 422] > 10
    for name in ALL:
        everything.ask("POST", f"/v1/{name}/resume")

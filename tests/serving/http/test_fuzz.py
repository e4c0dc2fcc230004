"""Generated requests: Schemathesis over the OpenAPI document, and mutations of valid states."""

import os
from collections import Counter
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from requests.adapters import HTTPAdapter
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks
from urllib3 import HTTPResponse

from tests.serving.conftest import ALL, SYSTEMS, LocalService
from tests.serving.mutations import mutated

# Number of generated requests, at least. More find more: LOADMASTER_FUZZ=100000.
EXAMPLES = int(os.environ.get("LOADMASTER_FUZZ", "2000"))
# Shares of it, 1 for other operations. States of real systems take long to generate and are nearly
# always refused; mutations of valid ones are tested below.
SHARES = {"decide": 2, "feedback": 6, "promote": 4, "decisions": 4, "toy/decide": 24}
HAVE_INPUT = ("decisions", "example", "status", "history", "systems")  # of the GET operations
MARGIN = 1.05  # some operations have fewer distinct requests than their share
CHECKS = [
    not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
    checks.response_schema_conformance, checks.negative_data_rejection,
]  # fmt: skip
REPRODUCIBLE = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


class InProcess(HTTPAdapter):
    """Sends requests to the application in this process."""

    def __init__(self, here: LocalService) -> None:
        super().__init__()
        self._here = here

    def send(self, request: Any, *_: Any, **__: Any) -> requests.Response:
        parts = urlsplit(request.url)
        body = request.body.encode() if isinstance(request.body, str) else request.body
        headers = [
            (name, value.decode("latin-1") if isinstance(value, bytes) else value)
            for name, value in request.headers.items()
        ]
        path = f"{parts.path}?{parts.query}"
        answer = self._here.request(request.method, path, body or b"", headers=headers)
        content = BytesIO(answer.body)
        raw = HTTPResponse(content, answer.headers, answer.status, preload_content=False)
        return self.build_response(request, raw)


@pytest.mark.slow
@pytest.mark.long
def test_every_response_is_documented(everything: LocalService) -> None:
    document = everything.request("GET", "/openapi.json").json
    schema = schemathesis.openapi.from_dict(document)
    session = requests.Session()
    session.mount("http://", InProcess(everything))
    counted: Counter[tuple[str, int]] = Counter()
    runs = []
    for found in schema.get_all_operations():
        operation = found.ok()
        system, _, verb = operation.path.removeprefix("/v1/").partition("/")
        has_input = operation.method == "post" or (verb or system) in HAVE_INPUT
        share = SHARES.get(f"{system}/{verb}", SHARES.get(verb, 1)) if has_input else 0
        modes = list(GenerationMode) if has_input else [GenerationMode.POSITIVE]
        runs += [(share, operation.as_strategy(generation_mode=mode)) for mode in modes]
    all_shares = sum(share for share, _ in runs)

    for share, strategy in runs:

        @settings(REPRODUCIBLE, max_examples=1 + int(MARGIN * EXAMPLES * share / all_shares))
        @given(case=strategy)
        def fuzz(case: Any) -> None:
            response = case.call(base_url="http://127.0.0.1", session=session)
            case.validate_response(response, checks=CHECKS)
            counted[case.operation.path, response.status_code] += 1

        fuzz()

    assert sum(counted.values()) >= EXAMPLES, counted
    for name in ALL:  # not everything was refused
        assert counted[f"/v1/{name}/feedback", 200] > 5
        assert counted[f"/v1/{name}/decide", 422] > 5
        everything.request("POST", f"/v1/{name}/resume")


@pytest.mark.slow
@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_mutated_states_are_decided_or_refused(everything: LocalService, system: str) -> None:
    """Values of a valid state are replaced, removed or duplicated."""
    names = everything.service.systems[system].endpoint.examples()
    valid = min((everything.state(system, name) for name in names), key=lambda s: len(str(s)))
    seen = set()

    @settings(REPRODUCIBLE, max_examples=200)
    @given(data=st.data())
    def mutate(data: st.DataObject) -> None:
        state = mutated(data, valid)
        answer = everything.request("POST", f"/v1/{system}/decide", {"state": state})
        seen.add(answer.status)
        assert answer.status in (200, 422), answer
        if answer.status == 422:
            assert answer.json["field"].startswith("state"), answer
        else:
            # An application unlike those of the training is decided for by a rule.
            assert answer.json["cause"] in (None, "unknown"), answer

    mutate()
    assert seen == {200, 422}

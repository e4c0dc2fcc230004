"""The OpenAPI document and its page: valid, complete, and true to the routes."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR
from starlette.routing import Route

from loadmaster.serving.http.openapi import docs_page, document
from tests.serving import toy
from tests.serving.conftest import ALL, LocalService


@pytest.fixture
def api(everything: LocalService) -> dict[str, Any]:
    found: dict[str, Any] = everything.request("GET", "/openapi.json").json
    return found


def operations(api: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Path, verb and operation."""
    return [(path, *item) for path, verbs in api["paths"].items() for item in verbs.items()]


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in it."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from nodes(one)


def validator(api: dict[str, Any], schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": api["components"]})


def test_the_document_is_valid(api: dict[str, Any]) -> None:
    OPENAPI_31_VALIDATOR.validate(api)
    schemas = api["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    references = {one["$ref"] for one in nodes(api) if isinstance(one.get("$ref"), str)}
    assert references == {f"#/components/schemas/{name}" for name in schemas}


def test_systems_share_only_the_common_schemas(api: dict[str, Any]) -> None:
    def reached(value: Any) -> set[str]:
        names = {str(one.get("$ref", "")).rpartition("/")[2] for one in nodes(value)} - {""}
        return names.union(*(reached(api["components"]["schemas"][name]) for name in names))

    common = set.intersection(*(reached(api["paths"][f"/v1/{name}/decide"]) for name in ALL))
    assert common == {
        "ErrorResponse", "OptionSchema", "PolicySchema", "ReasonSchema", "ShadowSchema",
    }  # fmt: skip


def test_every_route_is_documented(everything: LocalService, api: dict[str, Any]) -> None:
    there = {
        (route.path.format(system=system), method.lower())
        for route in everything.service.app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
        for system in ALL
    }
    pages = {("/docs", "get"), ("/openapi.json", "get"), ("/console", "get")}
    assert there - pages == {(path, verb) for path, verb, _ in operations(api)}


def test_examples_are_answered_as_documented(everything: LocalService, api: dict[str, Any]) -> None:
    seen = set()
    for path, verb, operation in operations(api):
        content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        for example in content.get("examples", {}).values():
            validator(api, content["schema"]).validate(example["value"])
            answer = everything.request(verb.upper(), path, example["value"])
            assert answer.status == 200, (path, answer)
            response = operation["responses"]["200"]["content"]["application/json"]["schema"]
            validator(api, response).validate(answer.json)
            seen.add(path)
    assert seen >= {f"/v1/{system}/decide" for system in ALL}
    for system in ALL:
        everything.request("POST", f"/v1/{system}/resume")


def test_examples_and_defaults_in_schemas_are_valid(api: dict[str, Any]) -> None:
    examples, defaults = [], []
    for schema in nodes(api["components"]["schemas"]):
        if isinstance(schema.get("examples"), list):
            examples += [(schema, example) for example in schema["examples"]]
        if "default" in schema and schema.keys() & {"type", "anyOf", "$ref"}:
            defaults.append((schema, schema["default"]))
    assert examples
    assert defaults
    for schema, value in (*examples, *defaults):
        validator(api, schema).validate(value)


def test_the_page_loads_nothing(everything: LocalService, api: dict[str, Any]) -> None:
    answer = everything.request("GET", "/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    page = answer.body.decode()
    tags, closed = re.findall(r"<([a-z]\w*)", page), re.findall(r"</(\w+)>", page)
    assert not {"script", "iframe", "img", "link", "object"} & set(tags)
    assert sorted(tag for tag in tags if tag != "meta") == sorted(closed)
    assert not re.search(r"<[^>]*\son\w+=", page)  # no script in attributes
    ids = set(re.findall(r'\bid="([^"]*)"', page))
    assert ids == set(api["components"]["schemas"])
    for path, _, _ in operations(api):
        assert f"<code>{path}</code>" in page
    for link in re.findall(r'\b(?:href|src)="([^"]*)"', page):
        assert re.match(r"/(?!/)", link) or link.removeprefix("#") in ids, link


def test_summaries_are_escaped() -> None:
    class Evil(toy.ToyEndpoint):
        summary = "<script>alert(1)</script> & <b>bold</b>"

    page = docs_page(document({"toy": Evil()})).decode()
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; &lt;b&gt;bold&lt;/b&gt;" in page

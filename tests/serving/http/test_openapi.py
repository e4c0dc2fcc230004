"""The OpenAPI document and its page: valid, whole, and true."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR
from starlette.routing import Route

from loadmaster.serving.http.openapi import MEANINGS, docs_page, document
from tests.serving import toy
from tests.serving.built_in import ALL
from tests.serving.conftest import Here


@pytest.fixture
def described(everything: Here) -> dict[str, Any]:
    told: dict[str, Any] = everything.ask("GET", "/openapi.json").json
    return told


def operations(described: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, verbs in described["paths"].items():
        for verb, operation in verbs.items():
            yield path, verb, operation


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in it."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from nodes(one)


def validator(described: dict[str, Any], schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": described["components"]})


def test_it_is_valid(described: dict[str, Any]) -> None:
    OPENAPI_31_VALIDATOR.validate(described)
    for schema in described["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_what_it_refers_to_is_there(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    references = {one["$ref"] for one in nodes(described) if isinstance(one.get("$ref"), str)}
    assert references
    for reference in references:
        prefix, _, name = reference.rpartition("/")
        assert prefix == "#/components/schemas"
        assert name in schemas
    assert set(schemas) == {reference.rpartition("/")[2] for reference in references}, "and no more"


def test_systems_do_not_share_names(described: dict[str, Any]) -> None:
    """Two of them speak of jobs, and mean different things."""
    shared = [set(_reached(described, f"/v1/{system}/decide")) for system in ALL]
    common = set.intersection(*shared)
    assert common == {
        "ChoiceTold", "DecisionAnswer", "Error", "PolicyTold", "ReasonTold", "ShadowTold",
    }  # fmt: skip


def _reached(described: dict[str, Any], path: str) -> Iterator[str]:
    met: set[str] = set()
    todo: list[Any] = [described["paths"][path]]
    while todo:
        for one in nodes(todo.pop()):
            name = str(one.get("$ref", "")).rpartition("/")[2]
            if name and name not in met:
                met.add(name)
                yield name
                todo.append(described["components"]["schemas"][name])


def test_every_route_is_described(everything: Here, described: dict[str, Any]) -> None:
    pages = {"/docs", "/openapi.json", "/console"}  # for people, or this itself
    there = set()
    for route in everything.service.app.routes:
        assert isinstance(route, Route)
        if route.path in pages:
            continue
        for system in ALL if "{system}" in route.path else ("",):
            verbs = {method.lower() for method in route.methods or ()} - {"head"}
            there |= {(route.path.format(system=system), verb) for verb in verbs}
    assert there == {(path, verb) for path, verb, _ in operations(described)}


def test_every_status_is_explained(described: dict[str, Any]) -> None:
    for path, verb, operation in operations(described):
        statuses = {int(status) for status in operation["responses"]} - {200}
        assert statuses <= set(MEANINGS)
        if operation.get("security") != [{}]:
            assert {401, 403, 429} <= statuses, path
        if verb == "post":
            assert {408, 413, 415, 422} <= statuses, path


def test_examples_are_valid_and_are_answered(everything: Here, described: dict[str, Any]) -> None:
    seen = set()
    for path, verb, operation in operations(described):
        content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        for example in content.get("examples", {}).values():
            validator(described, content["schema"]).validate(example["value"])
            answered = everything.ask(verb.upper(), path, example["value"])
            assert answered.status == 200, (path, answered)
            told = operation["responses"]["200"]["content"]["application/json"]["schema"]
            validator(described, told).validate(answered.json)
            seen.add(path)
    assert seen >= {f"/v1/{system}/decide" for system in ALL}
    for system in ALL:
        everything.ask("POST", f"/v1/{system}/resume")


def test_examples_inside_schemas_are_valid_too(described: dict[str, Any]) -> None:
    seen = 0
    for schema in nodes(described["components"]["schemas"]):
        if not isinstance(schema.get("examples"), list):
            continue
        for example in schema["examples"]:
            validator(described, schema).validate(example)
            seen += 1
    assert seen


def test_defaults_are_valid(described: dict[str, Any]) -> None:
    seen = 0
    for schema in nodes(described["components"]["schemas"]):
        if "default" in schema and ("type" in schema or "anyOf" in schema or "$ref" in schema):
            assert not list(validator(described, schema).iter_errors(schema["default"])), schema
            seen += 1
    assert seen


@pytest.mark.parametrize("system", ALL)
def test_answers_are_as_described(everything: Here, described: dict[str, Any], system: str) -> None:
    state = everything.ask("GET", f"/v1/{system}/example").json
    for mode in ("active", "shadow"):
        everything.ask("POST", f"/v1/{system}/decide", {"state": state, "mode": mode})
    for route in ("status", "history", "decisions", "example", "example?name=large"):
        path = f"/v1/{system}/{route}"
        operation = described["paths"][path.partition("?")[0]]["get"]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        answered = everything.ask("GET", path)
        assert answered.status == 200
        assert not list(validator(described, schema).iter_errors(answered.json)), path


# The page.


class Page(HTMLParser):
    """Checks that every tag is closed, and gathers what is loaded or led to."""

    VOID = ("meta", "link", "br", "img", "hr", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.leads: list[str] = []
        self.ids: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        given = dict(attrs)
        assert not [name for name in given if name.startswith("on")], "no script in attributes"
        self.leads += [str(given[name]) for name in ("href", "src") if name in given]
        self.ids |= {str(given["id"])} if "id" in given else set()
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(content: bytes) -> Page:
    page = Page()
    page.feed(content.decode())
    page.close()
    assert page.open == []
    return page


def test_the_page_tells_all_and_loads_nothing(everything: Here, described: dict[str, Any]) -> None:
    answered = everything.ask("GET", "/docs")
    assert answered.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answered.headers["content-security-policy"]
    page = parsed(answered.body)
    assert not page.tags & {"script", "iframe", "img", "link", "object"}
    for path, _, _ in operations(described):
        assert path in page.text
    for name in described["components"]["schemas"]:
        assert name in page.ids
    for lead in page.leads:
        assert lead.startswith(("#", "/")), lead
        assert not lead.startswith("//")
        assert lead[:1] != "#" or lead[1:] in page.ids


def test_what_systems_say_of_themselves_is_no_markup() -> None:
    class Evil(toy.ToyEndpoint):
        summary = "<script>alert(1)</script> & <b>bold</b>"

    content = docs_page(document({"toy": Evil()}))
    assert b"<script>" not in content
    page = parsed(content)
    assert "<script>alert(1)</script> & <b>bold</b>" in re.sub(r"\s+", " ", page.text)

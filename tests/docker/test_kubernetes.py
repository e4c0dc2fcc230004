"""The manifests of the steerer: schemas, rights, security, and the example's object."""

from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from loadmaster.platform.cli.main import load_command
from loadmaster.platform.steering.kubernetes.resource import (
    API,
    GROUP,
    KIND,
    PLURAL,
    MpaSpec,
    parse_spec,
)
from tests.platform.steering.kubernetes.api_server import VERSION, mpa_schema

Documents = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def documents(docker: Path) -> Documents:
    """By kind and name."""
    files = sorted((docker / "kubernetes").glob("*.yaml"))
    files.remove(docker / "kubernetes" / "gpu-scheduler.yaml")  # no object of the API
    found = [one for file in files for one in yaml.safe_load_all(file.read_text())]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def test_manifests_have_the_schemas_of_kubernetes(documents: Documents) -> None:
    assert len(documents) == 13
    for (kind, _), data in documents.items():
        if kind == KIND:
            jsonschema.validate(data, mpa_schema())
            assert parse_spec(data, "shop/cart").slo_seconds == 0.3
        else:
            kubernetes_validate.validate(data, VERSION, strict=kind != "CustomResourceDefinition")


def test_definition_is_that_of_the_code(documents: Documents) -> None:
    spec = documents["CustomResourceDefinition", f"{PLURAL}.{GROUP}"]["spec"]
    (version,) = spec["versions"]
    assert (f"{spec['group']}/{version['name']}", spec["names"]["kind"]) == (API, KIND)
    assert version["subresources"] == {"status": {}}
    fields = mpa_schema()["properties"]["spec"]
    declared = {field.alias: field for field in MpaSpec.model_fields.values()}
    assert set(fields["properties"]) == set(declared)
    assert set(fields["required"]) == {n for n, one in declared.items() if one.is_required()}
    for name, schema in fields["properties"].items():
        if "default" in schema:
            assert declared[name].default == schema["default"], name


def test_dry_run_has_no_right_to_act(documents: Documents) -> None:
    rules = documents["ClusterRole", "loadmaster-steer"]["rules"]
    writes = [one for one in rules if set(one["verbs"]) & {"patch", "update", "delete", "create"}]
    assert [one["resources"] for one in writes] == [[f"{PLURAL}/status"], ["events"]]
    every = [*rules, *documents["ClusterRole", "loadmaster-steer-apply"]["rules"]]
    assert not any("*" in (*one["verbs"], *one["resources"]) for one in every)
    assert not any({"delete", "secrets", "pods/eviction"} & set(one["resources"]) for one in every)


def test_bindings_name_the_account_of_the_pod(documents: Documents) -> None:
    pod = documents["Deployment", "loadmaster-steer"]["spec"]["template"]["spec"]
    account = documents["ServiceAccount", pod["serviceAccountName"]]["metadata"]
    for name in ("loadmaster-steer", "loadmaster-steer-apply"):
        binding = documents["ClusterRoleBinding", name]
        assert ("ClusterRole", binding["roleRef"]["name"]) in documents
        (subject,) = binding["subjects"]
        assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])


def test_steerer_is_one_unprivileged_dry_run(documents: Documents) -> None:
    spec = documents["Deployment", "loadmaster-steer"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    (container,) = spec["template"]["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert spec["template"]["spec"]["securityContext"]["runAsNonRoot"]
    assert container["command"][:2] == ["loadmaster", "steer"]
    command = load_command("steer")
    given = [*container["command"][2:], *container["args"]]
    parsed = command.make_context("steer", given).params
    assert (parsed["engine"], parsed["apply"], parsed["once"]) == ("kubernetes", False, False)
    assert parsed["metrics_port"] == container["ports"][0]["containerPort"]

"""Reports of a steerer: the status of their tenant shows the last one."""

from typing import Any

import pytest

from loadmaster.serving.decisions.steering import LINE_MAX
from tests.serving.conftest import LocalService, Start

STEP = {"engine": "slurm", "mode": "act", "result": "acted", "line": "start 17 on n2"}


def shown(here: LocalService, tenant: str) -> Any:
    return here.request("GET", f"/v1/toy/status?tenant={tenant}").json["steering"]


def test_status_shows_the_last_report_of_its_tenant(start: Start) -> None:
    here = start()
    answer = here.post("steering", {**STEP, "tenant": "gpu"})
    assert (answer.status, answer.json) == (200, {"accepted": True, "tenant": "gpu"})
    assert here.post("steering", {**STEP, "result": "silent", "tenant": "gpu"}).status == 200
    found = shown(here, "gpu")
    assert found.pop("time")
    assert found == {**STEP, "result": "silent"}
    assert shown(here, "default") is None
    assert shown(here, "never-seen") is None
    assert here.request("GET", "/v1/toy/status?tenant=gpu").json["decisions"]["total"] == 0


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"mode": "on"}, "mode"),
        ({"engine": ""}, "engine"),
        ({"line": "x" * (LINE_MAX + 1)}, "line"),
        ({"result": None}, "result"),
        ({"tenant": "a b"}, "tenant"),
        ({"more": 1}, "more"),
    ],
)
def test_wrong_reports_are_refused(start: Start, wrong: dict[str, Any], field: str) -> None:
    here = start()
    answer = here.post("steering", {**STEP, **wrong})
    assert (answer.status, answer.json["field"]) == (422, field)
    assert shown(here, "default") is None

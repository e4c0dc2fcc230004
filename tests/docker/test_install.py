"""install.sh in a clean virtual environment, and start.sh with fake commands."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.docker.conftest import Dockerfile


def test_dockerfile_runs_all_install_steps(dockerfile: Dockerfile) -> None:
    steps = re.findall(r"docker/install\.sh (\w+) (\S+)", " ".join(dockerfile.all("RUN", "build")))
    assert steps == [(step, "/opt/loadmaster") for step in ("dependencies", "project", "check")]
    for target in ("train", "serve"):
        assert "--from=build /opt/loadmaster /opt/loadmaster" in dockerfile.all("COPY", target)


@pytest.mark.slow
def test_install_steps_succeed(dockerfile: Dockerfile, root: Path, tmp_path: Path) -> None:
    """Steps `project` and `check`; instead of the step `dependencies`, which takes minutes, the
    environment uses the packages of this one."""
    checkout, venv = tmp_path / "src", tmp_path / "venv"
    for rest in dockerfile.all("COPY", "build"):
        *sources, _ = rest.split()
        for source in sources:
            (checkout / source).parent.mkdir(parents=True, exist_ok=True)
            if (root / source).is_dir():
                ignore = shutil.ignore_patterns("__pycache__")
                shutil.copytree(root / source, checkout / source, ignore=ignore)
            else:
                shutil.copy(root / source, checkout / source)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "seen.pth").write_text(sysconfig.get_path("purelib") + "\n")

    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    environment["PIP_NO_INDEX"] = "1"
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(checkout / "docker" / "install.sh", "project", venv)
    checked = run(checkout / "docker" / "install.sh", "check", venv)
    assert checked.startswith("loadmaster ")
    assert "platform is Python's own" in checked
    code = "import loadmaster.serving as s; print(s.__file__)"
    assert Path(run(venv / "bin" / "python", "-c", code).strip()).is_relative_to(packages)


def test_broken_installation_fails(docker: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    for words, code in (
        (["check", tmp_path / "venv"], None),
        (["project", tmp_path / "venv"], None),
        (["dependencies"], 2),
        (["everything", tmp_path / "venv"], 2),
    ):
        run = subprocess.run([docker / "install.sh", *words], capture_output=True, text=True)
        assert run.returncode == code if code else run.returncode != 0
        assert code is None or "expected dependencies" in run.stderr


def start(docker: Path, folder: Path, *words: str, **environment: str) -> tuple[int, str]:
    """Run start.sh with `loadmaster` and `ray` that print their arguments; (code, output)."""
    for name in ("loadmaster", "ray"):
        command = folder / name
        command.write_text('#!/bin/sh\necho "$(basename "$0") $*, mode ${RAY_AUTH_MODE:-none}"\n')
        command.chmod(0o755)
    run = subprocess.run(
        [docker / "start.sh", *words],
        env={"PATH": f"{folder}:{os.environ['PATH']}", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return run.returncode, run.stdout.strip()


def test_start_serve(docker: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("read 0123456789abcdef\n")
    found = start(docker, tmp_path, "serve", "--config", "x", LOADMASTER_TOKENS_FILE=str(tokens))
    expected = f"loadmaster serve --host 0.0.0.0 --port 8700 --tokens {tokens} --config x"
    assert found == (0, f"{expected}, mode none")


def test_start_ray_requires_a_token(docker: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    with_token = {"RAY_AUTH_TOKEN_PATH": str(token)}
    code, output = start(docker, tmp_path, "head", "--num-cpus", "1", **with_token)
    assert code == 0
    assert re.match(
        r"ray start --head --block .*--metrics-export-port 8790 --num-cpus 1, mode", output
    )
    assert output.endswith("mode token")
    code, output = start(docker, tmp_path, "worker", RAY_AUTH_TOKEN="x", RAY_HEAD="head:6379")
    assert (code, "ray start --address head:6379" in output) == (0, True)
    assert output.endswith("mode token")


@pytest.mark.parametrize(
    ("words", "environment", "part"),
    [
        (["serve"], {"LOADMASTER_TOKENS_FILE": "/nowhere"}, "no tokens in /nowhere"),
        (["serve"], {"LOADMASTER_TOKENS_FILE": "/dev/null"}, "no tokens in /dev/null"),
        (["head"], {"RAY_AUTH_TOKEN_PATH": "/nowhere"}, "no Ray token in /nowhere"),
        (["worker"], {"RAY_AUTH_TOKEN_PATH": "/nowhere"}, "no Ray token in /nowhere"),
        (["worker"], {"RAY_AUTH_TOKEN": "x"}, "RAY_HEAD"),
        (["bash"], {}, "unknown role 'bash'"),
        ([], {}, "unknown role 'nothing'"),
    ],
)
def test_start_is_refused(
    words: list[str], environment: dict[str, str], part: str, docker: Path, tmp_path: Path
) -> None:
    code, output = start(docker, tmp_path, *words, **environment)
    assert code == 2
    assert output.startswith(f"start.sh: {part}")

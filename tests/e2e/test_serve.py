"""`loadmaster serve` in a process: start, decisions, SIGTERM, and Ctrl-C while it starts."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import yaml

from loadmaster.envs.settings import build_settings
from loadmaster.platform.cli.main import main
from loadmaster.platform.ray.session_folder import delete_left_over
from loadmaster.serving.settings import CONTROL, GATEWAY, ServeSettings
from tests.other_user import as_nobody, can_enter, modes
from tests.serving import toy
from tests.serving.addresses import other_addresses, refuses
from tests.serving.live import free_port

pytestmark = pytest.mark.slow
PROGRAM = str(Path(sys.executable).with_name("loadmaster"))
TOKEN = "a-token-that-is-long-enough-for-this"
TIMEOUT_S = 240.0
END_S = 60.0  # a Ray that does not end by itself is given 20 s


class Served:
    """The command in its own process group, with its own temporary folder."""

    def __init__(self, root: Path, folder: Path, *arguments: str) -> None:
        # Directly under /tmp: paths of the sockets in this folder may have 107 bytes.
        self.temporary = Path(tempfile.mkdtemp(prefix="lms-", dir="/tmp"))
        self.temporary.chmod(0o1777)  # as /tmp itself
        path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "TMPDIR": str(self.temporary), "PYTHONPATH": path}
        environment.pop("LOADMASTER_TOKENS", None)
        self._out, self._err = self.temporary / "out", self.temporary / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [PROGRAM, "serve", *arguments],
                cwd=folder, env=environment, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip
        self._seen: dict[int, psutil.Process] = {}

    @property
    def out(self) -> str:
        return self._out.read_text()

    def family(self) -> list[psutil.Process]:
        """All descendants seen so far that still run, orphans included."""
        for process in psutil.Process(self.process.pid).children(recursive=True):
            self._seen.setdefault(process.pid, process)
        return self.family_left()

    def family_left(self) -> list[psutil.Process]:
        """Those seen so far that still run, also after the command itself is gone."""
        return [p for p in self._seen.values() if p.is_running() and p.status() != "zombie"]

    def ray_folders(self) -> list[Path]:
        return list(self.temporary.glob("lm-ray-*"))

    def wait_for(self, condition: Callable[[], object]) -> None:
        began = time.monotonic()
        while not condition():
            assert self.process.poll() is None, (self.out, self._err.read_text())
            assert time.monotonic() - began < TIMEOUT_S, (self.out, self._err.read_text())
            self.family()
            time.sleep(0.1)

    def has(self, title: str) -> bool:
        return any(_title(process).startswith(title) for process in self.family())

    def end(self, number: int) -> int:
        """Send a signal, SIGINT to the whole group; return the exit code. Nothing may be left."""
        self.family()
        (os.killpg if number == signal.SIGINT else os.kill)(self.process.pid, number)
        code = self.process.wait(END_S)
        assert psutil.wait_procs(self.family_left(), timeout=5)[1] == []
        assert [file.name for file in self.temporary.iterdir() if "ray" in file.name] == []
        assert "Traceback" not in self._err.read_text()
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.family()
            for process in (*self.family_left(), psutil.Process(self.process.pid)):
                process.kill()
            self.process.wait()
        shutil.rmtree(self.temporary, ignore_errors=True)


def _title(process: psutil.Process) -> str:
    try:
        return "".join(process.cmdline()[:1])
    except psutil.Error:
        return ""


Start = Callable[..., Served]


@pytest.fixture
def start(root: Path, tmp_path: Path) -> Iterator[Start]:
    started: list[Served] = []

    def begin(*arguments: str) -> Served:
        started.append(Served(root, tmp_path, *arguments))
        return started[-1]

    yield begin
    for each in started:
        each.close()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings of the toy system, in the format of `serve deploy`."""
    bundle = str(toy.make_bundle(tmp_path / "bundle"))
    system = {"endpoint": toy.REFERENCE, "bundle": bundle, "deadline_ms": 5000}
    settings = {"systems": {"toy": system}, "port": free_port(), "folder": str(tmp_path / "kept")}
    build = "loadmaster.serving.app:build"
    application: dict[str, Any] = {"name": "loadmaster", "import_path": build}
    application |= {"route_prefix": "/", "args": settings}
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump({"proxy_location": "Disabled", "applications": [application]}))
    return file


def test_serves_until_sigterm(
    start: Start,
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The service is reachable from other addresses with a token; its other ports are not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokens").write_text(f"admin {TOKEN}\n")
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "state.json").write_text('{"load": 42, "replicas": 3}')
    port = free_port()
    served = start(
        "--config", str(config), "--host", "0.0.0.0", "--port", str(port), "--tokens", "tokens"
    )
    served.wait_for(lambda: "Serving at" in served.out)
    assert f"Serving at http://127.0.0.1:{port};" in served.out
    for address in other_addresses(socket.AF_INET):
        url = f"http://{address}:{port}"
        decide = ["decide", "toy", "state.json", "--url", url]
        assert main([*decide, "--token-file", "token", "--tenant", "a", "--json"]) == 0
        response = json.loads(capsys.readouterr().out)
        assert (response["decision"], response["tenant"]) == ({"replicas": 5}, "a")
        assert main(decide) == 1
        assert "no valid token" in capsys.readouterr().err
    assert_other_ports_closed(served, port)
    assert_other_users_locked_out(served)
    assert_printed_commands_work(served.out)
    assert served.end(signal.SIGTERM) == 0
    assert served.out.endswith("stopped\n")
    kept = modes(tmp_path / "kept")
    assert [name for name, mode in kept.items() if mode & 0o077] == []
    assert {"toy.json", "toy.sqlite", "bundles", "log", "known-callers.json"} <= set(kept)


def assert_other_users_locked_out(served: Served) -> None:
    """All files of Ray are in one folder that other users cannot enter."""
    (folder,) = served.ray_folders()
    assert folder.stat().st_mode & 0o777 == 0o700
    (raylet,) = folder.glob("r/session_2*/sockets/raylet")
    (log,) = folder.glob("r/start.log")
    assert log.stat().st_mode & 0o077 == 0
    if os.geteuid() == 0:
        assert can_enter(served.temporary)
        assert not can_enter(folder)
        assert as_nobody("mv", str(raylet), f"{raylet}-aside") != 0
    assert raylet.is_socket()


def assert_printed_commands_work(out: str) -> None:
    """As they are, in a shell without any other setting."""
    commands = out.partition("Try:\n")[2]
    assert len(commands.splitlines()) == 2
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    environment |= {name: os.environ[name] for name in ("PYTHONPATH", "HOME") if name in os.environ}
    if shutil.which("curl", path=environment["PATH"]) is None:
        return
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "policy" in done.stdout


def assert_other_ports_closed(served: Served, port: int) -> None:
    """Other ports refuse other addresses; those between replicas require Ray's token."""
    ports = {
        one.laddr.port: _title(process)
        for process in served.family()
        for one in process.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr.port != port
    }
    assert len(ports) > 3
    open_ports = {
        other: (address, title)
        for other, title in ports.items()
        for address in other_addresses()
        if not refuses(address, other) and not needs_ray_token(address, other)
    }
    assert open_ports == {}


def needs_ray_token(address: str, port: int) -> bool:
    """Whether a call is rejected as unauthenticated, before its payload is unpickled."""
    host = f"[{address}]" if ":" in address else address
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        call = channel.unary_unary("/ray.serve.ASGIService/HandleRequest")
        try:
            call(b"", timeout=10.0)
        except grpc.RpcError as error:
            return bool(error.code() == grpc.StatusCode.UNAUTHENTICATED)
    return False


@pytest.mark.long
def test_signals_while_starting_end_everything(start: Start, config: Path) -> None:
    """Ctrl-C when Ray has started and when Serve has; SIGKILL leaves a folder to the next start."""

    def interrupt_at(title: str) -> None:
        served = start("--config", str(config))
        served.wait_for(lambda: served.has(title))
        assert served.end(signal.SIGINT) in (0, 130)
        assert "Serving at" not in served.out

    def kill_at(title: str) -> None:
        served = start("--config", str(config))
        served.wait_for(lambda: served.has(title))
        served.process.kill()
        served.process.wait(END_S)
        assert psutil.wait_procs(served.family_left(), timeout=END_S)[1] == []
        assert len(served.ray_folders()) == 1
        delete_left_over(served.temporary)
        assert served.ray_folders() == []

    works = [(interrupt_at, "ray::"), (kill_at, "ray::"), (interrupt_at, "ray::ServeController")]
    for work, title in works:  # one at a time: three at once on two cores take longer to end
        work(title)


def test_config_file_works_with_serve_deploy(config: Path) -> None:
    from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as built_by
    from ray.serve.schema import ServeDeploySchema

    from loadmaster.serving.app import build

    content: Any = yaml.safe_load(config.read_text())
    (application,) = ServeDeploySchema.model_validate(content).applications
    assert application.import_path == f"{build.__module__}:{build.__name__}"
    gateway = built_by(build, application.args)._bound_deployment
    assert gateway.name == GATEWAY
    settings, control, workers = gateway.init_args
    assert build_settings(ServeSettings, settings).port == application.args["port"]
    names = [one._bound_deployment.name for one in (control, *workers)]
    assert names == [CONTROL, "toy"]

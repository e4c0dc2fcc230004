"""Threads, forks, tasks and event loops that share a client; TLS; import without other packages."""

import asyncio
import gc
import os
import shutil
import ssl
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from loadmaster.serving.client import AsyncClient, Client, Unreachable
from tests.serving.client.conftest import MakeClient
from tests.serving.client.fake_service import echo, fake_service, silence

STATES = [{"count": count} for count in range(200)]


def test_threads_get_their_own_responses() -> None:
    with fake_service(echo) as service, Client(service.url, deadline_s=20) as client:
        with ThreadPoolExecutor(8) as threads:
            decided = list(threads.map(lambda state: client.decide("das", state).decision, STATES))
        assert decided == STATES
        assert len(service.seen) == len({seen.json["request_id"] for seen in service.seen}) == 200
        assert service.connections <= 8


def test_tasks_get_their_own_responses() -> None:
    async def call(url: str) -> list[object]:
        async with AsyncClient(url, deadline_s=20) as client:
            decided = await asyncio.gather(*(client.decide("das", state) for state in STATES))
            await client.decide("das", {})  # on a reused connection
            return [each.decision for each in decided]

    with fake_service(echo) as service:
        assert asyncio.run(call(service.url)) == STATES
        assert 1 < service.connections <= 200  # a call that waits does not block the others


def test_forked_process_opens_its_own_connection() -> None:
    with fake_service(echo) as service, Client(service.url, deadline_s=20) as client:
        client.decide("decima", {})
        child = os.fork()
        if child == 0:
            client.decide("decima", {})
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        client.decide("decima", {})
        assert [seen.connection for seen in service.seen] == [0, 1, 0]


def test_cancelled_call_drops_its_connection() -> None:
    async def call(url: str) -> object:
        async with AsyncClient(url, deadline_s=20) as client:
            await client.decide("das", {"count": 0})
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.decide("das", {"count": 1}), 0.05)
            return (await client.decide("das", {"count": 2})).decision

    with fake_service(echo, silence, echo) as service:
        assert asyncio.run(call(service.url)) == {"count": 2}
        assert [seen.connection for seen in service.seen] == [0, 0, 1]


def test_client_reconnects_in_another_event_loop() -> None:
    with fake_service(echo) as service:
        client = AsyncClient(service.url, deadline_s=20)
        for count in range(2):
            decision = asyncio.run(client.decide("das", {"count": count}))
            assert decision.decision == {"count": count}
        assert service.connections == 2
        del client
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            gc.collect()  # asyncio warns about connections that outlive their event loop


def certificate(folder: Path) -> Path:
    """Write a key and a self-signed certificate of 127.0.0.1 into one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now, day = datetime.now(UTC), timedelta(days=1)
    address = x509.IPAddress(IPv4Address("127.0.0.1"))
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now - day, now + day
    )
    builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private = key.private_bytes(pem, pkcs8, serialization.NoEncryption())
    file = folder / "service.pem"
    file.write_bytes(private + builder.sign(key, hashes.SHA256()).public_bytes(pem))
    return file


def test_tls_certificate_is_verified_first(make_client: MakeClient, tmp_path: Path) -> None:
    file = certificate(tmp_path)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(file)
    trusting = ssl.create_default_context(cafile=str(file))
    with fake_service(echo, tls=own) as service:
        client = make_client(service.url, tls=trusting, token="s3cret")
        for count in range(3):
            assert client.decide("decima", {"count": count}).decision == {"count": count}
        assert service.connections == 1
        big = {"x": "x" * 3_000_000}
        assert client.decide("decima", big).decision == big
        seen = len(service.seen)
        with pytest.raises(Unreachable, match="certificate verify failed"):
            make_client(service.url, retries=0, token="s3cret").decide("decima", {})
        assert len(service.seen) == seen


STANDALONE = """
import sys, time
sys.path.insert(0, sys.argv[1])
start = time.process_time()
from loadmaster_client import AsyncClient, Client
took = time.process_time() - start
with Client(sys.argv[2], deadline_s=20) as client:
    print(client.decide("decima", {"jobs": 3}).decision["jobs"])
print(took)
print(any(name.split(".")[0] == "loadmaster" for name in sys.modules))
"""


@pytest.mark.slow
def test_client_distribution_needs_the_standard_library_only(root: Path, tmp_path: Path) -> None:
    """Build the wheel of `loadmaster-client`, and use it without site-packages."""
    shutil.copytree(root / "serving" / "client", tmp_path / "client")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", tmp_path, tmp_path / "client"], check=True)
    (wheel,) = tmp_path.glob("loadmaster_client-*.whl")
    with fake_service(echo) as service:
        command = [sys.executable, "-I", "-S", "-c", STANDALONE, str(wheel), service.url]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    decided, took, uses_loadmaster = run.stdout.splitlines()
    assert (decided, uses_loadmaster) == ("3", "False")
    assert float(took) < 0.3  # CPU seconds

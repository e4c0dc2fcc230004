"""What only the blocking client has to stand: threads, forks, and TLS on plain sockets."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from loadmaster.serving.client import Client, Unreachable
from tests.serving.client.conftest import MakeClient
from tests.serving.client.fake_service import DECISION, Talk, answer, fake_service

LIGHT = "torch ray numba numpy gymnasium pydantic aiohttp fastapi pandas"


def echo(talk: Talk) -> bool:
    """The decision is the state that was asked about."""
    return answer({**DECISION, "decision": talk.seen.json["state"]})(talk)


def test_threads_get_their_own_answers() -> None:
    wrong: list[object] = []
    with fake_service(echo) as service, Client(service.url, deadline_s=20) as client:

        def work(worker: int) -> None:
            for count in range(30):
                state = {"worker": worker, "count": count}
                decision = client.decide("decima", state).decision
                if decision != state:
                    wrong.append((state, decision))

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(service.seen) == 240
        assert service.connections <= 8
        assert len({seen.json["request_id"] for seen in service.seen}) == 240
    assert wrong == []


def test_a_fork_opens_its_own_connection() -> None:
    process = 1

    class Forked(Client):
        _owner = staticmethod(lambda: process)

    with fake_service(echo) as service, Forked(service.url, deadline_s=20) as client:
        client.decide("decima", {"who": "parent"})
        process = 2
        client.decide("decima", {"who": "child"})
        client.decide("decima", {"who": "child"})
        assert [seen.connection for seen in service.seen] == [0, 1, 1]
    assert Client._owner() == os.getpid()


def certificate(folder: Path) -> Path:
    """A key and a certificate of its own for 127.0.0.1, in one file."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "service.pem"
    pem = serialization.Encoding.PEM
    private = serialization.PrivateFormat.PKCS8
    file.write_bytes(
        key.private_bytes(pem, private, serialization.NoEncryption()) + made.public_bytes(pem)
    )
    return file


def test_tls(make_client: MakeClient, tmp_path: Path) -> None:
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
        assert len(service.seen) == seen, "a stranger must not get the token"


def test_it_is_light() -> None:
    """A scheduler imports it: nothing heavy comes along, and it takes no time."""
    code = (
        "import sys, time; began = time.process_time()\n"
        "from loadmaster.serving.client import Client, AsyncClient\n"
        "took = time.process_time() - began\n"
        f"print(took, *(name for name in {LIGHT.split()!r} if name in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    took, *heavy = run.stdout.split()
    assert heavy == []
    assert float(took) < 0.3  # of CPU time, as the machine may be busy with something else

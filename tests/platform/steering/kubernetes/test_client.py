"""The API client: retries, status codes, lists, rotated tokens; kubeconfig files."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadmaster.envs.errors import InputError
from loadmaster.platform.steering.core import SilentError
from loadmaster.platform.steering.kubernetes import client as client_module
from loadmaster.platform.steering.kubernetes.access import (
    Access,
    find_access,
    in_cluster_access,
    kubeconfig_access,
)
from loadmaster.platform.steering.kubernetes.client import ApiError, KubernetesClient, path_of
from tests.platform.steering.kubernetes.api_server import (
    DEADLINE_S,
    DEPLOYMENT,
    PODS,
    Fault,
    serving,
    small_cluster,
)
from tests.platform.steering.kubernetes.conftest import Connect


def test_paths() -> None:
    assert path_of("v1", "shop", "pods", "a", "resize") == f"{PODS}/a/resize"
    assert path_of("apps/v1", "shop", "deployments", "cart") == DEPLOYMENT
    assert path_of("apps/v1", None, "deployments") == "/apis/apps/v1/deployments"


@pytest.mark.parametrize("code", [429, 503])
def test_busy_server_is_asked_again_as_it_says(code: int, connect: Connect) -> None:
    server = small_cluster()
    server.faults = [Fault("GET", DEPLOYMENT, code, times=2, headers={"Retry-After": "0"})]
    assert connect(server).get(DEPLOYMENT)["kind"] == "Deployment"
    assert len(server.received) == 3


@pytest.mark.parametrize(("code", "after"), [(429, "60"), (500, "0"), (401, "0")])
def test_server_that_stays_busy_or_fails_is_silent(code: int, after: str, connect: Connect) -> None:
    server = small_cluster()
    server.faults = [Fault("GET", DEPLOYMENT, code, times=99, headers={"Retry-After": after})]
    with pytest.raises(SilentError) as silent:
        connect(server).get(DEPLOYMENT)
    assert silent.value.part == "engine"


@pytest.mark.parametrize("code", [403, 404, 409, 410, 422])
def test_refusals_are_for_the_caller(code: int, connect: Connect) -> None:
    server = small_cluster()
    server.faults = [Fault("GET", DEPLOYMENT, code)]
    with pytest.raises(ApiError) as refused:
        connect(server).get(DEPLOYMENT)
    assert refused.value.status == code


def test_server_that_is_gone_is_silent() -> None:
    with pytest.raises(SilentError):
        KubernetesClient(Access("http://127.0.0.1:9"), deadline_s=1.0).get("/api/v1")


def test_list_follows_pages_and_begins_anew_when_they_expire(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PAGE", 2)
    server = small_cluster(5)
    client = connect(server)
    assert len(client.list(PODS)) == 5
    server.faults = [Fault("GET", "continue=4", 410)]
    assert len(client.list(PODS)) == 5
    server.faults = [Fault("GET", "continue=", 410, times=99)]
    with pytest.raises(SilentError):
        client.list(PODS)


def test_list_of_a_kind_that_is_not_installed_is_empty(connect: Connect) -> None:
    assert connect(small_cluster()).list("/apis/other/v1/namespaces/shop/things") == []


def test_rotated_token_is_read_again(tmp_path: Path) -> None:
    server, file = small_cluster(), tmp_path / "token"
    file.write_text("old\n")
    server.token = "old"
    with serving(server.handle) as url:
        client = KubernetesClient(Access(url, token_file=file), deadline_s=DEADLINE_S)
        client.get(DEPLOYMENT)
        server.token = "new"
        with pytest.raises(SilentError):
            client.get(DEPLOYMENT)
        file.write_text("new\n")
        assert client.get(DEPLOYMENT)["kind"] == "Deployment"
        file.unlink()
        server.token = "newest"
        with pytest.raises(SilentError):
            client.get(DEPLOYMENT)


def test_token_of_the_service_is_not_sent_to_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMASTER_TOKEN", "of-the-service")
    tokens = []

    def handle(one: Any, token: str) -> Any:
        tokens.append(token)
        return 200, {}, {}

    with serving(handle) as url:
        KubernetesClient(Access(url)).get("/api/v1")
    assert tokens == [""]


def kubeconfig(folder: Path, **user: Any) -> Path:
    file = folder / "config"
    content = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": user}],
    }
    file.write_text(yaml.safe_dump(content))
    return file


def test_kubeconfig_with_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = kubeconfig(tmp_path, token="abc")
    access = kubeconfig_access(file)
    assert (access.url, access.current_token()) == ("http://127.0.0.1:1", "abc")
    assert "abc" not in repr(access)
    monkeypatch.setenv("KUBECONFIG", str(file))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert find_access() == access


@pytest.mark.parametrize(
    ("user", "context"),
    [({"exec": {"command": "login"}}, None), ({"token": "abc"}, "elsewhere")],
)
def test_kubeconfig_that_cannot_be_used(user: Any, context: str | None, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        kubeconfig_access(kubeconfig(tmp_path, **user), context)


@pytest.mark.parametrize("text", ["[", "3", "{}", "current-context: x"])
def test_file_that_is_no_kubeconfig(text: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(InputError):
        kubeconfig_access(tmp_path / "config")


def test_kubeconfig_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory; expected a kubeconfig"):
        kubeconfig_access(tmp_path / "config")


def test_bad_certificate_in_a_kubeconfig(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path, token="abc")
    content = yaml.safe_load(file.read_text())
    content["clusters"][0]["cluster"] = {
        "server": "https://127.0.0.1:1", "certificate-authority-data": "%%",
    }  # fmt: skip
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(InputError, match="certificate-authority-data"):
        kubeconfig_access(file)


def certificate() -> tuple[str, str]:
    """A certificate that signs itself, and its key."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name)
        .public_key(key.public_key()).serial_number(1)
        .not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return signed.public_bytes(pem).decode(), secret.decode()


def test_client_certificate_of_a_kubeconfig(tmp_path: Path) -> None:
    shown, secret = certificate()
    encoded = [base64.b64encode(text.encode()).decode() for text in (shown, secret)]
    user = {"client-certificate-data": encoded[0], "client-key-data": encoded[1]}
    file = kubeconfig(tmp_path, **user)
    content = yaml.safe_load(file.read_text())
    content["clusters"][0]["cluster"] = {
        "server": "https://127.0.0.1:1", "certificate-authority-data": encoded[0],
    }  # fmt: skip
    file.write_text(yaml.safe_dump(content))
    access = kubeconfig_access(file)
    assert access.tls is not None
    assert len(access.tls.get_ca_certs()) <= 1  # none but the cluster's own


def test_service_account_of_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    for name, text in (("token", "abc\n"), ("namespace", "ops"), ("ca.crt", certificate()[0])):
        (tmp_path / name).write_text(text)
    access = in_cluster_access(tmp_path)
    assert (access.url, access.namespace) == ("https://[fd00::1]:443", "ops")
    assert access.current_token() == "abc"

"""Credentials of a cluster: the pod's service account, or a kubeconfig file."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from loadmaster.envs.errors import InputError, unknown_name

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
KUBECONFIG = "KUBECONFIG"


@dataclass(frozen=True)
class Access:
    """URL and credentials of an API server. `repr` leaves secrets out."""

    url: str
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None  # read anew when the server refuses it: it is rotated
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    namespace: str = "default"

    def current_token(self) -> str | None:
        if self.token_file is None:
            return self.token
        return self.token_file.read_text(encoding="ascii").strip()


def find_access(kubeconfig: Path | None = None, context: str | None = None) -> Access:
    """The given kubeconfig, else the service account of this pod, else $KUBECONFIG or ~/.kube."""
    if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ and context is None:
        return in_cluster_access(SERVICE_ACCOUNT)
    if kubeconfig is None:
        named = os.environ.get(KUBECONFIG, "").split(os.pathsep)[0]
        kubeconfig = Path(named) if named else Path.home() / ".kube" / "config"
    return kubeconfig_access(kubeconfig, context)


def in_cluster_access(folder: Path) -> Access:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    shown = f"[{host}]" if ":" in host else host
    return Access(
        f"https://{shown}:{port}",
        token_file=folder / "token",
        tls=ssl.create_default_context(cafile=str(folder / "ca.crt")),
        namespace=(folder / "namespace").read_text(encoding="utf-8").strip(),
    )


def kubeconfig_access(file: Path, context: str | None = None) -> Access:
    """Server, CA, and token or client certificate of a context."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as fault:
        raise InputError(
            f"{file}: {fault.strerror}; expected a kubeconfig there, in --kubeconfig or in "
            f"${KUBECONFIG}"
        ) from None
    except yaml.YAMLError as fault:
        raise InputError(f"{file} is no YAML: {' '.join(str(fault).split())}") from None
    if not isinstance(content, Mapping):
        raise InputError(f"{file} is no kubeconfig; expected clusters, users and contexts")
    name = context or content.get("current-context")
    if not name:
        raise InputError(f"{file} has no current-context; expected one, or --context NAME")
    chosen = _named(content, "contexts", name, file)["context"]
    cluster = _named(content, "clusters", chosen.get("cluster"), file)["cluster"]
    user = _named(content, "users", chosen.get("user"), file).get("user") or {}
    server = cluster.get("server")
    if not isinstance(server, str):
        raise InputError(f"{file}: cluster {chosen.get('cluster')!r} has no server")
    if "exec" in user or "auth-provider" in user:
        raise InputError(
            f"{file}: user {chosen.get('user')!r} uses a login program; expected a token, a token "
            "file or a client certificate"
        )
    token_file = user.get("tokenFile")
    return Access(
        server,
        user.get("token"),
        None if token_file is None else file.parent / token_file,
        _tls(cluster, user, file) if server.startswith("https:") else None,
        chosen.get("namespace") or "default",
    )


def _named(content: Mapping[str, Any], kind: str, name: Any, file: Path) -> Mapping[str, Any]:
    entries = {one["name"]: one for one in content.get(kind) or () if isinstance(one, Mapping)}
    if name not in entries:
        raise InputError(f"{file}: {unknown_name(kind[:-1], str(name), entries)}")
    found: Mapping[str, Any] = entries[name]
    return found


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], file: Path) -> ssl.SSLContext:
    """Verification of the server, and the client's certificate."""
    authority = _content(cluster, "certificate-authority", file)
    context = ssl.create_default_context(cadata=authority)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    certificate, key = (_content(user, f"client-{kind}", file) for kind in ("certificate", "key"))
    if certificate and key:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as pair:  # ssl reads files only
            pair.write(certificate + "\n" + key)
            pair.flush()
            context.load_cert_chain(pair.name)
    return context


def _content(entry: Mapping[str, Any], name: str, file: Path) -> str | None:
    """Text of NAME-data in base64, or of the file NAME."""
    if (data := entry.get(f"{name}-data")) is not None:
        try:
            return base64.b64decode(data, validate=True).decode("ascii")
        except (binascii.Error, ValueError):
            raise InputError(f"{file}: {name}-data is not PEM in base64") from None
    path = entry.get(name)
    return None if path is None else (file.parent / path).read_text(encoding="ascii")

"""Programs of a Kubernetes 1.20.2 control plane, built from Debian's source package; no root.

Debian has the whole source and ships the client alone. The build takes about eleven minutes
of processor time and 3 GB of disk; what is kept in the cache folder has 320 MB. LOADMASTER_KUBE_BIN
names a folder with other programs instead.
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import tarfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from loadmaster.envs.compiled import cache_root
from loadmaster.envs.errors import InputError
from loadmaster.platform.bench.engines.debian import mirror, unpack_packages

VARIABLE = "LOADMASTER_KUBE_BIN"
VERSION = "1.20.2"
BUILT = "kube-apiserver", "kube-scheduler", "kube-controller-manager"
UNPACKED = "etcd", "kubectl"
PACKAGES = (
    "etcd-server", "kubernetes-client", "golang-1.19-go", "golang-1.19-src",
    "golang-github-modern-go-reflect2-dev", "rsync", "libpopt0", "libxxhash0",
)  # fmt: skip
SOURCE = f"pool/main/k/kubernetes/kubernetes_1.20.5+really{VERSION}.orig.tar.gz"
SHA256 = "b83c0780efb182d928dc63d46488a847f161f04e40a94b96bf5247dd671ecdfc"
REFLECT = "github.com/modern-go/reflect2"  # 1.0.1, of the source, crashes if built by Go 1.18+
DISK_BYTES = 4 * 2**30


def find_kubernetes(report: Callable[[str], object] = print) -> Path:
    """Return a folder with the programs; builds them, after a line, where the cache lacks them."""
    if VARIABLE in os.environ:
        return Path(os.environ[VARIABLE])
    folder = cache_root() / "engines" / "kubernetes"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "kubernetes.lock").open("w") as lock:
        if folder.is_dir():
            return folder
        _take(lock.fileno(), report)
        if not folder.is_dir():  # else another process has built it
            partial = folder.with_name("kubernetes.partial")
            shutil.rmtree(partial, ignore_errors=True)  # of a build that was killed
            partial.mkdir()
            try:
                _build(partial, lock.fileno(), report).rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return folder


def _take(lock: int, report: Callable[[str], object]) -> None:
    """Wait until no other build runs, orphans of a killed one included, which have the lock too."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        report("Kubernetes: waits for another process that builds it")
        fcntl.flock(lock, fcntl.LOCK_EX)


def _build(folder: Path, lock: int, report: Callable[[str], object]) -> Path:
    """Fetch and build in a folder; returns the folder of the programs inside it."""
    free = shutil.disk_usage(folder).free
    if free < DISK_BYTES:
        raise InputError(f"Kubernetes needs 4 GB of disk to be built; {folder} has {free >> 20} MB")
    root, tree = folder / "root", folder / f"kubernetes-{VERSION}"
    root.mkdir()
    unpack_packages(PACKAGES, root, "Kubernetes")
    archive = _download(folder)
    report(f"Kubernetes {VERSION}: is built once, 11 minutes of processor time, 3 GB in {folder}")
    with tarfile.open(archive) as source:
        source.extractall(folder, filter="tar")
    vendored = tree / "vendor" / REFLECT
    shutil.rmtree(vendored)
    shutil.copytree(root / "usr/share/gocode/src" / REFLECT, vendored)
    environment = _environment(folder, root)
    log = folder.parent / "kubernetes.log"
    with log.open("w") as output, _ended_group() as started:
        command = ["make", f"WHAT={' '.join(f'cmd/{name}' for name in BUILT)}", "GOLDFLAGS=-s -w"]
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=output, stderr=output,
            stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=(lock,),
        )  # fmt: skip
        started.append(process)
        if process.wait():
            raise InputError(f"Kubernetes was not built: see {log}")
    programs = folder / "programs"
    programs.mkdir()
    for name in BUILT:
        (found,) = (tree / "_output/local/bin").glob(f"*/*/{name}")
        found.rename(programs / name)
    for name in UNPACKED:
        (root / "usr/bin" / name).rename(programs / name)
    return programs


def _download(folder: Path) -> Path:
    url, archive = mirror() + SOURCE, folder / "source.tar.gz"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, archive.open("wb") as file:
            shutil.copyfileobj(answer, file)
    except OSError as fault:
        raise InputError(f"Kubernetes cannot be fetched: {url}: {fault}") from None
    with archive.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != SHA256:
            raise InputError(f"{url} is not what was expected: its SHA-256 differs")
    return archive


def _environment(folder: Path, root: Path) -> dict[str, str]:
    if shutil.which("make") is None:
        raise InputError("Kubernetes cannot be built: there is no make here")
    version = folder / "version"  # the source has no repository to read it from
    lines = {
        "COMMIT": "debian", "TREE_STATE": "archive", "VERSION": f"v{VERSION}",
        "MAJOR": VERSION.split(".")[0], "MINOR": VERSION.split(".")[1],
    }  # fmt: skip
    version.write_text("".join(f"KUBE_GIT_{name}='{value}'\n" for name, value in lines.items()))
    go, scratch = root / "usr/lib/go-1.19", folder / "scratch"
    scratch.mkdir()
    libraries = ":".join(str(one) for one in (root / "usr/lib").glob("*-linux-gnu*"))
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("GO")},
        "PATH": f"{go / 'bin'}:{root / 'usr/bin'}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": libraries, "GOROOT": str(go), "TMPDIR": str(scratch),
        "GOFLAGS": "-mod=vendor", "GOPROXY": "off", "CGO_ENABLED": "0",
        "KUBE_GIT_VERSION_FILE": str(version),
    }  # fmt: skip


@contextmanager
def _ended_group() -> Iterator[list[subprocess.Popen[bytes]]]:
    """End the process groups of the processes in the list, if the block is left by an error."""
    started = list[subprocess.Popen[bytes]]()
    try:
        yield started
    except BaseException:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        raise

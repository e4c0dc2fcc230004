"""A Slurm cluster on 127.0.0.1 without root: Debian's packages, unpacked and not installed.

One controller, and a `slurmd` for each machine with made-up GPUs, each of them divided into shards.
The processes that were started, and only they, end with the context manager.
"""

from __future__ import annotations

import getpass
import logging
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from loadmaster.envs.compiled import PACKAGE_ROOT, cache_root
from loadmaster.envs.errors import InputError
from loadmaster.platform.bench.engines.debian import unpack_packages

log = logging.getLogger(__name__)

PACKAGES = (
    "munge", "libmunge2", "slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins",
    "libhwloc15", "liblua5.1-0",
)  # fmt: skip
SHARDS = 4  # of a GPU
CORES = 16  # of a machine, for Slurm
START_S = 60.0
_GIVEN = [20_000 + os.getpid() % 10_000]  # the last port of each cluster of this process
_GIVING = threading.Lock()
JOB_SUBMIT = PACKAGE_ROOT / "platform/steering/slurm/job_submit.lua"
_CONF = """ClusterName=loadmaster
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
PluginDir={library}/slurm-wlm
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
{submit}
PriorityType=priority/basic
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,batch_sched_delay=0,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu,shard
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
MinJobAge=300
InactiveLimit=0
NodeName=DEFAULT CPUs={cores} Boards=1 SocketsPerBoard=1 CoresPerSocket={cores} ThreadsPerCore=1 \
RealMemory=4000 State=UNKNOWN
{nodes}
PartitionName=gpu Nodes=n[1-{count}] Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


@dataclass(frozen=True)
class Machine:
    """A machine of the cluster: its type of GPU, and how many."""

    gpu: str
    gpus: int = 4
    weight: int = 1  # Slurm fills nodes of low weight first


DEFAULT_MACHINES = (Machine("v100"), Machine("p100"), Machine("t4"))


class CommandError(RuntimeError):
    """One of Slurm's commands failed."""


class SlurmCluster:
    """A running cluster: the environment of Slurm's commands, and a way to run them."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self._root = folder, root
        library = root / "usr/lib/x86_64-linux-gnu"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLURM")},
            "PATH": f"{root / 'usr/bin'}:{os.environ.get('PATH', '')}",
            "LD_LIBRARY_PATH": f"{library}:{library / 'slurm-wlm'}",
            "SLURM_CONF": str(folder / "slurm.conf"),
        }

    def run(self, *words: str) -> str:
        """Run a command; raises CommandError with what it wrote to stderr."""
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, env=self.environment,
            cwd=self.folder, timeout=60,
        )  # fmt: skip
        if done.returncode:
            raise CommandError(f"{words[0]}: {' '.join(done.stderr.split())}")
        return done.stdout.strip()

    def submit(self, command: str, *options: str) -> int:
        """Submit a shell command as a job that may be requeued; its id."""
        found = self.run(
            "sbatch", "--parsable", "--requeue", "-o", "/dev/null", *options, "--wrap", command
        )
        return int(found.split(";")[0])

    def pids(self) -> dict[str, int]:
        """Process ids of the daemons by the name of their file."""
        return {file.stem: int(file.read_text()) for file in sorted(self.folder.glob("*.pid"))}

    def daemon(self, program: str, *words: str) -> None:
        """Start a daemon, which writes its own file of its process id."""
        path = self._root / "usr/sbin" / program
        try:
            subprocess.run(
                [str(path), *words], check=True, capture_output=True, text=True,
                env=self.environment, cwd=self.folder, timeout=START_S,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as fault:
            error = " ".join(str(getattr(fault, "stderr", "") or fault).split())
            raise InputError(f"{program} did not start: {error}") from None

    def start_controller(self) -> None:
        self.daemon("slurmctld", "-i")


def fetch_slurm() -> Path:
    """Return the folder of the unpacked packages (3.5 MB), fetched where the cache lacks them."""
    root = cache_root() / "engines" / "slurm"
    if (root / "usr/sbin/slurmstepd").exists():
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
        unpacked = Path(scratch) / "root"
        unpack_packages(PACKAGES, unpacked, "Slurm")
        # The daemons read their own name: as slurmd-wlm they have no Gres.
        for daemon in ("slurmctld", "slurmd", "slurmstepd"):
            (unpacked / "usr/sbin" / daemon).symlink_to(f"{daemon}-wlm")
        if not root.exists():  # else another process was faster
            unpacked.rename(root)
    return root


@contextmanager
def slurm_cluster(
    machines: Sequence[Machine] = DEFAULT_MACHINES, steered: bool = True, grace_s: int = 120
) -> Iterator[SlurmCluster]:
    """Start a cluster; `steered`: with `job_submit.lua`, by which jobs wait `grace_s` seconds."""
    root = fetch_slurm()
    # munged requires that all users may enter the folders above its socket.
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    folder.chmod(0o755)
    cluster = SlurmCluster(folder, root)
    try:
        _write_files(folder, root, machines, steered, grace_s)
        cluster.daemon(
            "munged", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munged.pid", f"--log-file={folder}/log/munged.log",
            f"--seed-file={folder}/munge.seed",
        )  # fmt: skip
        cluster.start_controller()
        for place in range(1, len(machines) + 1):
            cluster.daemon("slurmd", "-N", f"n{place}", "-d", str(root / "usr/sbin/slurmstepd"))
        _wait_until_idle(cluster, len(machines))
        yield cluster
    finally:
        _end(cluster)
        shutil.rmtree(folder, ignore_errors=True)


def _write_files(
    folder: Path, root: Path, machines: Sequence[Machine], steered: bool, grace_s: int
) -> None:
    for name in ("state", "spool", "log", "dev"):
        (folder / name).mkdir(mode=0o700)
    most = max(machine.gpus for machine in machines)
    device = Path("/dev/tty")  # GPUs need device files; these are never opened
    if not Path(f"{device}{most - 1}").is_char_device():
        device = folder / "dev/gpu"  # without devices CUDA_VISIBLE_DEVICES stays unset
        for gpu in range(most):
            Path(f"{device}{gpu}").touch()
    host, port = socket.gethostname(), _free_ports(len(machines) + 1)
    nodes, gres = list[str](), ["AutoDetect=off"]
    for place, machine in enumerate(machines, start=1):
        (folder / "spool" / f"n{place}").mkdir(mode=0o700)
        kinds = f"gpu:{machine.gpu}:{machine.gpus},shard:{machine.gpus * SHARDS}"
        nodes.append(
            f"NodeName=n{place} NodeHostname={host} NodeAddr=127.0.0.1 Port={port + place} "
            f"Gres={kinds} Weight={machine.weight}"
        )
        gres.append(
            f"NodeName=n{place} Name=gpu Type={machine.gpu} File={device}[0-{machine.gpus - 1}]"
        )
        gres.append(f"NodeName=n{place} Name=shard Count={machine.gpus * SHARDS}")
    text = _CONF.format(
        host=host, port=port, user=getpass.getuser(), folder=folder, cores=CORES,
        library=root / "usr/lib/x86_64-linux-gnu", nodes="\n".join(nodes), count=len(machines),
        submit="JobSubmitPlugins=lua" if steered else "",
    )  # fmt: skip
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text("\n".join(gres) + "\n")
    script = JOB_SUBMIT.read_text()
    (folder / "job_submit.lua").write_text(script.replace("GRACE_S = 120", f"GRACE_S = {grace_s}"))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)


def _free_ports(count: int) -> int:
    """The first of `count` consecutive ports that are free and were not given before."""
    with _GIVING:
        for port in range(_GIVEN[-1] + 1, 60_000, count):
            try:
                for one in range(port, port + count):
                    with socket.socket() as tried:
                        tried.bind(("127.0.0.1", one))
            except OSError:
                continue
            _GIVEN.append(port + count - 1)
            return port
    raise InputError(f"no {count} consecutive ports are free on 127.0.0.1")


def _wait_until_idle(cluster: SlurmCluster, count: int) -> None:
    end, states = time.monotonic() + START_S, list[str]()
    while time.monotonic() < end:
        try:
            states = cluster.run("sinfo", "-h", "-N", "-o", "%T").split()
        except (CommandError, subprocess.TimeoutExpired):
            states = []
        if states == ["idle"] * count:
            return
        time.sleep(0.1)
    raise InputError(f"Slurm's nodes are {', '.join(states) or 'not listed'}; expected idle")


def _end(cluster: SlurmCluster) -> None:
    """End the jobs, then the daemons, and wait for them."""
    pids = cluster.pids()
    if "slurmctld" in pids:
        try:
            cluster.run("scancel", "--full", "--signal=KILL", "--user", getpass.getuser())
            end = time.monotonic() + 5
            while cluster.run("squeue", "-h", "-t", "R,CG") and time.monotonic() < end:
                time.sleep(0.1)
        except (CommandError, subprocess.TimeoutExpired) as fault:
            log.warning("the jobs were not cancelled before the daemons end: %s", fault)
    for pid in pids.values():
        _send(pid, signal.SIGTERM)
    end = time.monotonic() + 10
    while any(map(is_running, pids.values())) and time.monotonic() < end:
        time.sleep(0.05)
    for pid in pids.values():
        _send(pid, signal.SIGKILL)


def _send(pid: int, number: int) -> None:
    if is_running(pid):
        os.kill(pid, number)


def is_running(pid: int) -> bool:
    """Whether a process exists and has not ended; a daemon's parent may not reap it."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False

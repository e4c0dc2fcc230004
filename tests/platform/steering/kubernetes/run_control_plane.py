"""Run a control plane until Ctrl-C, to try the commands of docs/kubernetes.md and its neighbours.

    python -m tests.platform.steering.kubernetes.run_control_plane

It has a node without GPUs and two with four each. Pods run for as many seconds as their annotation
`tests.loadmaster.dev/run-s` has, or until they are deleted. kube-scheduler requests the extender at
the default port of `loadmaster steer kubernetes-gpu`.
"""

import signal
import tempfile
import threading
from pathlib import Path

from loadmaster.platform.steering.kubernetes_gpu.settings import GpuClusterSettings
from tests.platform.steering.kubernetes.build import find_kubernetes
from tests.platform.steering.kubernetes.control_plane import control_plane_on
from tests.platform.steering.kubernetes.real_workload import NODE
from tests.platform.steering.kubernetes_gpu.cluster import gpu_node


def main() -> None:
    programs = find_kubernetes()
    port = GpuClusterSettings().port
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with (
        tempfile.TemporaryDirectory(prefix="kubernetes-") as folder,
        control_plane_on(programs, Path(folder), port) as plane,
    ):
        for data in (NODE, gpu_node("n1"), gpu_node("n2", product="Tesla-T4")):
            plane.add_node(data)
        print(f"export KUBECONFIG={plane.kubeconfig('admin')} PATH={programs}:$PATH")
        print(f"the logs are in {folder}; Ctrl-C ends it", flush=True)
        ended.wait()


if __name__ == "__main__":
    main()

"""Run a control plane until Ctrl-C, to try the commands of docs/kubernetes.md and its neighbours.

    python -m tests.platform.steering.kubernetes.run_control_plane

It has a node without GPUs and two with four each, and the Deployment shop/cart, whose metrics a
simulated Prometheus serves: three pods that use 95% of their CPU. Pods run for as many seconds as
their annotation `tests.loadmaster.dev/run-s` has, or until they are deleted. kube-scheduler
requests the extender at the default port of `loadmaster steer kubernetes-gpu`.
"""

import signal
import tempfile
import threading
from pathlib import Path

from loadmaster.platform.steering.kubernetes_gpu.settings import GpuClusterSettings
from tests.platform.steering.kubernetes.api_server import DEPLOYMENT, deployment, serving
from tests.platform.steering.kubernetes.build import find_kubernetes
from tests.platform.steering.kubernetes.control_plane import control_plane_on
from tests.platform.steering.kubernetes.real_workload import NODE, PodMetrics
from tests.platform.steering.kubernetes_gpu.cluster import gpu_node

LOAD_CPU_M = 1425.0  # of three pods of 500m


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
        admin = plane.client("admin")
        plane.kubectl("create", "namespace", "shop")
        admin.create(DEPLOYMENT.rpartition("/")[0], deployment())
        metrics = PodMetrics(admin)
        metrics.load_cpu_m = LOAD_CPU_M
        with serving(metrics.handle) as prometheus:
            print(f"export KUBECONFIG={plane.kubeconfig('admin')} PATH={programs}:$PATH", end=" ")
            print(f"PROMETHEUS={prometheus}")
            print(f"the logs are in {folder}; Ctrl-C ends it", flush=True)
            ended.wait()


if __name__ == "__main__":
    main()

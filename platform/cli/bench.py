"""`loadmaster bench`: measured speed beside figures of peers."""

from __future__ import annotations

from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from loadmaster.platform.cli import options
from loadmaster.platform.cli.bench_charts import (
    bench_faults,
    bench_replicas,
    bench_scaling,
    bench_soak,
    progress,
)
from loadmaster.platform.cli.bench_tables import print_figures
from loadmaster.platform.cli.options import AsJson, UsageError, argument, option
from loadmaster.platform.ray.cleanup import terminable
from loadmaster.platform.ray.session import set_ray_env

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from loadmaster.platform.bench.measurements import Figure

GROUPS = {  # modules
    "simulators": "simulators",
    "rollouts": "measurements",
    "encoder": "encoder",
    "off-policy": "off_policy",
    "offline": "offline",
}
# Not part of `all`: they need the extra `serve`, minutes, or many cores.
READING, SERVE, TENANTS, SCALING = "reading", "serve", "tenants", "scaling"
SOAK, FAULTS, ADAPTATION, EMBEDDING = "soak", "faults", "adaptation", "embedding"
BOOTSTRAPPING, SHIFTS, FORESIGHT = "bootstrapping", "shifts", "foresight"
ENGINES = "engines"
OTHERS = (
    READING, SERVE, TENANTS, SCALING, SOAK, FAULTS, ADAPTATION, EMBEDDING, BOOTSTRAPPING, SHIFTS,
    FORESIGHT, ENGINES,
)  # fmt: skip
OF_SYSTEMS = (
    "rollouts", SCALING, ADAPTATION, EMBEDDING, BOOTSTRAPPING, SHIFTS, TENANTS, FORESIGHT, ENGINES,
)  # fmt: skip
OF_APPLICATIONS = (ADAPTATION, EMBEDDING, BOOTSTRAPPING, SHIFTS, TENANTS)
WITH_TABLES = (
    EMBEDDING, BOOTSTRAPPING, SHIFTS, FORESIGHT, SCALING, SOAK, FAULTS, SERVE, ENGINES,
)  # fmt: skip
# Modules by engine.
STEERED = {"flink": "flink", "ray-serve": "ray_serve", "slurm": "slurm", "spark": "spark"}
SYSTEM = "decima"  # default of scaling


def bench(
    group: Annotated[str, argument("GROUP", f"{', '.join((*GROUPS, *OTHERS))}, or all.")] = "all",
    system: Annotated[
        str | None,
        argument(
            "SYSTEM",
            "For rollouts, adaptation, bootstrapping, shifts, foresight, scaling, embedding, "
            "tenants. For engines: one of flink, ray-serve, slurm, spark. "
            "[default: all; of scaling decima; of embedding aware; of tenants none]",
        ),
    ] = None,
    workers: Annotated[
        str | None, option("N,N", "For scaling. [default: of 1,2,4,8,14 up to the cores]")
    ] = None,
    gpus: Annotated[int | None, option("N", "For scaling: GPUs for the learner.")] = None,
    minutes: Annotated[float | None, option("N", "For soak. [default: 10]")] = None,
    names: Annotated[int | None, option("N", "For tenants. [default: 20000]")] = None,
    kills: Annotated[int | None, option("N", "For faults. [default: 20]")] = None,
    seed: Annotated[
        int | None, option("N", "For faults: of the kills and of the training. [default: 1]")
    ] = None,
    kill_every: Annotated[
        float | None, option("SECONDS", "For soak: kill a process of the service so often.")
    ] = None,
    replicas: Annotated[
        str | None, option("N,N", "For serve: measure these numbers of gateways and workers.")
    ] = None,
    applications: Annotated[
        int | None,
        option(
            "N",
            "For adaptation, bootstrapping, shifts, embedding, tenants aware. "
            "[default: 3; of embedding 40; of tenants 1000]",
        ),
    ] = None,
    bounds: Annotated[
        int | None,
        option("N", "For bootstrapping: applications to compare bounds on. [default: 10]"),
    ] = None,
    seeds: Annotated[
        int | None,
        option(
            "N",
            "For adaptation: trainings. For foresight: job sequences. For engines: repeats. "
            "[default: 1; of foresight 5; of engines 10]",
        ),
    ] = None,
    first_seed: Annotated[
        int | None, option("N", "For foresight: the first sequence. [default: 700000]")
    ] = None,
    futures: Annotated[
        int | None, option("M", "For foresight: futures drawn at a decision. [default: 6]")
    ] = None,
    tried: Annotated[
        int | None,
        option(
            "K",
            "For foresight: jobs whose stages are tried at a decision. [default: 3]",
            "--options",
        ),
    ] = None,
    assignments: options.Assignments = None,
    episodes: Annotated[
        int | None, option("N", "For adaptation: of a training. [default: 20]")
    ] = None,
    policy: Annotated[
        list[str] | None,
        option("NAME=BUNDLE", "For adaptation: a bundle of a rival; may be repeated."),
    ] = None,
    output: Annotated[
        Path | None,
        option(
            "FOLDER",
            "For scaling, soak, faults, embedding, bootstrapping, shifts, foresight, engines, "
            "serve --replicas. [default: results/bench/GROUP]",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure speed against published figures.

    Runs one benchmark at a time and prints each figure beside that of a peer. `scaling` measures
    training with more and more rollout workers and draws a chart; every point is printed and
    written at once. `reading` measures how long the service's worker takes to read a state, from
    JSON and from MessagePack. `serve` measures the decision service beside a no-op endpoint, with
    --replicas by the number of gateways and workers; `tenants` measures its memory and disk after
    one decision for each of many tenants, `tenants aware` latency and size with 1,000 known
    applications, and what a kill of all its processes loses. `soak` loads it at half its peak for
    some minutes, and exits with 1 if a request fails or memory grows; with --kill-every, its
    processes are killed, and it exits with 1 if a request of its client fails or a process is not
    replaced. `faults`
    trains on a cluster of three nodes of this machine, kills workers, nodes and the driver at
    random, and exits with 1 if an iteration is lost. `adaptation` trains a policy and its rivals
    further on applications that none of them was trained on, and counts episodes, processor time
    and violations. `embedding` compares AWARE's embeddings of unseen
    applications with what these have in common, counts how many known and unknown applications
    are flagged as unknown, and draws a projection. `bootstrapping` counts violations while an agent
    learns, from nothing and while rules act. `shifts` changes payload, load or application, and
    counts episodes until the fall is noticed and over. `foresight` runs a policy, the best rule
    and searches around both, some of which know the future, above a lower bound on every schedule.
    `engines` starts a real engine on this machine (fetched at first) and compares its own rules
    with what `steer` makes of it, on equal work; it takes from half an hour to some hours.
    These twelve are not part of `all`.

    Example:

        loadmaster bench simulators --json

        loadmaster bench rollouts decima

        loadmaster bench off-policy

        loadmaster bench offline

        loadmaster bench scaling --workers 1,2,4,8,14 --output results/scaling

        loadmaster bench serve --replicas 1,2,4,8 --output results/replicas

        loadmaster bench tenants aware

        loadmaster bench soak --minutes 10 --output results/soak

        loadmaster bench soak --minutes 10 --kill-every 30

        loadmaster bench faults --kills 20 --seed 1 --output results/faults

        loadmaster bench adaptation aware --applications 20 --seeds 5

        loadmaster bench embedding aware --output results/embedding

        loadmaster bench bootstrapping aware --bounds 50 --output results/bootstrapping

        loadmaster bench shifts aware --applications 5

        loadmaster bench foresight decima --seeds 10 --set jobs=20

        loadmaster bench engines slurm --seeds 10 --output results/slurm
    """
    set_ray_env(address=None)  # as `loadmaster train`
    from loadmaster.envs.errors import unknown_name

    groups = (*GROUPS, *OTHERS, "all")
    if group not in groups:
        raise unknown_name("benchmark", group, groups)
    if system is not None and group not in OF_SYSTEMS:
        raise UsageError(f"{group} takes no system; expected `loadmaster bench rollouts {system}`")
    for name, value, takers in (
        ("--workers", workers, (SCALING,)),
        ("--gpus", gpus, (SCALING,)),
        ("--minutes", minutes, (SOAK,)),
        ("--names", names, (TENANTS,)),
        ("--kills", kills, (FAULTS,)),
        ("--seed", seed, (FAULTS,)),
        ("--kill-every", kill_every, (SOAK,)),
        ("--replicas", replicas, (SERVE,)),
        ("--applications", applications, OF_APPLICATIONS),
        ("--bounds", bounds, (BOOTSTRAPPING,)),
        ("--seeds", seeds, (ADAPTATION, FORESIGHT, ENGINES)),
        ("--first-seed", first_seed, (FORESIGHT,)),
        ("--futures", futures, (FORESIGHT,)),
        ("--options", tried, (FORESIGHT,)),
        ("--set", assignments, (FORESIGHT,)),
        ("--episodes", episodes, (ADAPTATION,)),
        ("--policy", policy, (ADAPTATION,)),
        ("--output", output, WITH_TABLES),
    ):
        if value is not None and group not in takers:
            where = " or ".join(f"`bench {taker}`" for taker in takers)
            raise UsageError(f"{group} takes no {name}; expected it with {where} only")
    counts = {
        "names": names,
        "applications": applications,
        "bounds": bounds,
        "seeds": seeds,
        "episodes": episodes,
    }
    for name, number in counts.items():
        if number is not None and number < 1:
            raise UsageError(f"--{name} is {number}; expected a positive number")
    if group == SCALING:
        bench_scaling(system or SYSTEM, workers, gpus, output, as_json)
        return
    if group == SOAK:
        bench_soak(10.0 if minutes is None else minutes, kill_every, output, as_json)
        return
    if group == FAULTS:
        bench_faults(20 if kills is None else kills, 1 if seed is None else seed, output, as_json)
        return
    if replicas is not None:
        bench_replicas(replicas, output, as_json)
        return
    if group == SERVE and output is not None:
        raise UsageError("serve takes no --output without --replicas; expected both or neither")
    given: tuple[Any, ...] = () if system is None else (system,)
    if group == TENANTS:
        for name, value, wrong in (
            ("--names", names, system is not None),
            ("--applications", applications, system is None),
        ):
            if value is not None and wrong:
                raise UsageError(
                    f"{name} does not fit `bench tenants{'' if system is None else f' {system}'}`; "
                    "expected --names without a system, --applications with `bench tenants aware`"
                )
        given = system, names, applications
    if group == EMBEDDING:
        given = system, applications, output or Path("results/bench/embedding")
    figures: list[Figure] = []
    if group == ADAPTATION:
        from loadmaster.platform.bench.adaptation import effort_of

        given = system, effort_of(applications, seeds, episodes, policy or ())
    if group in (BOOTSTRAPPING, SHIFTS):
        from loadmaster.platform.bench.bootstrapping import BootstrapEffort
        from loadmaster.platform.bench.shifts import ShiftEffort

        effort = BootstrapEffort if group == BOOTSTRAPPING else ShiftEffort
        wanted = {"applications": applications, "bounds": bounds}
        sizes = {name: count for name, count in wanted.items() if count is not None}
        given = system, effort(**sizes), output or Path(f"results/bench/{group}")
    if group == FORESIGHT:
        from loadmaster.platform.bench.foresight import ForesightEffort

        wanted = {"seeds": seeds, "first_seed": first_seed, "futures": futures, "options": tried}
        sizes = {name: count for name, count in wanted.items() if count is not None}
        given = (
            system,
            ForesightEffort(assignments=tuple(assignments or ()), **sizes),
            output or Path("results/bench/foresight"),
        )
    if group == ENGINES:
        if system not in STEERED:
            if system is None:
                raise UsageError(f"no engine is named; expected one of: {', '.join(STEERED)}")
            raise unknown_name("engine", system, STEERED)
        group = f"engines.{STEERED[system]}"
        given = seeds or 10, output or Path(f"results/bench/engines/{system}")
    with terminable(), progress() as show:  # engines and services that were started are ended
        for name in GROUPS if group == "all" else (group,):
            module = import_module(f"loadmaster.platform.bench.{GROUPS.get(name, name)}")
            figures += module.measure(show, *given)
    if as_json:
        options.print_json({"results": [asdict(figure) for figure in figures]})
    else:
        print_figures(figures)

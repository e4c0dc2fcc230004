"""`loadmaster adapt`: estimates and embedding of one application, for a policy."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from loadmaster.platform.cli import options
from loadmaster.platform.cli.options import UsageError, flag, option

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from loadmaster.platform.systems.aware.adaptation import AdaptationCommand, Adapted

EPISODES, RULE = 5, "hpa"  # defaults
SERVICE_S = 10.0  # timeout of the call of a service


def adapt(
    system: options.SystemName,
    application: Annotated[
        str | None, option("NAME", "SEGMENT+SEGMENT, test:7, or a YAML file with one.")
    ] = None,
    episodes: Annotated[
        int | None, option("N", "Adapt to it in N simulated episodes. [default: 5]")
    ] = None,
    log: Annotated[
        Path | None,
        option("FILE", "Transitions in Parquet, of one application; nothing is simulated."),
    ] = None,
    record: Annotated[
        Path | None, option("FILE", "Only write such a log, of --episodes under --rule.")
    ] = None,
    rule: Annotated[str, option("NAME", "For --record: the baseline that acts.")] = RULE,
    fine_tune: Annotated[
        bool, flag("--fine-tune", "Train the policy further; kept if it is not worse.")
    ] = False,
    policy: Annotated[
        str | None,
        option("NAME|FOLDER", "A pretrained policy, a bundle or run. [default: the nearest one]"),
    ] = None,
    workload: options.WorkloadName = None,
    assignments: options.Assignments = None,
    output: Annotated[
        Path | None, option("FOLDER", "For the result. [default: results/adapt/...]")
    ] = None,
    service: Annotated[
        str | None, option("URL", "Give the result to a running service, which goes on from it.")
    ] = None,
    tenant: Annotated[
        str | None, option("NAME", "For --service: its tenant. [default: the application]")
    ] = None,
    token_file: Annotated[
        Path | None,
        option("FILE", "For --service: file with the token. [default: variable LOADMASTER_TOKEN]"),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Adapt a policy to one application, and compare it with rules.

    With --episodes, the policy runs episodes of the application on seeds that no evaluation uses;
    tuned rules run the same ones. With --log, estimates and embedding are from a log of the rules'
    decisions alone. Writes application.json, and with --fine-tune a bundle, if its reward in
    further episodes is not below that before. Prints processor time and peak memory.

    Example:

        loadmaster adapt aware --application webServe+S3Read --episodes 5

        loadmaster adapt aware --application test:7 --record hpa.parquet --episodes 1

        loadmaster adapt aware --log hpa.parquet --policy BUNDLE_OR_RUN --service URL
    """
    if log is not None and (episodes is not None or record is not None or fine_tune):
        raise UsageError("--log takes no --episodes, --record or --fine-tune; expected it alone")
    if record is not None and fine_tune:
        raise UsageError("--record takes no --fine-tune; expected one of them")
    if record is not None and service is not None:
        raise UsageError("--record takes no --service; expected one of them")
    if service is None and (tenant is not None or token_file is not None):
        raise UsageError("--tenant and --token-file are for --service; expected --service URL")
    if log is None and application is None:
        raise UsageError("no application; expected --application NAME, or --log FILE")
    from loadmaster.envs.registry import find_system
    from loadmaster.platform.cli.decide import call_service
    from loadmaster.platform.evaluation import adapters
    from loadmaster.platform.evaluation.files import check_writable
    from loadmaster.serving.client import calls as service_calls
    from loadmaster.serving.decisions.tenant_names import tenant_of

    found = find_system(system)
    calls: AdaptationCommand = found.load("adaptation")
    adapter = adapters.find_adapter(system)
    check_writable(output or Path("results/adapt"))
    values = adapters.given_values(assignments, workload)
    named = None if log is not None else application
    if named is not None and values.setdefault("application", named) != named:
        raise UsageError("--application and --set application disagree; expected one of them")
    settings = adapter.settings(values)
    count = EPISODES if episodes is None else episodes
    if record is not None:
        rewards = calls.record_log(settings, rule, count, record)
        if as_json:
            options.print_json({"file": str(record), "rule": rule, "rewards": rewards})
        else:
            print(f"{rule}: mean reward {sum(rewards) / len(rewards):.4f}; log: {record}")
        return
    _, learned = adapters.choose_learned(adapter, [policy] if policy else [], found, settings)
    if not learned:
        raise UsageError(f"--policy {policy} is a baseline; expected a bundle or run of {system}")
    (chosen,) = learned.values()
    began = time.perf_counter()
    if log is not None:
        adapted = calls.by_log(chosen.bundle, settings, log, application)
    else:
        adapted = calls.by_episodes(chosen.bundle, settings, count)
    if fine_tune:
        adapted = calls.tune(adapted)
    folder = output or Path("results/adapt") / adapters.folder_name_of(
        [system, adapted.application]
    )
    files = [f"{folder}{os.sep}{name}" for name in calls.write(adapted, folder)]
    spent = usage(time.perf_counter() - began)
    if service is not None:
        request = adapted.service_request()
        if tenant is not None:
            request["tenant"] = tenant_of(tenant)
        call_service(service_calls.memory(system, **request), service, token_file, SERVICE_S)
    if as_json:
        options.print_json({**adapted.record(), **spent, "files": files})
        return
    print_adapted(adapted)
    print(
        f"processor time {spent['cpu_s']:.1f} s with imports, {spent['elapsed_s']:.1f} s elapsed "
        f"without, peak memory {spent['peak_mb']:.0f} MB"
    )
    print(f"Files: {', '.join(files)}")
    if service is not None:
        print(f"Service: tenant {request['tenant']} at {service}")


def print_adapted(adapted: Adapted) -> None:
    if adapted.episodes:
        for headings, rows in (adapted.episode_table(), adapted.policy_table()):
            options.print_table(headings, rows, right=range(1, len(headings)))
            print()
    for line in adapted.lines:
        print(line)


def usage(elapsed_s: float) -> dict[str, float]:
    """Processor time and peak memory of this process so far.

    Linux counts the peak of the process that started this one in `ru_maxrss`, not in VmHWM.
    """
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (peak_kib,) = (int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return {"cpu_s": time.process_time(), "elapsed_s": elapsed_s, "peak_mb": 1024 * peak_kib / 1e6}

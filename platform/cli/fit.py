"""`loadmaster fit`: which scheduler is best for a user's own trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from loadmaster.platform.cli import options
from loadmaster.platform.cli.options import argument, option
from loadmaster.platform.ray.session import set_ray_env

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from loadmaster.platform.fitting.plan import Plan

STEPS = 5
MINUTES, SEEDS = 10.0, 20


def fit(
    trace: Annotated[
        Path, argument("TRACE", "A Spark event log or a folder of them, or a CSV of jobs.")
    ],
    trace_format: Annotated[
        str | None,
        option(
            "NAME",
            "spark, alibaba, dag-jobs, pai, philly, openb or gpu-jobs. [default: by content]",
            "--format",
        ),
    ] = None,
    system: Annotated[
        str | None, option("NAME", "The policy to fine-tune. [default: by the kind of trace]")
    ] = None,
    start: Annotated[
        str | None,
        option("BUNDLE", "The policy to start from. [default: the nearest shipped]", "--from"),
    ] = None,
    minutes: Annotated[float, option("N", "Of fine-tuning.")] = MINUTES,
    seeds: Annotated[int, option("N", "Job sequences to test on.")] = SEEDS,
    executors: Annotated[
        int | None, option("N", "Executors (task slots) of a cluster for DAGs. [default: its log]")
    ] = None,
    assignments: options.Assignments = None,
    workers: Annotated[
        int | None, option("N", "Threads and rollout workers. [default: one a core]")
    ] = None,
    output: Annotated[
        Path | None, option("FOLDER", "For all results; rerun to resume. [default: fits/NAME]")
    ] = None,
    address: options.RayAddress = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the best scheduler for your own trace.

    Splits the jobs by time. On the earlier ones it tunes all rules and fine-tunes the shipped
    policy; on the later ones it compares them, with paired intervals. Writes the workload, the
    rules' parameters, a report, and a bundle only if the policy is ahead of the best rule. --set
    is for settings of the environment. After an interruption the same command resumes.

    Example:

        loadmaster fit /var/log/spark --minutes 20

        loadmaster fit batch_task.csv --executors 200

        loadmaster fit jobs.csv --set 'machines=[{count: 8, gpus: 8, gpu: V100, cpus: 96}]'
    """
    set_ray_env(address)
    from loadmaster.envs.settings import parse_assignments
    from loadmaster.platform.evaluation import adapters
    from loadmaster.platform.fitting.plan import make_plan
    from loadmaster.platform.fitting.trace import read_trace

    adapters.choose_seeds(0, seeds)
    threads = adapters.choose_workers(workers)
    plan = make_plan(
        read_trace(trace, trace_format),
        output or Path("fits") / trace.resolve().name,
        system=system,
        start=start,
        given=parse_assignments(assignments or []),
        executors=executors,
        minutes=minutes,
        seeds=seeds,
    )
    record = plan.folder.read_json(plan.folder.RESULT)
    report(run_steps(plan, threads, address) if record is None else record, as_json)


def run_steps(plan: Plan, threads: int, address: str | None) -> dict[str, Any]:
    """Run the steps that an earlier attempt has not finished; return the record of the result."""
    from loadmaster.models.files import atomic_text_file
    from loadmaster.platform.cli.retrain import train_in
    from loadmaster.platform.cli.train import built
    from loadmaster.platform.evaluation.adapters import choose_seeds
    from loadmaster.platform.fitting import recommendation as advice
    from loadmaster.platform.fitting import steps
    from loadmaster.platform.training.export import export_bundle

    folder, adapter, facts = plan.folder, plan.adapter, plan.facts
    recipe = plan.system.load("training")
    show(1, f"{facts['Trace']}; {facts['Split']}")

    earlier = adapter.settings(plan.episodes.on(folder.train))
    show(2, f"tuning rules; {facts['Arrivals']}")
    tuning = plan.environment.tuning
    entries = steps.tune_rules(tuning, earlier, folder.calibration, threads)
    rule, score = steps.best_rule(adapter, adapter.settings(plan.trained), threads)
    show(2, f"{len(entries)} rules tuned; best on the training part: {rule}, {score:,.1f}")

    trained = steps.training_values(recipe, plan.start, plan.trained, plan.minutes, threads, score)
    settings = built(recipe, trained)
    show(3, f"fine-tuning {plan.start.manifest.name} for {plan.minutes:g} minutes")
    train_in(folder, recipe, settings, address)

    learned, shipped, fitted = steps.both_policies(plan.start, folder.run)
    show(4, f"{len(learned) + len(adapter.baselines)} policies on {plan.seeds} sequences")
    described = adapter.settings(plan.episodes.on(folder.test))
    result, evaluation = steps.compare_on_test(
        adapter, adapter.settings(plan.tested), described,
        learned, choose_seeds(0, plan.seeds), threads, folder.results,
    )  # fmt: skip
    found = advice.recommend(result, shipped, fitted)
    if found.kind == "fitted" and not folder.bundle.exists():
        export_bundle(folder.run, folder.bundle, "best", fitted, [folder.results / "summary.json"])
    with atomic_text_file(folder.report) as file:
        file.write(advice.markdown(result, found, facts))
    show(5, f"report: {folder.report}")
    record = {
        "facts": facts,
        "settings": plan.episodes.values,
        "calibrations": entries,
        "headings": advice.headings(result),
        "table": advice.table_rows(result, advice.short_list(result)),
        "recommendation": found.record(),
        "bundle": str(folder.bundle) if found.kind == "fitted" else None,
        "report": str(folder.report),
        "evaluation": evaluation,
    }
    folder.close(record)
    return record


def show(step: int, text: str) -> None:
    """One line on stderr, which also stays on a terminal."""
    print(f"fit {step}/{STEPS}: {text}", file=sys.stderr, flush=True)


def report(record: dict[str, Any], as_json: bool) -> None:
    if as_json:
        options.print_json(record)
        return
    options.print_table(record["headings"], record["table"], right=(1, 2))
    print()
    print(record["recommendation"]["sentence"])
    if record["bundle"] is not None:
        print(f"Bundle: {record['bundle']}")
    print(f"Report: {record['report']}")

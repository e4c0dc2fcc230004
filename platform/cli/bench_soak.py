"""`loadmaster bench soak`: the decision service at half its peak for some minutes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import typer

LONGEST = 24 * 60  # minutes


def bench_soak(minutes: float, output: Path | None, as_json: bool) -> None:
    """Ends with 1 where it does not hold."""
    from loadmaster.envs.errors import InputError
    from loadmaster.platform.bench.bench_server import served_systems
    from loadmaster.platform.bench.scaling_report import check_writable
    from loadmaster.platform.bench.soak import measure_soak
    from loadmaster.platform.bench.soak_report import FILES, judge, summary_of, write_soak
    from loadmaster.platform.cli.bench import hardware, telling
    from loadmaster.platform.ray.cleanup import ray_output_in

    if not 0 < minutes <= LONGEST:
        raise InputError(f"--minutes is {minutes:g}; expected more than 0, {LONGEST:,} at most")
    folder = output or Path("results/bench/soak")
    check_writable(folder)
    with ray_output_in(Path(os.devnull)) as stderr, telling(stderr) as progress:
        soak = measure_soak(60 * minutes, served_systems(), progress.say)
    verdict = judge(soak)
    title = f"The decision service for {minutes:g} minutes at half its peak on {hardware(0)}"
    write_soak(soak, verdict, title, folder)
    files = [str(folder / name) for name in FILES]
    if as_json:
        print(json.dumps({**summary_of(soak, verdict), "files": files}, indent=2))
    else:
        print(verdict.line)
        print(f"Files: {', '.join(files)}")
    if not verdict.holds:
        raise typer.Exit(1)

"""`loadmaster evaluate --matrix`: judge one policy in every setting of a file."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadmaster.platform.cli import options

if TYPE_CHECKING:  # the command is parsed before anything heavy is imported
    from loadmaster.platform.evaluation.matrix import MatrixRow

PIPED_WIDTH = 200  # columns where stdout is no terminal


def evaluate_matrix(
    target: str,
    file: Path,
    policy: str | None,
    against: str | None,
    seeds: tuple[int | None, int | None],
    given: Mapping[str, Any],
    output: Path | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Run the settings of a file; `seeds`: first and number, None for those of the file."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    from loadmaster.envs.registry import systems
    from loadmaster.platform.evaluation import adapters, matrix_files
    from loadmaster.platform.evaluation.files import check_writable, output_folder
    from loadmaster.platform.evaluation.matrix import MatrixResult, MatrixRunner
    from loadmaster.platform.evaluation.matrix_file import read_matrix

    adapter = adapters.find_adapter(target)
    first_seed, count = seeds
    adapters.choose_seeds(first_seed or 0, 1 if count is None else count)
    matrix = read_matrix(
        file, adapter.environment, adapter.settings, given=given, seeds=count, first_seed=first_seed
    )
    folder = output or Path("results") / adapters.folder_name_of([target, matrix.name])
    check_writable(folder)
    threads = adapters.choose_workers(workers)
    runner = MatrixRunner(adapter, systems().get(target), policy, against or "all", folder, threads)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    rows, not_run = [], {}
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("", total=len(matrix.entries))
        for number, entry in enumerate(matrix.entries, 1):
            progress.update(task, description=entry.name)
            start = time.monotonic()
            found = runner.run(entry)
            line = f"{number}/{len(matrix.entries)} {entry.name}: "
            if isinstance(found, str):
                not_run[entry.name] = found
                line += f"not run: {found}"
            else:
                rows.append(found)
                line += _row_line(found, time.monotonic() - start)
            progress.console.print(line, markup=False)
            progress.advance(task)
    result = MatrixResult(matrix.name, matrix.purpose, adapter, tuple(rows), not_run)
    with output_folder(folder) as scratch:
        written = matrix_files.write_everything(result, scratch, folder)
    if as_json:
        options.print_json(matrix_files.as_json(result, written))
        return
    shown = options.stdout_console(PIPED_WIDTH)
    if rows:
        shown.print(matrix_files.title(result), markup=False, style="bold", soft_wrap=True)
        shown.print()
        shown.print(matrix_files.result_table(result))
        shown.print()
    for sentence in matrix_files.sentences(result):
        shown.print(sentence, markup=False, soft_wrap=True)
    print(f"Tables and chart: {folder}{os.sep}")


def _row_line(row: MatrixRow, seconds: float) -> str:
    """One line of progress."""
    from loadmaster.platform.evaluation.matrix_files import difference_text

    found = difference_text(row.difference, row.metric)
    source = "kept from before" if row.from_file else f"{seconds:.1f} s"
    return f"{row.outcome}, {row.policy} against {row.rule} {found} ({source})"

"""Draw the four packages and the imports between them: `python -m tests.architecture.layers`.

Writes docs/images/layers.svg. A package is a row with a box per subfolder; an arrow stands for the
imports from one package to another, with the number of importing modules.
"""

from collections import Counter
from collections.abc import Mapping
from html import escape
from pathlib import Path

from tests.architecture.source_tree import PACKAGES, Module, read_modules

WIDTH, LEFT, TOP = 980, 20, 16
ROW, GAP = 84, 58  # height of a row, and space below it for arrows
CONTENTS = {
    "platform": "command line, training, evaluation, sweeps, replay, benchmarks",
    "serving": "decision service and client",
    "models": "networks, policies, bundles",
    "envs": "simulators, workloads, observations, baselines",
}
STYLE = (
    "text{font:13px sans-serif;fill:#222}.name{font-weight:bold;font-size:15px}"
    ".note{fill:#6b6b6b}.row{fill:#f4f6fa;stroke:#9aa4b5}.box{fill:#fff;stroke:#b9c2d0}"
    ".arrow{stroke:#332288;stroke-width:1.6;fill:none;marker-end:url(#head)}.count{fill:#332288}"
)


def subfolders(modules: Mapping[str, Module], package: str) -> list[str]:
    """Names of a package's subfolders in alphabetical order."""
    prefix = f"loadmaster.{package}."
    inner = [name.removeprefix(prefix).split(".") for name in modules if name.startswith(prefix)]
    return sorted({parts[0] for parts in inner if len(parts) > 1})


def importing_modules(modules: Mapping[str, Module]) -> Counter[tuple[str, str]]:
    """How many modules of the first package import the second."""
    counts: Counter[tuple[str, str]] = Counter()
    for module in modules.values():
        own = module.name.split(".")[1]
        targets = {name.split(".")[1] for name in module.contents.imports if _is_inner(name)}
        counts.update((own, target) for target in targets - {own})
    return counts


def _is_inner(name: str) -> bool:
    parts = name.split(".")
    return parts[0] == "loadmaster" and len(parts) > 1 and parts[1] in PACKAGES


def draw(modules: Mapping[str, Module]) -> str:
    rows = [*reversed(PACKAGES)]
    parts = []
    for place, package in enumerate(rows):
        y = TOP + place * (ROW + GAP)
        parts.append(f'<rect class="row" x="{LEFT}" y="{y}" width="{WIDTH - 240}" height="{ROW}"/>')
        parts.append(f'<text class="name" x="{LEFT + 12}" y="{y + 24}">{package}/</text>')
        note = escape(CONTENTS[package])
        parts.append(f'<text class="note" x="{LEFT + 92}" y="{y + 24}">{note}</text>')
        x = LEFT + 12
        for name in subfolders(modules, package):
            width = 16 + 7.2 * len(name)
            parts.append(
                f'<rect class="box" x="{x}" y="{y + 40}" width="{width:.0f}" height="28"/>'
            )
            parts.append(f'<text x="{x + 8}" y="{y + 59}">{escape(name)}</text>')
            x += round(width) + 8
    parts += _arrows(rows, importing_modules(modules))
    height = TOP * 2 + len(rows) * ROW + (len(rows) - 1) * GAP
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0 8 4 0 8z" fill="#332288"/></marker>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-label="Packages and imports"><style>{STYLE}</style><defs>{head}</defs>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _arrows(rows: list[str], counts: Counter[tuple[str, str]]) -> list[str]:
    """Neighbours get a straight arrow, others one along the right edge."""
    parts, lane = [], 0
    order = sorted(counts, key=lambda pair: (rows.index(pair[0]), rows.index(pair[1])))
    for source, target in order:
        count = counts[source, target]
        start, end = rows.index(source), rows.index(target)
        bottom = TOP + start * (ROW + GAP) + ROW
        top = TOP + end * (ROW + GAP)
        if end == start + 1:
            x = LEFT + 360
            parts.append(f'<path class="arrow" d="M{x} {bottom}V{top - 2}"/>')
            parts.append(f'<text class="count" x="{x + 10}" y="{top - 24}">{count} modules</text>')
            continue
        right = LEFT + WIDTH - 240
        x, lane = right + 24 + 70 * lane, lane + 1
        y1, y2 = bottom - ROW / 2 + 8 * lane - 12, top + ROW / 2 - 8 * lane + 12
        parts.append(f'<path class="arrow" d="M{right} {y1:.0f}H{x}V{y2:.0f}H{right + 2}"/>')
        middle = (y1 + y2) / 2
        parts.append(f'<text class="count" x="{x + 6}" y="{middle:.0f}">{count}</text>')
    return parts


if __name__ == "__main__":
    root = Path(__file__).resolve().parents[2]
    (root / "docs" / "images" / "layers.svg").write_text(draw(read_modules(root)), encoding="utf-8")

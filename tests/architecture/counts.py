"""Print the size of a checkout: `python -m tests.architecture.counts [FOLDER]`."""

import json
import sys
from pathlib import Path

from tests.architecture.source_tree import read_modules


def counts(root: Path) -> dict[str, int]:
    """Modules and lines of the four packages, of the tests, and of the two pages' assets."""
    modules = read_modules(root).values()
    tests = read_modules(root, ("tests",)).values()
    assets = [
        path
        for package in ("serving", "platform")
        for kind in ("js", "css", "html")
        for path in (root / package).rglob(f"*.{kind}")
    ]
    return {
        "modules": len(modules),
        "modules under 40 lines": sum(m.lines < 40 and not m.is_package for m in modules),
        "modules over 400 lines": sum(m.lines > 400 for m in modules),
        "lines of code": sum(m.lines for m in modules),
        "files of tests": len(tests),
        "lines of tests": sum(m.lines for m in tests),
        "lines of JavaScript, CSS, HTML": sum(len(p.read_text().splitlines()) for p in assets),
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    print(json.dumps(counts(folder), indent=2))

"""Names and docstrings use the field's words: no identifier or first line from the banned lists."""

import re
from pathlib import Path

import pytest

from tests.architecture.source_tree import Module, read_modules, words_of

# Images and verbs of speech. A word is banned wherever it stands in an identifier or module name.
BANNED = frozenset(
    """
    ask asked asker asks told tell tells said say says hear heard speak
    luck lucky desk crowd ear ears keeper tenure hotline switchboard doorkeeper door casting
    greet meet books film reel tape yardstick sitting wishes wish fleet doubt misplaced renewal
    verdict verdicts scene house brake ruling beside whoever somebody nobody
    """.split()
)
# A field that clients send, and names that saved weights and a library give.
ALLOWED = frozenset({"ask", "Ask", "tell"})
BANNED_ALIASES = frozenset({"at", "on", "seen", "told", "said"})
BANNED_OPENINGS = re.compile(r"(Who|Whoever|What (somebody|nobody|one)|Somebody|Nobody)\b")


def banned_names(module: Module) -> list[str]:
    names = [*module.contents.defined_names, *((part, 1) for part in module.name.split("."))]
    return [
        f"{module.name}:{line}: {name}"
        for name, line in names
        if name not in ALLOWED and BANNED & set(words_of(name))
    ] + [
        f"{module.name}:{line}: import as {alias}"
        for alias, line in module.contents.import_aliases
        if alias in BANNED_ALIASES
    ]


def banned_openings(module: Module) -> list[str]:
    found = module.contents.docstrings
    return [f"{module.name}:{line}: {text}" for text, line in found if BANNED_OPENINGS.match(text)]


def test_no_banned_name(root: Path) -> None:
    assert [found for m in read_modules(root).values() for found in banned_names(m)] == []


def test_no_banned_opening_of_a_docstring(root: Path) -> None:
    assert [found for m in read_modules(root).values() for found in banned_openings(m)] == []


@pytest.mark.parametrize(
    "source",
    [
        "def told(): ...",
        "def f(luck): ...",
        "class DeskState: ...",
        "for said in (): ...",
        "class A:\n    def f(self):\n        self.crowd = 1",
        "from loadmaster.envs import state as at",
        "from loadmaster.envs import state as told_state",
    ],
)
def test_planted_name_is_found(source: str) -> None:
    assert len(banned_names(Module("loadmaster.envs.a", source))) == 1


def test_planted_module_name_is_found() -> None:
    assert len(banned_names(Module("loadmaster.serving.hotline", "x = 1"))) == 1


@pytest.mark.parametrize(
    ("line", "count"),
    [("Who connects is served.", 1), ("Whoever asks.", 1), ("Whole episodes in one call.", 0)],
)
def test_planted_opening_is_found(line: str, count: int) -> None:
    planted = Module("loadmaster.envs.a", f'def f():\n    """{line}"""\n')
    assert len(banned_openings(planted)) == count

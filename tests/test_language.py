"""Text that users read has no words and forms that a native speaker would not write.

The text is every docstring and every string literal of several words in the packages of `HELD`, their templates and
tables, and the pages of the documentation.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: Forms to avoid, and what to write instead.
FORMS = {
    r"(?:could|can) ?not be told(?! apart)": "could not be decided, is unknown",
    r"\bhad to be told\b": "was required",
    r"\b(?:un)?mend(?:ed|ing|s|able)?\b": "fix",
    # A field of documents has this name: `verb=` in code, `verb:` in docstrings.
    r"(?<!format )\bverbs?\b(?![=:])": "command",
    r"\bsaved(?: in [^:]{1,40})?:": "avoided:",
    r"\bnobody vouches\b": "not verified",
    r"\blaid down\b": "defined",
    r"(?<!there )\bis no (?!longer\b|more\b|such\b|better\b|worse\b|room\b|other\b|need\b)[\w`-]+(?: \w+)?"
    r"(?=$|[.,;:)'\"]| and\b| or\b| that\b| of\b)": "is not a",
    r"\bthere is no verb\b": "no such command",
    r"(?<!there )\bis (?-i:none)\b": "is not one, does not exist",
    r"\b(?:is|are|was) left open\b": "is undecided",
    r"\bto be filled in\b": "replace",
    r"\b(?:play|plays|played) (?:a|the) fault\b|\bfault was played\b": "inject a fault",
    r"\btime-outs?\b": "timeout",
    r"\bback[- ]ends?\b": "backend",
    r"\bset-ups?\b": "setup, set up",
    r"\bfor ever\b": "forever",
    r"\bprocessor time\b": "CPU time",
    r"\bsurely\b": "certainly",
    r"\bassert(?:s|ed) it\b": "an assertion fails",
    r"\bright as (?:it is|they are)\b": "correct",
    r"\b(?:go|goes) on\b(?! with\b)": "continue",
    r"\bnothing but\b": "only",
    r"\banew\b": "again",
    r"\bstays? silent\b": "is not reported",
    r"\bresults? in all\b|\d in all\b|\bX in all\b": "in total",
    r"\bas one text\b": "as one string",
    r"\bheld against\b|\bhold(?:s)? (?:\w+ ){1,3}against\b": "compared with",
    r"\b(?:is|are) not told\b(?! apart)|\b(?:is|are) told (?:in|if|so|that|of|to)\b": "is reported, learns",
    r"\bin the place of\b": "instead of",
    r"\bstands? (?:twice|among|below|behind|(?:at|in) (?:its|their|the|no|a|one)\b)": "is",
    r"\bat the (?:most|least)\b": "at most, at least",
    r"\bof its variables only\b": "only one of its variables",
    r"\bcomes? to (?:a|the) (?:collective|call|loop|step|barrier)\b": "reaches",
    r"\btakes? no None\b": "does not accept None",
    r"\blists? of texts\b|\b(?:is|are) (?:a )?texts?, and\b": "string",
    r"\b\w+ at (?:least|most), (?:and|so)\b": "at least N",
}
#: Packages that are tested.
HELD = (
    "preflight/_util",
    "preflight/agent",
    "preflight/analysis",
    "preflight/cli",
    "preflight/commands",
    "preflight/config",
    "preflight/engine",
    "preflight/executors",
    "preflight/model",
    "preflight/plugins",
    "preflight/reporters",
    "preflight/runner",
    "preflight/services",
    "preflight/sources",
    "rules/preflight_rules",
    "checks/preflight_checks",
    "reference_trainer",
)
#: Pages that are tested. Pages about rules and checks are made of docstrings, and `docs/gallery.md` and
#: `docs/incidents.md` quote them.
PAGES = ("README.md", "CONTRIBUTING.md", "docs/architecture.md")


def found(text: str) -> list[str]:
    """Return each form that the text contains, with what to write instead."""
    text = " ".join(text.split())
    return [
        f"{match[0]!r} (write: {instead})"
        for form, instead in FORMS.items()
        for match in re.finditer(form, text, re.IGNORECASE)
    ]


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each docstring and string literal of a module with its line."""
    tree = ast.parse(path.read_text("utf-8"))
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            words = [str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values]
            yield node.lineno, "".join(words)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            # A single word is a key or a value of a document.
            yield node.lineno, node.value if " " in node.value else ""


def problems(package: str) -> list[str]:
    """Return the forms in a package's modules, templates and tables."""
    lines: list[str] = []
    for path in sorted((ROOT / package).rglob("*")):
        if path.suffix == ".py":
            for line, text in texts(path):
                lines += [f"{path.relative_to(ROOT)}:{line}: {form}" for form in found(text)]
        elif path.suffix in (".html", ".toml"):
            lines += [f"{path.relative_to(ROOT)}: {form}" for form in found(path.read_text("utf-8"))]
    return lines


@pytest.mark.parametrize("package", HELD)
def test_text_of_a_package(package: str) -> None:
    assert (ROOT / package).is_dir()
    assert not problems(package)


@pytest.mark.parametrize("page", PAGES)
def test_text_of_a_page(page: str) -> None:
    assert not found((ROOT / page).read_text("utf-8"))


def test_every_package_is_listed() -> None:
    core = {f"preflight/{path.parent.name}" for path in (ROOT / "preflight").glob("*/__init__.py")}
    outside = {"rules/preflight_rules", "checks/preflight_checks", "reference_trainer"}
    assert set(HELD) == core | outside


@pytest.mark.parametrize(
    "text",
    [
        "2 that had to be told and could not",
        "it could not be told",
        "3 can be mended by --fix",
        "There is no verb 'lnt'.",
        "saved: 4 nodes",
        "saved in train.sh: 4 nodes",
        "'x y' is no host name.",
        "standard input is none",
        "a fault was played in this run",
        "both are held against each other",
        "the time-out of the back end",
        "every rank asserts it",
        "the job goes on without it",
        "3 wrong results in all",
        "a device stands twice in the list",
        "regions is a list of texts",
        "one rank comes to the barrier",
        "placeholders in the place of hosts",
        "its servers are told that training has ended",
    ],
)
def test_a_banned_form_is_found(text: str) -> None:
    assert found(text)


@pytest.mark.parametrize(
    "text",
    ["it is no longer there", "is not a host name", "the two cannot be told apart", "verbose", "it is saved to FILE"],
)
def test_plain_english_passes(text: str) -> None:
    assert not found(text)

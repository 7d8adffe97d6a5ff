"""Every regular expression of preflight on strings that provoke backtracking."""

from __future__ import annotations

import ast
import re
import time
from pathlib import Path

import pytest

from tests.suite import effort

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("preflight", "checks/preflight_checks", "rules/preflight_rules")
#: Strings repeated before a character that does not match.
PIECES = (
    *("a", "A", "0", " ", "\t", "\n", "-", "_", ".", "/", ":", "=", ",", ";", "#", "@", "$", "\\", "'", '"', "{", "}"),
    *(
        "[",
        "]",
        "(",
        "<",
        "%",
        "{{",
        "{%",
        "${",
        "$(",
        "a ",
        "a.",
        "a=",
        "a,",
        "0.",
        "0,",
        "-a",
        "--a ",
        "a:1,",
        "# ",
        "\n#",
    ),
    *("#SBATCH ", "\n ", "\\\n", " \n", "a\n", "kind:", "- ", "a: ", "def a", "import a\n"),
)
#: The one that the fewest patterns match, in the gate; all of them with `--thorough`.
GATE_TAILS, TAILS = ("\0",), ("", "!", "\0", "\n!")
SIZE = 2_000
#: Cubic is some ten milliseconds here, quadratic a twentieth of one.
SMALL = 300
SUSPICIOUS_S = 0.002
#: Seconds of CPU time: quadratic is 4 million steps of some ten nanoseconds, cubic is hours.
MAX_S = 0.6


def patterns() -> list[tuple[str, str, int]]:
    """Location, text and flags of every pattern that is a literal in the code."""
    found: list[tuple[str, str, int]] = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or ast.unparse(node.func) != "re.compile":
                    continue
                for first in node.args[:1]:
                    if isinstance(first, ast.Constant) and isinstance(first.value, str):
                        flags = " ".join(
                            ast.unparse(item) for item in (*node.args[1:], *(k.value for k in node.keywords))
                        )
                        value = 0
                        for name, flag in (("I", re.I), ("IGNORECASE", re.I), ("MULTILINE", re.M), ("DOTALL", re.S)):
                            value |= int(flag) if re.search(rf"re\.{name}\b", flags) else 0
                        found.append((f"{path.relative_to(ROOT)}:{node.lineno}", first.value, value))
    return found


@pytest.mark.parametrize(
    ("place", "text", "flags"),
    patterns(),
    ids=lambda value: value if ":" in str(value)[:80] and "/" in str(value) else "",
)
def test_no_pattern_backtracks_for_long(place: str, text: str, flags: int, request: pytest.FixtureRequest) -> None:
    tails = TAILS if request.config.getoption(effort.OPTION) else GATE_TAILS
    pattern = re.compile(text, flags)
    for piece in PIECES:
        for tail in tails:
            # What is at most quadratic takes well under a millisecond at the small size.
            if _spent(pattern, piece * (SMALL // len(piece)) + tail) < SUSPICIOUS_S:
                continue
            # The minimum of three: load only makes runs slower.
            hostile = piece * (SIZE // len(piece)) + tail
            spent = min(_spent(pattern, hostile) for _ in range(3))
            assert spent < MAX_S, f"{place}: {text!r} takes {spent:.1f} s for {SIZE} times {piece!r} and {tail!r}"


def _spent(pattern: re.Pattern[str], hostile: str) -> float:
    started = time.process_time()
    pattern.search(hostile)
    pattern.fullmatch(hostile)
    return time.process_time() - started


def test_a_cubic_pattern_is_found() -> None:
    assert _spent(re.compile(r"a*a*a*b"), "a" * SMALL) > 10 * SUSPICIOUS_S

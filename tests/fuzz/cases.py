"""Findings as cases: `python -m tests.fuzz.cases [TARGET...]` minimises each and stores it in `tests/fuzz/cases/`.

A case is the bare input, in the folder of its target; `test_cases.py` replays all of them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.target import Finding, Target

CASES = Path(__file__).parent / "cases"
_FOUND = Path(__file__).parents[2] / ".fuzz" / "findings"
_BUDGET_S = 60.0


def cases() -> Iterator[tuple[str, Path]]:
    """Every committed case with the name of its target."""
    for path in sorted(CASES.glob("*/*")):
        if path.is_file():
            yield path.parent.name, path


def minimised(target: Target, finding: Finding, *, budget_s: float = _BUDGET_S) -> Finding:
    """Minimise the input of a finding, while the kind of fault stays the same and the budget lasts.

    Lines are removed first, in ever smaller groups, then characters.
    """
    until = time.monotonic() + budget_s
    best = finding
    for cut in (b"\n", b""):
        pieces = best.data.split(cut) if cut else [bytes((byte,)) for byte in best.data]
        size = max(1, len(pieces) // 2)
        while size and time.monotonic() < until:
            at = 0
            while at < len(pieces) and time.monotonic() < until:
                fewer = pieces[:at] + pieces[at + size :]
                found = target.tried(cut.join(fewer))
                if found is not None and _kind(found) == _kind(finding):
                    best, pieces = found, fewer
                else:
                    at += size
            size //= 2
    return best


def _kind(finding: Finding) -> str:
    """The location of a timeout differs from run to run, so it does not count."""
    return finding.signature if not finding.signature.startswith("time") else "time"


def main(names: list[str]) -> int:
    """Store the findings as cases, and report each."""
    from tests.fuzz.targets import TARGETS

    for place in sorted(_FOUND.glob("*/*/input")):
        name = place.parent.parent.name
        if names and name not in names:
            continue
        target = TARGETS[name]
        target.warm()
        finding = target.tried(place.read_bytes())
        if finding is None:
            print(f"{name}: {place.parent.name}: nothing is at fault any more")
            continue
        small = minimised(target, finding)
        path = CASES / name / small.slug
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(small.data)
        print(f"{name}: {small.signature}\n    {path} ({len(small.data)} of {len(finding.data)} bytes)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Print the order in which `preflight lint` of one example job enters the packages, for docs/architecture.md.

A line is a visit of a package, below the package that called it. A visit begins when a package is called that is not on
the call stack, and ends when that call returns. Visits of one package that follow each other directly, such as one for
each rule, are one line. Packages that every layer uses are left out, and so are imports and generated constructors.

`python -m tools.walk` writes the walk into the page.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
COMMAND = ("lint", "examples/torchrun-two-nodes/broken", "--no-cache", "--quiet", "-o", "text:/dev/null")
EVERYWHERE = ("preflight.model", "preflight._util")
_PACKAGE = re.compile(r"(?:preflight\.\w+|preflight_rules|preflight_checks|reference_trainer)(?=\.|$)")
_BLOCK = re.compile(r"(?<=<!-- walk: made by tools.walk -->\n)[^<]*(?=<!-- end of walk -->)")


@dataclass
class Visit:
    """A visit of a package, with the visits that it causes."""

    package: str
    inner: list[Visit] = field(default_factory=list)

    def enter(self, package: str) -> Visit:
        if not self.inner or self.inner[-1].package != package:
            self.inner.append(Visit(package))
        return self.inner[-1]

    def walk(self, depth: int = 0) -> Iterator[tuple[int, str]]:
        """Yield this visit and all inner ones, in order, each with its depth."""
        yield depth, self.package
        for visit in self.inner:
            yield from visit.walk(depth + 1)


class Tracer:
    """A profile function that records visits."""

    def __init__(self) -> None:
        self.top = Visit("")
        self.open: list[tuple[FrameType, Visit]] = []
        self.importing: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self.importing is not None:
            self.importing = None if event == "return" and frame is self.importing else self.importing
        elif event == "call":
            if frame.f_code.co_name == "<module>":
                self.importing = frame
                return
            found = _PACKAGE.match(frame.f_globals.get("__name__", ""))
            if found is None or found[0] in EVERYWHERE or frame.f_code.co_filename == "<string>":
                return
            if all(visit.package != found[0] for _, visit in self.open):
                above = self.open[-1][1] if self.open else self.top
                self.open.append((frame, above.enter(found[0])))
        elif event == "return" and self.open and frame is self.open[-1][0]:
            self.open.pop()


def trace() -> list[tuple[int, str]]:
    """Return the visits of one run, in order, each with its depth. Needs a process that has not run a command yet."""
    from preflight.cli import main

    tracer = Tracer()
    os.chdir(ROOT)
    sys.setprofile(tracer)
    try:
        main.run(COMMAND)
    finally:
        sys.setprofile(None)
    return [line for visit in tracer.top.inner for line in visit.walk()]


def page(walk: list[tuple[int, str]]) -> str:
    """Return the page with this walk and the packages that it enters more than once."""
    lines = [f"    {'  ' * depth}{package}\n" for depth, package in walk]
    again = {name: count for name, count in Counter(name for _, name in walk).items() if count > 1}
    counts = ", ".join(f"{name.removeprefix('preflight.')} ({count} visits)" for name, count in again.items()) or "none"
    block = f"\n{''.join(lines)}\n    entered again: {counts}\n\n"
    return _BLOCK.sub(lambda _: block, PAGE.read_text("utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(trace()), "utf-8")

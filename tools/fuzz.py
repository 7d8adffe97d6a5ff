"""Mutates the files of a folder and lints them for some time: `python tools/fuzz.py DIR [seconds] [seed]`.

Prints every file whose reading crashed, left its file or took very long, with the seed that reproduces it, and exits
with 1 if there was one. The files are only read; mutations exist in memory.
"""

from __future__ import annotations

import random
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "rules"), str(ROOT / "checks")]

from preflight.plugins import registry  # noqa: E402
from preflight.sources.base import Source, SourceFile  # noqa: E402
from preflight.sources.discovery.walk import walk  # noqa: E402
from preflight.sources.formats.tree import decode  # noqa: E402

_ODD = (
    *("{{ x }}", "${", "$(", "`", '"', "'", "\\", "\r", "\t", "<<EOF", "[", "}", "{", ":", "- ", "#", "&a", "*a", "é"),
    *("|", "%", "@", "!", "...", "---", "\ufeff", "0x", "9" * 40, "-1", "null", "~", "$((", "))", "]]", ";;", "\\\n"),
)
_SLOW_S = 5.0


class Anything:
    """A tree that holds one file."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file

    def read(self, path: str) -> object:
        """The file, or a note that it does not exist."""
        return self._file if path == self._file.path else decode(path, b"\0")

    def resolve(self, path: str, *, relative_to: str) -> str | None:
        """The path as it is."""
        return None if path.startswith(("/", "..")) else path


def mutated(text: str, chooser: random.Random) -> str:
    """The text with a few pieces cut, doubled, moved or replaced."""
    for _ in range(chooser.randint(1, 8)):
        at = chooser.randint(0, len(text))
        length = int(chooser.expovariate(1 / 40)) + 1
        kind = chooser.randrange(5)
        if kind == 0:
            text = text[:at] + text[at + length :]
        elif kind == 1:
            text = text[:at] + text[at : at + length] * chooser.randint(2, 30) + text[at + length :]
        elif kind == 2:
            text = text[:at] + chooser.choice(_ODD) + text[at:]
        elif kind == 3:
            text = text[at:] + text[:at] if chooser.random() < 0.2 else text[:at]
        else:
            lines = text.split("\n")
            chooser.shuffle(lines) if chooser.random() < 0.1 else lines.insert(
                chooser.randint(0, len(lines)), chooser.choice(lines)
            )
            text = "\n".join(lines)
    return text


def main(arguments: list[str]) -> int:
    """Fuzz until the time is up."""
    root, seconds = Path(arguments[0]), float(arguments[1]) if len(arguments) > 1 else 60.0
    seed = int(arguments[2]) if len(arguments) > 2 else 1
    sources: tuple[Source, ...] = registry.sources()
    files = [path for path in walk(root, ".").files if (root / path).stat().st_size < 100_000]
    began, bad, count = time.monotonic(), 0, 0
    while time.monotonic() - began < seconds and files:
        chooser = random.Random(seed)
        path = chooser.choice(files)
        original = decode(path, (root / path).read_bytes())
        seed += 1
        if not isinstance(original, SourceFile) or not any(source.recognises(original) for source in sources):
            continue
        file = decode(path, mutated(original.text, chooser).replace("\0", "").encode("utf-8", "replace"))
        if not isinstance(file, SourceFile):
            continue
        for source in sources:
            if source.recognises(file) or (source.name == "shell" and chooser.random() < 0.05):
                spent = time.process_time()
                try:
                    reading = source.read(file, Anything(file), role=next(iter(getattr(source, "roles", ())), ""))  # type: ignore[arg-type]
                    last = file.text.count("\n") + 1
                    wrong = [c for c in reading.claims if c.span.path == path and not 1 <= c.span.line <= last]
                    if wrong:
                        raise AssertionError(f"a claim outside its file: {wrong[0]}")
                except Exception:
                    bad += 1
                    print(f"seed {seed - 1}: {source.name} on {path}\n{traceback.format_exc(limit=-5)}", flush=True)
                count += 1
                if time.process_time() - spent > _SLOW_S:
                    bad += 1
                    print(
                        f"seed {seed - 1}: {source.name} on {path} took {time.process_time() - spent:.1f} s", flush=True
                    )
    print(f"{count} readings of mutated files, {bad} wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The seeds of the targets: files of the tests and examples of this repository."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from preflight.plugins import registry
from preflight.sources.base import Source, SourceFile
from preflight.sources.formats.tree import MemoryTree
from tests.fuzz import folder
from tests.rules.case_files import all_cases
from tests.samples import SAMPLES

ROOT = Path(__file__).parents[2]
FIXED = Path(__file__).parent / "seeds"
_EXAMPLES = ROOT / "examples"
_MAX_BYTES = 6000
#: More seeds of a kind only cost time at the start.
_MAX_SEEDS = 60


@functools.cache
def job_folders() -> tuple[dict[str, bytes], ...]:
    """Every case of a rule and every example: the files of one job each."""
    found = [{name: text.encode() for name, text in case.files.items()} for case in all_cases()]
    found += [_files(place) for place in sorted(_EXAMPLES.glob("*/*")) if place.is_dir()]
    return tuple({name: text for name, text in files.items() if len(text) <= _MAX_BYTES} for files in found if files)


def _files(place: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for path in sorted(place.rglob("*")):
        if path.is_file() and not path.is_symlink():
            found[path.relative_to(place).as_posix()] = path.read_bytes()
    return found


def jobs() -> Iterator[bytes]:
    """Folders of jobs as inputs: one case of each rule, and the examples."""
    yield from map(folder.packed, job_folders()[::6])


def source(name: str) -> Source:
    """A built-in source."""
    return next(one for one in registry.sources() if one.name == name)


def recognised_by(name: str) -> Iterator[bytes]:
    """The sample of a source, and the files of all jobs that it recognises."""
    yield SAMPLES[name].text.encode()
    reader, count, seen = source(name), 0, set()
    for files in job_folders():
        tree = MemoryTree(files)
        for path, content in files.items():
            file = tree.read(path)
            if content not in seen and isinstance(file, SourceFile) and reader.recognises(file):
                seen.add(content)
                count += 1
                yield content
                if count >= _MAX_SEEDS:
                    return


def with_suffix(*suffixes: str) -> Iterator[bytes]:
    """The files of all jobs with these suffixes, each once."""
    found = {c: None for files in job_folders() for path, c in files.items() if path.endswith(suffixes)}
    yield from list(found)[:: max(1, len(found) // _MAX_SEEDS)]


def below(*folders: Path, largest: int = _MAX_BYTES) -> Iterator[bytes]:
    """The files below these folders; large ones are truncated."""
    for place in folders:
        for path in sorted(place.rglob("*")):
            if path.is_file():
                yield path.read_bytes()[:largest]

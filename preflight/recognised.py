"""The files of a tree as sources see them: who reads which, which may start a job, and what each says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field

from preflight.asking import asked, asked_ahead
from preflight.job import WHOLE_JOB, Scope
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.progress import Progress, Step, ignore
from preflight.sources.base import Reading, Source, SourceFile, Tree
from preflight.sources.shell_source import startable

_BATCH = lazy_pattern(r"^#(?:SBATCH|PBS|BSUB|COBALT)\s", re.MULTILINE)
#: Unit tests start pieces of jobs of their own; in a folder nobody means them, by name they can still be given.
_TEST_NAME = lazy_pattern(r"(?:^|/)(?:test_[^/]*|[^/]*_test|conftest)\.py$")
_TEST_FOLDER = lazy_pattern(
    r"(?:^|/)(?:tests?|testing|(?:unit|functional|integration|e2e|system)[-_]?tests?|e2e)/", re.I
)
_TEST_WORDS = lazy_pattern(r"^[ \t]*(?:async )?def test_|^(?:import|from) (?:pytest|unittest)\b", re.MULTILINE)


@dataclass(slots=True)
class Recognised:
    """The files of one tree; what each is, and what it says, is found out once however many jobs reach it."""

    tree: Tree
    sources: tuple[Source, ...]
    processes: int = 1
    progress: Progress = ignore
    _kinds: dict[str, Source | None] = field(default_factory=dict)
    _readings: dict[tuple[str, str, str, Scope], Reading] = field(default_factory=dict)

    def candidates(self, paths: Sequence[str], below: str) -> list[str]:
        """Those files of the folder `below` that may start a job: of a kind that is read, no tests, no idle scripts."""
        files = {path: file for path in paths if isinstance(file := self.tree.read(path), SourceFile)}
        kinds = {path: source for path, file in files.items() if (source := self.source_of(file, "")) is not None}
        scripts = startable(files[path] for path, source in kinds.items() if source.name == "shell")
        # Folders of tests hold configuration that is wrong on purpose, and scripts that start pieces of jobs.
        return [
            path
            for path, source in kinds.items()
            if (path in scripts if source.name == "shell" else not _TEST_FOLDER.search(path[len(below) :]))
            and not self.is_unit_test(path)
        ]

    def read_ahead(self, paths: Sequence[str]) -> None:
        """Have several processes make the readings of entries, where that is quicker."""
        if self.processes < 2:
            return
        files = [file for path in paths if isinstance(file := self.tree.read(path), SourceFile)]
        wanted = [(source, file) for file in files if (source := self.source_of(file, "")) is not None]
        brought = asked_ahead(
            wanted, self.tree, self.processes, tell=lambda number: self.progress(Step("files", number, len(wanted)))
        )
        for source, file, reading in brought:
            self._readings.setdefault((source.name, file.path, "", WHOLE_JOB), reading)

    def rank(self, path: str) -> int:
        """Where the kind of a file stands among the sources: entry scripts come first."""
        file = self.tree.read(path)
        source = self.source_of(file, "") if isinstance(file, SourceFile) else None
        return self.sources.index(source) if source is not None else len(self.sources)

    def reading(self, source: Source, file: SourceFile, role: str, scope: Scope) -> Reading:
        """What `source` says about a file of the tree itself."""
        key = (source.name, file.path, role, scope)
        if key not in self._readings:
            self._readings[key] = asked(source, file, self.tree, scope=scope, role=role)
        return self._readings[key]

    def is_batch_script(self, path: str) -> bool:
        """Whether this file has an `#SBATCH` header."""
        file = self.tree.read(path)
        return isinstance(file, SourceFile) and bool(_BATCH.search(file.text[:8192])) and self.rank(path) == 0

    def is_unit_test(self, path: str) -> bool:
        """Whether this is a Python file of tests, by its name and by what it holds."""
        if not _TEST_NAME.search(path):
            return False
        file = self.tree.read(path)
        return isinstance(file, SourceFile) and _TEST_WORDS.search(file.text) is not None

    def source_of(self, file: SourceFile, role: str) -> Source | None:
        """Who reads `file`: whoever recognises it, else whoever reads files of that role."""
        if file.path not in self._kinds:
            self._kinds[file.path] = next((s for s in self.sources if _recognises(s, file)), None)
        by_role = next((s for s in self.sources if role and role in getattr(s, "roles", ())), None)
        return self._kinds[file.path] or by_role


def _recognises(source: Source, file: SourceFile) -> bool:
    try:
        return source.recognises(file)
    except Exception:
        # A reader that cannot even look is not asked; a built-in one is covered by its own tests.
        return False

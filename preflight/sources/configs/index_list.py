"""Reads the index files of PaddlePaddle 0.x: `train.list` and `test.list`, one data file per line.

Source: doc/howto/cluster and the data providers of PaddlePaddle 0.8 to 0.11 (`define_py_data_sources2`).
"""

from __future__ import annotations

import posixpath
from dataclasses import replace

from preflight._util.budget import note_skipped
from preflight._util.spans import MAX_SNIPPET_LENGTH
from preflight.model.job import WHOLE_JOB, Claim, Known, Scope, Span, Strength
from preflight.sources.base import Reading, SourceFile, Tree

#: Longer lists are data; only their beginning is kept.
MAX_FILES = 10_000


class IndexListSource:
    """Reads one index file."""

    name = "index"
    roles = ("index",)

    def recognises(self, file: SourceFile) -> bool:
        """Whether it has the name of an index file and its first lines are paths, one per line and nothing else."""
        if posixpath.basename(file.path) not in ("train.list", "test.list"):
            return False
        head = [line.strip() for line in file.text[:2048].split("\n")[:20] if line.strip()]
        return all(len(line.split()) == 1 for line in head)

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the files it lists; each line's location is in `because`."""
        lines: list[Claim] = []
        for number, raw in enumerate(file.text.split("\n"), start=1):
            name = raw.strip()
            if name and len(lines) >= MAX_FILES:
                note_skipped(f"only the first {MAX_FILES} files of the list were read")
                break
            if name:
                column = raw.index(name[0]) + 1
                span = Span(
                    file.path, number, column, number, column + len(name), raw.rstrip("\r")[:MAX_SNIPPET_LENGTH]
                )
                lines.append(Claim("index_files", Known((name,)), span, name[:120], self.name, scope, Strength.CONFIG))
        names = tuple(str(value[0]) for line in lines for value in line.alternatives if isinstance(value, tuple))
        first = lines[0].span if lines else Span(file.path, 1, 1, 1, 1)
        whole = replace(first, end_line=lines[-1].span.line) if lines else first
        spelling = lines[0].spelling if lines else posixpath.basename(file.path)
        found = Claim("index_files", Known(names), whole, spelling, self.name, scope, Strength.CONFIG)
        return Reading(claims=(replace(found, because=tuple(lines)),))

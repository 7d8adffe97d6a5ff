"""Compose files: services with their environment, their command, and what their containers are given."""

from __future__ import annotations

import posixpath
import re

from preflight.job import WHOLE_JOB, Scope
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Reading, SourceFile, Tree

_NAME = lazy_pattern(r"(?:.*[-_.])?(?:docker-)?compose(?:[-_.].*)?\.ya?ml", re.IGNORECASE)
_SERVICES = lazy_pattern(r"^services:[ \t]*(?:#.*)?\r?$", re.MULTILINE)


class ComposeSource:
    """Reads one Compose file."""

    name = "compose"
    roles = ()

    def recognises(self, file: SourceFile) -> bool:
        """Whether it is called so and has services."""
        return _NAME.fullmatch(posixpath.basename(file.path)) is not None and bool(_SERVICES.search(file.text))

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State what each service is given and runs."""
        from preflight.sources.containers.services import read_services

        return read_services(file, tree)

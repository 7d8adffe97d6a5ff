"""Compose files: services with their environment, their command, and the resources of their containers."""

from __future__ import annotations

import posixpath
import re

from preflight.model.job import WHOLE_JOB, Scope
from preflight.sources.base import Reading, SourceFile, Tree

_NAME = re.compile(r"(?:.*[-_.])?(?:docker-)?compose(?:[-_.].*)?\.ya?ml", re.IGNORECASE)
_SERVICES = re.compile(r"^services:[ \t]*(?:#.*)?\r?$", re.MULTILINE)


class ComposeSource:
    """Reads one Compose file."""

    name = "compose"
    roles = ()

    def recognises(self, file: SourceFile) -> bool:
        """Whether it has the name of a Compose file, and services."""
        return _NAME.fullmatch(posixpath.basename(file.path)) is not None and bool(_SERVICES.search(file.text))

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the resources and the command of each service."""
        from preflight.sources.containers.services import read_services

        return read_services(file, tree)

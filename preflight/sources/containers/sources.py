"""The sources of Compose files and Dockerfiles; what reads them is imported with the first file."""

from __future__ import annotations

import posixpath
import re

from preflight.model.job import WHOLE_JOB, Scope
from preflight.sources.base import Reading, SourceFile, Tree

_COMPOSE_NAME = re.compile(r"(?:.*[-_.])?(?:docker-)?compose(?:[-_.].*)?\.ya?ml", re.IGNORECASE)
_SERVICES = re.compile(r"^services:[ \t]*(?:#.*)?\r?$", re.MULTILINE)


class ComposeSource:
    """Reads one Compose file."""

    name = "compose"
    roles = ()

    def recognises(self, file: SourceFile) -> bool:
        """Whether it has the name of a Compose file, and services."""
        return _COMPOSE_NAME.fullmatch(posixpath.basename(file.path)) is not None and bool(_SERVICES.search(file.text))

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the resources and the command of each service."""
        from preflight.sources.containers.services import read_services

        return read_services(file, tree)


_DOCKERFILE_NAME = re.compile(
    r"(?:.*\.)?(?:dockerfile|containerfile)|(?:dockerfile|containerfile)(?:[._-].*)?", re.IGNORECASE
)
_FROM = re.compile(r"^[ \t]*FROM[ \t]+\S", re.IGNORECASE | re.MULTILINE)


def is_container_file(path: str) -> bool:
    """Whether a file has the name of a Dockerfile or Containerfile."""
    return _DOCKERFILE_NAME.fullmatch(posixpath.basename(path)) is not None


class DockerfileSource:
    """Reads one Dockerfile."""

    name = "dockerfile"
    roles = ()

    def recognises(self, file: SourceFile) -> bool:
        """Whether its name is that of a Dockerfile, and it begins a stage."""
        return is_container_file(file.path) and _FROM.search(file.text) is not None

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the variables of the last stage, and the launch that the image runs."""
        from preflight.sources.containers.services import read_image

        return read_image(file, tree, scope)

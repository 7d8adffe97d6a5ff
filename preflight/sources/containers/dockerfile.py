"""Dockerfiles: what their last stage puts into the environment, and what the image runs."""

from __future__ import annotations

import posixpath
import re

from preflight.job import WHOLE_JOB, Scope
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Reading, SourceFile, Tree

_NAME = lazy_pattern(r"(?:.*\.)?(?:dockerfile|containerfile)|(?:dockerfile|containerfile)(?:[._-].*)?", re.IGNORECASE)
_FROM = lazy_pattern(r"^[ \t]*FROM[ \t]+\S", re.IGNORECASE | re.MULTILINE)


class DockerfileSource:
    """Reads one Dockerfile."""

    name = "dockerfile"
    roles = ()

    def recognises(self, file: SourceFile) -> bool:
        """Whether it is called so and begins a stage."""
        name = posixpath.basename(file.path)
        return _NAME.fullmatch(name) is not None and _FROM.search(file.text) is not None

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the variables of the last stage, and the launch that the image runs."""
        from preflight.sources.containers.image import read_image

        return read_image(file, tree, scope)

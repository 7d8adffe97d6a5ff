"""Parses a configuration file as a tree, in the syntax that its name suggests."""

from __future__ import annotations

from preflight.sources.base import SourceFile
from preflight.sources.formats.assignments import SUFFIXES
from preflight.sources.formats.structured import Document


def document_of(file: SourceFile) -> Document:
    """The tree of a configuration file, in the syntax of its suffix; YAML if the suffix is not known."""
    if file.path.lower().endswith((".json", ".jsonc", ".hjson")):
        from preflight.sources.formats import lenient_json

        return lenient_json.parse(file.text)
    if file.path.lower().endswith(".toml"):
        from preflight.sources.formats import lenient_toml

        return lenient_toml.parse(file.text)
    if file.path.lower().endswith(SUFFIXES):
        from preflight.sources.formats import assignments

        return assignments.parse(file.text)
    from preflight.sources.formats import lenient_yaml

    return lenient_yaml.parse(file.text)

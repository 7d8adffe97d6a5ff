"""Reads the packages a job installs: pip's requirement files, conda environments, and `pyproject.toml`."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from preflight._util.spans import MAX_SNIPPET_LENGTH
from preflight.model.job import WHOLE_JOB, Claim, Known, Reference, Scope, Span, Strength
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.configs.packages import Package, claims, conda_package_of, cuda_of, package_of
from preflight.sources.formats.comments import suppressions

_PIP = re.compile(r"(?:.*[-_.])?(?:requirements?|constraints?)(?:[-_.].*)?\.(?:txt|in)", re.IGNORECASE)
_CONDA = re.compile(r"(?:.*[-_.])?(?:environment|env|conda)(?:[-_.].*)?\.ya?ml", re.IGNORECASE)
_CONDA_KEYS = re.compile(r"^dependencies:[ \t]*(?:#.*)?$", re.MULTILINE)
_INCLUDED = re.compile(r"(?:-r|--requirement|-c|--constraint)(?:[ \t]*=[ \t]*|[ \t]*)(\S{1,300})")
#: An option that takes the address of wheels for one release of CUDA; pip accepts a long option in short.
_INDEX = re.compile(r"(?:-[if]|--(?:index|extra-index|find-l)[a-z-]{0,10})(?:[ \t]*=[ \t]*|[ \t]+)\S*\bcu\d{2,3}\b.*")
_ENTRY = re.compile(r"-[ \t]+(?P<quote>[\"']?)(?P<said>[^\"'\n]{1,300})(?P=quote)[ \t]*(?:#.*)?")
_QUOTED = re.compile(r"\"([^\"\n]{1,300})\"|'([^'\n]{1,300})'")
_POETRY = re.compile(
    r"(?P<name>[\w.-]{1,80})[ \t]*=[ \t]*(?:\{[^}\n]*\bversion[ \t]*=[ \t]*)?[\"'](?P<version>[^\"'\n]{0,80})[\"'].*"
)
_HEAD = 8192


class RequirementsSource:
    """Reads one file that lists packages."""

    name = "requirements"
    roles = ("requirements",)

    def recognises(self, file: SourceFile) -> bool:
        """Whether it has the name of such a file; YAML must also have conda's keys."""
        name = posixpath.basename(file.path)
        if name == "pyproject.toml" or _PIP.fullmatch(name):
            return True
        in_folder = name.endswith(".txt") and posixpath.basename(posixpath.dirname(file.path)) == "requirements"
        return in_folder or (bool(_CONDA.fullmatch(name)) and bool(_CONDA_KEYS.search(file.text[:_HEAD])))

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the frameworks it lists, and the files it includes. Lines of unknown form are skipped."""
        stated: list[Claim] = []
        references: list[Reference] = []
        for span, text, package in _entries(file):
            if package is not None:
                stated.extend(claims(package, span, text, "requirements", scope=scope))
            elif included := _INCLUDED.fullmatch(text):
                target = tree.resolve(included[1], relative_to=file.path)
                if target is not None:
                    references.append(Reference(target, "requirements", span, scope))
            elif _INDEX.fullmatch(text):
                stated.append(
                    Claim(
                        "wheel_cuda",
                        Known(cuda_of(text)),
                        span,
                        text,
                        "requirements",
                        scope=scope,
                        strength=Strength.CONFIG,
                    )
                )
        return Reading(claims=tuple(stated), references=tuple(references), suppressions=suppressions(file))


def _entries(file: SourceFile) -> Iterator[tuple[Span, str, Package | None]]:
    name = posixpath.basename(file.path)
    if name == "pyproject.toml":
        return _pyproject(file)
    return _conda(file) if name.endswith((".yml", ".yaml")) else _pip(file)


def _lines(file: SourceFile) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(file.text.split("\n"), start=1):
        yield number, line.rstrip("\r")


def _span(file: SourceFile, number: int, line: str, text: str) -> Span:
    column = line.find(text) + 1
    return Span(file.path, number, column, number, column + len(text), line[:MAX_SNIPPET_LENGTH])


def _pip(file: SourceFile) -> Iterator[tuple[Span, str, Package | None]]:
    for number, line in _lines(file):
        text = re.split(r"(?:^|[ \t])#", line, maxsplit=1)[0].strip().removesuffix("\\").strip()
        # A marker may exclude it on this machine; such a line is not certain.
        if not text or ";" in text or len(text) > MAX_SNIPPET_LENGTH:
            continue
        yield _span(file, number, line, text), text, None if text.startswith("-") else package_of(text)


def _conda(file: SourceFile) -> Iterator[tuple[Span, str, Package | None]]:
    inside, pip_indent = False, -1
    for number, line in _lines(file):
        text = line.strip()
        if not text or text.startswith("#") or len(text) > MAX_SNIPPET_LENGTH:
            continue
        indent = len(line) - len(line.lstrip())
        if indent == 0 and not text.startswith("-"):
            inside = text.startswith("dependencies:")
            continue
        if pip_indent >= 0 and indent <= pip_indent:
            pip_indent = -1
        if re.fullmatch(r"-[ \t]+pip:[ \t]*", text):
            pip_indent = indent
        elif inside and (entry := _ENTRY.fullmatch(text)):
            claims = entry["said"].strip()
            yield (
                _span(file, number, line, claims),
                claims,
                (package_of if pip_indent >= 0 else conda_package_of)(claims),
            )


def _pyproject(file: SourceFile) -> Iterator[tuple[Span, str, Package | None]]:
    section, listing = "", False
    for number, line in _lines(file):
        text = line.strip()
        if len(text) > MAX_SNIPPET_LENGTH:
            continue
        if text.startswith("[") and not listing:
            section = text.strip("[] \t")
        elif section == "tool.poetry.dependencies" and (entry := _POETRY.fullmatch(text)):
            version = re.sub(r"^[\^](\d)", r">=\1", entry["version"])
            version = f"=={version}" if version[:1].isdecimal() else version
            yield _span(file, number, line, text), text, package_of(entry["name"] + version.replace("*", ""))
        elif section == "project":
            if re.match(r"dependencies[ \t]*=", text):
                listing = True
            if listing:
                for quoted in _QUOTED.finditer(text):
                    claims = quoted[1] or quoted[2]
                    if ";" not in claims:
                        yield _span(file, number, line, claims), claims, package_of(claims)
                listing = not re.search(r"\][ \t]*(?:#.*)?$", text)

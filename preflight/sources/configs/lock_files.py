"""Reads lock files, which pin every package: uv.lock, poetry.lock, pixi.lock, Pipfile.lock, and pixi.toml.

Sources: uv 0.9 and Poetry 2.2 (`[[package]]` with name and version), pixi 0.55 (lock file version 6: `packages` with
one address per package), pipenv 2025 (`default` with `version`). A package that a lock file lists in several versions,
for several platforms, has no single version here.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from preflight.model.job import WHOLE_JOB, Claim, Scope, Span
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.configs.packages import Package, claims, package_of
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims

#: The role in which other files refer to such a file.
ROLE = "lock"
#: The lock of each tool that runs programs in its own environment.
LOCKS = {"uv": "uv.lock", "poetry": "poetry.lock", "pixi": "pixi.lock", "pipenv": "Pipfile.lock"}
_NAMES = frozenset((*LOCKS.values(), "pixi.toml"))
_TRACKED = re.compile(
    r"^name[ \t]*=[ \t]*\"(?P<name>[\w.-]{1,80})\"[ \t]*\r?\nversion[ \t]*=[ \t]*\"(?P<version>[^\"\n]{1,80})\"",
    re.MULTILINE,
)
_CONDA = re.compile(
    r"^-[ \t]+conda:[ \t]*\S*/(?P<name>[\w.-]{1,80}?)-(?P<version>\d[\w.]*)-[\w.]+\.(?:conda|tar\.bz2)", re.M
)
_PYPI = re.compile(
    r"^-[ \t]+pypi:[^\n]*\n(?:[ \t]+(?!name:)[^\n]*\n){0,4}[ \t]+name:[ \t]*(?P<name>[\w.-]{1,80})[ \t]*\r?\n"
    r"[ \t]+version:[ \t]*(?P<version>[\w.+!]{1,80})",
    re.MULTILINE,
)


class LockFileSource:
    """Reads one lock file."""

    name = "lock"
    roles = (ROLE,)

    def recognises(self, file: SourceFile) -> bool:
        """Whether it has the name of a lock file; such names have no other use."""
        return posixpath.basename(file.path) in _NAMES

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the frameworks it pins."""
        found: dict[str, list[tuple[Package, Span, str]]] = {}
        for package, span, spelling in _entries(file):
            found.setdefault(package.name, []).append((package, span, spelling))
        stated: list[Claim] = []
        for entries in found.values():
            if len({package for package, _, _ in entries}) == 1:
                package, span, spelling = entries[0]
                stated.extend(claims(package, span, spelling, self.name, scope=scope))
        return Reading(tuple(stated))


def _entries(file: SourceFile) -> Iterator[tuple[Package, Span, str]]:
    name = posixpath.basename(file.path)
    if name in ("Pipfile.lock", "pixi.toml"):
        yield from _members(file)
        return
    node_claims = NodeClaims(file, "lock")
    for pattern in (_CONDA, _PYPI) if name == "pixi.lock" else (_TRACKED,):
        for match in pattern.finditer(file.text):
            package = package_of(f"{match['name']}=={match['version']}")
            if package is not None:
                yield package, node_claims.places.span(*match.span("version")), f"{match['name']} {match['version']}"


def _members(file: SourceFile) -> Iterator[tuple[Package, Span, str]]:
    from preflight.sources.formats import lenient_json, lenient_toml

    is_json = file.path.endswith(".lock")
    root = (lenient_json if is_json else lenient_toml).parse(file.text).root
    node_claims = NodeClaims(file, "lock")
    sections = ("default",) if is_json else ("dependencies", "pypi-dependencies")
    for section in sections:
        node = root.at(section) if root is not None and root.kind is Kind.OBJECT else None
        for member in node.in_force if node is not None and node.kind is Kind.OBJECT else ():
            package = package_of(member.key + _version(member.node))
            if package is not None:
                yield package, node_claims.span(_place(member)), node_claims.spelling(member)


def _version(node: Node) -> str:
    """`==2.4.0`, `>=2.1,<3`, `2.4.*` as pip writes it; empty if any version is allowed."""
    text = node.text("version") if node.kind is Kind.OBJECT else str(node.value or "")
    if re.fullmatch(r"\d[\w.]*(?:\.\*)?", text):
        return f"=={text}"
    return text if re.fullmatch(r"(?:[=<>!~]{1,3}[\w.*+]+,?){1,6}", text.replace(" ", "")) else ""


def _place(member: Member) -> Node:
    return member.node.at("version") or member.node

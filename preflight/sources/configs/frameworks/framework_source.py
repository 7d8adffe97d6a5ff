"""Reads the configuration files of frameworks by their tables, and finds the framework of a file or a program."""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from preflight._util import toml
from preflight.model.job import WHOLE_JOB, Claim, Relation, Scope
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.configs.frameworks.dependent_values import ALSO, NORMAL
from preflight.sources.configs.frameworks.table import READERS, Framework, Key
from preflight.sources.configs.setting_claims import state_settings
from preflight.sources.formats.comments import suppressions
from preflight.sources.formats.open import document_of
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims

_COUNTS = frozenset(
    (
        *("nodes", "processes_per_node", "world_size", "data_parallel_size", "tensor_parallel_size", "shard_degree"),
        *("pipeline_parallel_size", "replicate_degree", "hosts", "gpus_per_node", "train_batch_size"),
    )
)
#: Levels of configurations that build on each other.
_MAX_BASES = 12


@functools.lru_cache(maxsize=256)
def _root_of(file: SourceFile) -> Node | None:
    """The root of a base. Hundreds of configurations in one repository share the same few bases."""
    return document_of(file).root


class FrameworkSource:
    """Reads the configuration files of one framework."""

    def __init__(self, framework: Framework) -> None:
        self.framework = framework
        self.name = framework.name
        self.roles: tuple[str, ...] = ()
        #: A file without a count of ranks is one of many experiments: it is a job only where a launch names it.
        self.starts_jobs = any(key.quantity in _COUNTS for key in framework.keys)

    def recognises(self, file: SourceFile) -> bool:
        """Whether the beginning of the file has the framework's own keys."""
        if not file.path.lower().endswith(self.framework.suffixes):
            return False
        head = file.text[: self.framework.head]
        if any(pattern.search(head) is not None for pattern in self.framework.others):
            return False
        return all(pattern.search(head) is not None for pattern in self.framework.signs)

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the quantities of the table's keys, in `scope`."""
        document = document_of(file)
        node_claims = NodeClaims(file, self.name, scope)
        notes = tuple(node_claims.notes(document))
        claims = list(self._claims(node_claims, document.root))
        stated = {claim.quantity for claim in claims}
        for found, root in self._bases(file, document.root, tree):
            more = self._claims(NodeClaims(found, self.name, scope), root)
            claims.extend(claim for claim in more if claim.quantity not in stated)
            stated.update(claim.quantity for claim in claims)
        return Reading(tuple(claims), notes=notes, suppressions=suppressions(file))

    def _bases(self, file: SourceFile, root: Node | None, tree: Tree) -> Iterator[tuple[SourceFile, Node | None]]:
        """The files that this one builds on, with their roots, highest precedence first; of several names the last one
        wins.
        """
        waiting = [(file, root)]
        seen = {file.path}
        while waiting and len(seen) <= _MAX_BASES:
            above, node = waiting.pop(0)
            named = node.at(self.framework.base) if self.framework.base and node is not None else None
            items = () if named is None else tuple(reversed(named.items)) or (named,)
            for item in items:
                target = tree.resolve(item.text(), relative_to=above.path) if item.text() else None
                path = posixpath.normpath(target) if target is not None else ""
                found = tree.read(path) if path and path not in seen else None
                if isinstance(found, SourceFile):
                    seen.add(path)
                    waiting.append((found, _root_of(found)))
                    yield waiting[-1]

    def _claims(self, node_claims: NodeClaims, root: Node | None) -> list[Claim]:
        if root is not None and root.kind is Kind.OBJECT:
            root = self.framework.normal(root) if self.framework.normal is not None else root
            for key, member in keys_in_force(self.framework, root):
                node_claims.add_member(key.quantity, member, key.read, relation=key.relation)
            if self.framework.settings:
                state_settings(node_claims, root, self.framework.name)
            if self.framework.also is not None:
                self.framework.also(node_claims, root)
        return node_claims.claims


def keys_in_force(framework: Framework, root: Node) -> Iterator[tuple[Key, Member]]:
    """The keys that the file has; for each quantity only the first."""
    stated: set[str] = set()
    for key in framework.keys:
        member = root.member(*key.path.split("."))
        if member is None or key.quantity in stated or (member.node.kind is Kind.SCALAR and member.node.value is None):
            continue
        if key.beside and root.member(*key.beside.split(".")) is None:
            continue
        stated.add(key.quantity)
        yield key, member


def _key(path: str, row: Any) -> Key:
    """A key from its row: a quantity, a quantity and a reader, or a table of both and more."""
    if isinstance(row, dict):
        relation = Relation(row.get("relation", Relation.SETS))
        return Key(path, row["quantity"], READERS[row.get("read", "count")], relation, row.get("beside", ""))
    quantity, reader = (row, "count") if isinstance(row, str) else row
    return Key(path, quantity, READERS[reader])


def _framework(row: dict[str, Any]) -> Framework:
    given = dict(row)
    for name in ("signs", "others"):
        given[name] = tuple(re.compile(text, re.MULTILINE) for text in row.get(name, ()))
    for name in ("suffixes", "programs", "imports", "registries", "extended_by"):
        given[name] = tuple(row.get(name, ()))
    given["keys"] = tuple(_key(path, item) for path, item in row["keys"].items())
    return Framework(**given, normal=NORMAL.get(row["name"]), also=ALSO.get(row["name"]))


#: By name, in the order in which they are tried.
FRAMEWORKS = {
    row["name"]: _framework(row) for row in toml.load(Path(__file__).with_name("frameworks.toml"))["framework"]
}
#: Those that have files of their own.
SOURCES = tuple(FrameworkSource(framework) for framework in FRAMEWORKS.values() if framework.suffixes)

#: Frameworks whose configurations are written in Python, the one with the most specific keys first.
PYTHON_FRAMEWORKS = tuple(FRAMEWORKS[name] for name in ("torchtitan", "megatron-bridge", "nemo"))


def source_of(file: SourceFile) -> FrameworkSource | None:
    """The source of a framework's configuration; None for any other file."""
    return next((source for source in SOURCES if source.recognises(file)), None)


def framework_of(program: str) -> Framework | None:
    """The framework whose own program this is (`torchtitan.train`, `torchtitan/train.py`)."""
    dotted = program.removesuffix(".py").replace("/", ".")
    for source in SOURCES:
        if any(dotted == name or dotted.endswith("." + name) for name in source.framework.programs):
            return source.framework
    return None

"""Reads the configuration files of training frameworks by their tables: how a file is recognised, and which key states
which quantity.

`frameworks.toml` describes each. A framework needs no code unless values depend on each other; that code is `also`.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from preflight._util import toml
from preflight._util.secret_names import is_secret
from preflight.model.job import WHOLE_JOB, Claim, Known, Relation, Scope, Span, as_int, lift
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.configs import deepspeed
from preflight.sources.configs.setting_claims import state_settings
from preflight.sources.formats.comments import suppressions
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims, document_of, value_of
from preflight.sources.value_readers import GATED, READERS, Reader, as_count

Also = Callable[[NodeClaims, Node], None]


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a configuration, dotted from the top: `parallelism.tensor_parallel_degree`.

    If several keys state one quantity, the first that the file has counts. A key with `beside` counts only in a file
    that also has the `beside` key.
    """

    path: str
    quantity: str
    read: Reader = as_int
    relation: Relation = Relation.SETS
    beside: str = ""


@dataclass(frozen=True, slots=True)
class Framework:
    """The configuration of one framework, as `frameworks.toml` describes it.

    Args:
        name: the source of its claims.
        normal: converts a key to the spelling that is looked up, if the framework accepts several.
        also: states quantities that depend on several keys.
        min_keys: the number of keys that identifies a Python object as a configuration of this framework.
        settings: whether every key is stated as a setting, too.
    """

    name: str
    suffixes: tuple[str, ...]
    signs: tuple[re.Pattern[str], ...]
    keys: tuple[Key, ...]
    programs: tuple[str, ...] = ()
    normal: Callable[[Node], Node] | None = None
    also: Also | None = None
    others: tuple[re.Pattern[str], ...] = ()
    base: str = ""
    imports: tuple[str, ...] = ()
    registries: tuple[str, ...] = ()
    min_keys: int = 2
    head: int = 40_000
    extended_by: tuple[str, ...] = ()
    settings: bool = False


#: What only LightningCLI's files have: jsonargparse's objects, and the seed that it sets.
_OF_LIGHTNING_CLI = re.compile(r"^seed_everything:|^[ \t]+(?:-[ \t]+)?class_path:", re.MULTILINE)
#: What only files of Hydra have, which build the trainer by themselves.
_OF_HYDRA = re.compile(r"^defaults:|^[ \t]*_target_:|\$\{", re.MULTILINE)


def with_underscores(root: Node) -> Node:
    """The same mapping with `_` for `-` in its keys."""
    return replace(root, members=tuple(replace(item, key=item.key.replace("-", "_")) for item in root.members))


def of_torchtitan(node_claims: NodeClaims, root: Node) -> None:
    """State every key of a TOML file, and the checkpoint folder, which is below the dump folder, if checkpoints are
    enabled.
    """
    if node_claims.file.path.lower().endswith(".toml"):
        state_settings(node_claims, root, "torchtitan")
    section = root.at("checkpoint")
    switch = root.member("checkpoint", "enable") or root.member("checkpoint", "enable_checkpoint")
    if section is None or switch is None or value_of(switch.node) != Known(True):
        return
    node_claims.add_member("save_interval", section.member("interval"), as_count)
    node_claims.add_member("checkpoints_kept", section.member("keep_latest_k"), as_count)
    folder = section.member("folder")
    if folder is not None:
        above = root.text("job", "dump_folder") or "./outputs"
        node_claims.add_member(
            "checkpoint_path", folder, lambda value: lift(lambda item: _join_path(above, str(item)), value)
        )


def _join_path(above: str, folder: str) -> str:
    return posixpath.normpath(posixpath.join(above, folder))


def of_nanotron(node_claims: NodeClaims, root: Node) -> None:
    """State that the feed-forward part has a gate."""
    activation = root.member("model", "model_config", "hidden_act")
    if activation is not None and root.text("model", "model_config", "hidden_act") in ("silu", "swiglu"):
        node_claims.add("gated_feed_forward", Known(True), activation)


def of_gpt_neox(node_claims: NodeClaims, root: Node) -> None:
    """State the tokenizer's files, the format of gradients in transit, and DeepSpeed's keys."""
    for key in ("vocab_file", "merge_file"):
        node_claims.add_member("input_file", root.member(key), lambda value: lift(str, value))
    allreduce = root.member("fp32_allreduce")
    if allreduce is not None and value_of(allreduce.node) == Known(True):
        node_claims.add("communication_data_type", Known("fp32"), allreduce)
    own = NodeClaims(node_claims.file, "deepspeed", node_claims.scope)
    deepspeed.state(own, root, of_others=True)
    node_claims.claims[:0] = own.claims


def of_megatron_test(node_claims: NodeClaims, root: Node) -> None:
    """State the environment variables (`ENV_VARS`) of a Megatron-LM test."""
    section = root.at("ENV_VARS")
    for member in section.in_force if section is not None else ():
        if member.node.kind is Kind.SCALAR and member.key.isidentifier() and not is_secret(member.key):
            node_claims.add(f"env.{member.key}", lift(str, value_of(member.node)), member)


def of_lightning(node_claims: NodeClaims, root: Node) -> None:
    """State the trainer's settings in a file that LightningCLI parses, as those of `lightning_cli`; and that the
    feed-forward part of NeMo's model has a gate.
    """
    trainer, text = root.at("trainer"), node_claims.file.text
    by_cli = _OF_LIGHTNING_CLI.search(text) is not None and _OF_HYDRA.search(text) is None
    if trainer is not None and trainer.kind is Kind.OBJECT and by_cli:
        state_settings(node_claims, trainer, "lightning_cli")
    model = root.at("model")
    if model is None or model.kind is not Kind.OBJECT or root.member("trainer", "devices") is None:
        return
    activation = model.member("activation")
    if activation is not None and model.text("activation") in GATED:
        node_claims.add("gated_feed_forward", Known(True), activation)


#: By framework: the function that states what depends on several keys.
ALSO = {
    "torchtitan": of_torchtitan,
    "nanotron": of_nanotron,
    "gpt-neox": of_gpt_neox,
    "megatron": of_megatron_test,
    "lightning": of_lightning,
}
#: By framework: the function that converts keys to the spelling that is looked up, if it accepts several.
NORMAL = {"gpt-neox": with_underscores}


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
        claims.extend(self._bundled(node_claims, tree))
        stated = {claim.quantity for claim in claims}
        for found, root in self._bases(file, document.root, tree):
            more = self._claims(NodeClaims(found, self.name, scope), root)
            claims.extend(claim for claim in more if claim.quantity not in stated)
            stated.update(claim.quantity for claim in claims)
        return Reading(tuple(claims), notes=notes, suppressions=suppressions(file))

    def _bundled(self, node_claims: NodeClaims, tree: Tree) -> Iterator[Claim]:
        """The framework, if a folder above the file has its package: a fork has settings of its own."""
        package = self.framework.programs[0].partition(".")[0] if self.framework.programs else ""
        folder = posixpath.dirname(node_claims.file.path)
        while package:
            if any(name.endswith(".py") for name in tree.names(posixpath.join(folder, package))):
                span = Span(node_claims.file.path, 1, 1, 1, 2)
                yield Claim("bundled_framework", Known(self.name), span, package, self.name, scope=node_claims.scope)
                return
            if not folder:
                return
            folder = posixpath.dirname(folder)

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

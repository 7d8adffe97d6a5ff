"""Reads the configuration files of training frameworks by their tables (how a file is recognised, and which key states
which quantity), DeepSpeed's and Paddle's among them.

`frameworks.toml` describes each. A framework needs no code unless values depend on each other; that code is `also`.

A claim's location is the *value* (`64`), its spelling the whole pair (`"train_batch_size": 64`). A value of the wrong
type (`"64"`, 1.5, 0) is claimed as written, so that a rule can judge it; only values that DeepSpeed or a trainer fills
in later (`"auto"`, a placeholder) are unresolved.

The tables of what a framework rejects (`data/settings/` of the rules) use these names of keys. The value of a section
is `SECTION`, because claims have plain values.
"""

from __future__ import annotations

import functools
import itertools
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from preflight._util import toml
from preflight._util.budget import note_skipped, spend, truncate
from preflight._util.secret_names import is_secret
from preflight._util.spans import MAX_SNIPPET_LENGTH
from preflight.model.job import (
    AUTO,
    WHOLE_JOB,
    Claim,
    Known,
    Note,
    NoteDetail,
    NoteKind,
    Plain,
    Relation,
    Scope,
    Span,
    Strength,
    Unresolved,
    Value,
    as_int,
    lift,
    span_of,
)
from preflight.model.job.value import LISTED_SECTION, SECTION, SETTING_PREFIX
from preflight.sources.base import Reading, SourceFile, Tree, suppressions
from preflight.sources.formats.lenient_json import parse
from preflight.sources.formats.structured import Fault, Kind, Member, Node, NodeClaims, document_of, value_of
from preflight.sources.value_readers import GATED, READERS, Reader, as_count, of_each

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
    """Return a copy of the mapping with `_` for `-` in its keys."""
    return replace(root, members=tuple(replace(item, key=item.key.replace("-", "_")) for item in root.members))


def of_torchtitan(node_claims: NodeClaims, root: Node) -> None:
    """Add claims for every key of a TOML file, and the checkpoint folder, which is below the dump folder, if
    checkpoints are enabled.
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
        below = of_each(lambda item: posixpath.normpath(posixpath.join(above, str(item))))
        node_claims.add_member("checkpoint_path", folder, below)


def of_nanotron(node_claims: NodeClaims, root: Node) -> None:
    """Add a claim that the feed-forward part has a gate."""
    activation = root.member("model", "model_config", "hidden_act")
    if activation is not None and root.text("model", "model_config", "hidden_act") in ("silu", "swiglu"):
        node_claims.add("gated_feed_forward", Known(True), activation)


def of_gpt_neox(node_claims: NodeClaims, root: Node) -> None:
    """Add claims for the tokenizer's files, the format of gradients in transit, and DeepSpeed's keys."""
    for key in ("vocab_file", "merge_file"):
        node_claims.add_member("input_file", root.member(key), lambda value: lift(str, value))
    allreduce = root.member("fp32_allreduce")
    if allreduce is not None and value_of(allreduce.node) == Known(True):
        node_claims.add("communication_data_type", Known("fp32"), allreduce)
    own = NodeClaims(node_claims.file, "deepspeed", node_claims.scope)
    state(own, root, of_others=True)
    node_claims.claims[:0] = own.claims


def of_megatron_test(node_claims: NodeClaims, root: Node) -> None:
    """Add claims for the environment variables (`ENV_VARS`) of a Megatron-LM test."""
    for member in root.members_at("ENV_VARS"):
        if member.node.kind is Kind.SCALAR and member.key.isidentifier() and not is_secret(member.key):
            node_claims.add(f"env.{member.key}", lift(str, value_of(member.node)), member)


def of_lightning(node_claims: NodeClaims, root: Node) -> None:
    """Add claims for the trainer's settings in a file that LightningCLI parses, as those of `lightning_cli`; and that
    the feed-forward part of NeMo's model has a gate.
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


_COUNTS = (
    *("nodes", "processes_per_node", "world_size", "data_parallel_size", "tensor_parallel_size", "shard_degree"),
    *("pipeline_parallel_size", "replicate_degree", "hosts", "gpus_per_node", "train_batch_size"),
)
#: Levels of configurations that build on each other.
_MAX_BASES = 12


@functools.lru_cache(maxsize=256)
def _root_of(file: SourceFile) -> Node | None:
    """Return the root of a base. Hundreds of configurations in one repository share the same few bases."""
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
        """Return whether the beginning of the file has the framework's own keys."""
        if not file.path.lower().endswith(self.framework.suffixes):
            return False
        head = file.text[: self.framework.head]
        if any(pattern.search(head) is not None for pattern in self.framework.others):
            return False
        return all(pattern.search(head) is not None for pattern in self.framework.signs)

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Read the quantities of the table's keys, in `scope`."""
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
        """Yield the framework if a folder above the file contains its package: a fork has its own settings."""
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
        """Yield the files that this one builds on, with their roots, highest precedence first; of several names the
        last one wins.
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
    """Yield the keys that the file has; for each quantity only the first."""
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
    """Return a key from its row: a quantity, a quantity and a reader, or a table of both and more."""
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
FRAMEWORKS = {row["name"]: _framework(row) for row in toml.beside(__file__, "frameworks.toml")["framework"]}
#: Those that have files of their own.
SOURCES = tuple(FrameworkSource(framework) for framework in FRAMEWORKS.values() if framework.suffixes)

#: Frameworks whose configurations are written in Python, the one with the most specific keys first.
PYTHON_FRAMEWORKS = tuple(FRAMEWORKS[name] for name in ("torchtitan", "megatron-bridge", "nemo"))


def source_of(file: SourceFile) -> FrameworkSource | None:
    """Return the source of a framework's configuration; None for any other file."""
    return next((source for source in SOURCES if source.recognises(file)), None)


def framework_of(program: str) -> Framework | None:
    """Return the framework whose own program this is (`torchtitan.train`, `torchtitan/train.py`)."""
    dotted = program.removesuffix(".py").replace("/", ".")
    for source in SOURCES:
        if any(dotted == name or dotted.endswith("." + name) for name in source.framework.programs):
            return source.framework
    return None


#: More faults from one file add no information.
MAX_NOTES = 20

_OWN_KEYS = ("train_micro_batch_size_per_gpu", "zero_optimization", "zero_allow_untested_optimizer")
_SHARED_KEYS = (
    *("train_batch_size", "gradient_accumulation_steps", "gradient_clipping", "steps_per_print"),
    *("wall_clock_breakdown", "optimizer", "fp16", "bf16"),
)
#: Keys beside which these are the saved arguments of a program.
_OF_ARGUMENTS = re.compile(
    r'"(?:output_dir|learning_rate|model_name_or_path|per_device_train_batch_size|num_train_epochs|max_steps)"\s*:'
)
_FILE_NAME = re.compile(r"(?:.*[._-])?(?:ds|deepspeed|zero\d?)(?:[._-].*)?|.*deepspeed.*", re.IGNORECASE)


class DeepSpeedSource:
    """Reads one DeepSpeed configuration file."""

    name = "deepspeed"
    roles = ("config",)

    def recognises(self, file: SourceFile) -> bool:
        """Return whether the file is JSON with keys that only DeepSpeed has, or with shared ones and
        DeepSpeed's name.
        """
        name = posixpath.basename(file.path)
        if not name.lower().endswith((".json", ".hjson", ".jsonc")):
            return False
        if _OF_ARGUMENTS.search(file.text):
            return False
        if any(f'"{key}"' in file.text for key in _OWN_KEYS):
            return True
        shared = sum(1 for key in _SHARED_KEYS if f'"{key}"' in file.text)
        return shared >= 3 or (shared >= 1 and _FILE_NAME.fullmatch(name) is not None)

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Return the configuration's claims; a malformed value becomes a located note and does not affect the rest."""
        document = parse(file.text)
        notes = [_note(file, fault) for fault in document.faults[:MAX_NOTES]]
        claims: list[Claim] = []
        if document.root is not None and document.root.kind is Kind.OBJECT:
            notes += itertools.islice(_duplicates(file, document.root), MAX_NOTES)
            node_claims = NodeClaims(file, "deepspeed", scope)
            state(node_claims, document.root)
            state_settings(node_claims, document.root, "deepspeed")
            claims = node_claims.claims
        elif document.root is not None:
            span = span_of(file.path, file.text, document.root.start, document.root.end)
            message = f"{file.path} is not a JSON object: it must start with `{{`; DeepSpeed cannot use it"
            notes.append(Note(NoteKind.MALFORMED, message, span))
        notes.sort(key=lambda note: (note.span.line, note.span.column))
        comments = suppressions(file, signs=("//", "#"))
        return Reading(claims=tuple(claims), notes=tuple(notes), suppressions=comments)


def _note(file: SourceFile, fault: Fault) -> Note:
    span = span_of(file.path, file.text, fault.start, fault.end)
    where = f"{file.path} line {span.line}"
    if fault.template:
        return Note(NoteKind.TEMPLATE, f"{where}: {fault.message}", span)
    message = f"{where}: {fault.message}"
    if fault.hjson:
        message += "; DeepSpeed's own reader accepts it, but json.load (Hugging Face's trainer) fails here"
    return Note(NoteKind.MALFORMED, message, span, detail=NoteDetail.HJSON if fault.hjson else None)


def _duplicates(file: SourceFile, node: Node) -> Iterator[Note]:
    first: dict[str, int] = {}
    for member in node.members:
        if member.key in first:
            span = span_of(file.path, file.text, member.key_start, member.key_end)
            before = file.text.count("\n", 0, first[member.key]) + 1
            message = (
                f'{file.path} line {span.line}: the key "{member.key[:60]}" is already on line'
                f" {before}; DeepSpeed stops with 'Duplicate keys in DeepSpeed config', and"
                " json.load uses this one; remove one of them"
            )
            yield Note(NoteKind.MALFORMED, message, span)
        first[member.key] = member.key_start
        yield from _duplicates(file, member.node)


#: Paths of keys, and their quantities.
QUANTITY_OF: dict[tuple[str, ...], str] = {
    tuple(path.split(".")): quantity for path, quantity in toml.beside(__file__, "deepspeed.toml").items()
}
_SECTIONS = frozenset(path[:depth] for path in QUANTITY_OF for depth in range(1, len(path)))
#: A section with more keys than this is not a configuration.
_MAX_NAMES = 300
#: Sections whose keys are also claimed by name.
_NAMED_SECTIONS = frozenset(path for path in _SECTIONS if path[0] == "zero_optimization")


def state(node_claims: NodeClaims, root: Node, *, of_others: bool = False) -> None:
    """Add the claims of a configuration, in the order of its keys; of duplicate keys the last is effective.

    `of_others`: DeepSpeed's keys are mixed with those of another framework, so top-level keys are not claimed by name.
    """
    if not of_others:
        for member in truncate(root.in_force, _MAX_NAMES, "keys"):
            _name(node_claims, member, (member.key,))
    _section(node_claims, root, ())


def _section(node_claims: NodeClaims, node: Node, above: tuple[str, ...]) -> None:
    for position, member in enumerate(node.in_force):
        path = (*above, member.key)
        if above in _NAMED_SECTIONS and position < _MAX_NAMES:
            _name(node_claims, member, path)
        if path in _SECTIONS and member.node.kind is Kind.OBJECT:
            _section(node_claims, member.node, path)
        elif path in QUANTITY_OF:
            node_claims.add(QUANTITY_OF[path], _value(node_claims, member.node), member)
        elif path == ("zero_optimization",) and member.node.value is True:
            # An old spelling: "zero_optimization": true is stage 1.
            node_claims.add("zero_stage", Known(1), member)


def _name(node_claims: NodeClaims, member: Member, path: tuple[str, ...]) -> None:
    filled_in = "{{" in member.key or "${" in member.key
    why = Unresolved(f"{member.key[:60]}: a placeholder that is replaced later")
    shown = node_claims.file.text[member.key_start : member.key_end][:100]
    node_claims.add_key("deepspeed_key", why if filled_in else Known(".".join(path)), member, shown)


def _value(node_claims: NodeClaims, node: Node) -> Value:
    if node.kind is Kind.SCALAR:
        return AUTO if node.value == "auto" else Known(node.value)
    text = node_claims.file.text[node.start : node.end]
    if node.kind is Kind.TEMPLATE:
        return Unresolved(f"{text[:60]}: a placeholder that is replaced later")
    if node.kind is Kind.BROKEN:
        return Unresolved(f"{text[:60]!r} is not a value")
    # A list or an object instead of a number: a rule will quote the text as written.
    return Known(" ".join(text[:200].split()))


#: Keys of one file that are claimed.
_MAX_KEYS = 400
_MAX_DEPTH = 4
#: Sections of a list whose keys are claimed, as `datasets.item0.type`.
_MAX_LISTED = 8
_FLOAT_WITHOUT_DOT = re.compile(r"[-+]?\d{1,40}[eE][-+]?\d{1,4}")
#: What stands under a key with a secret's name, and is none: a list of names of secrets.
_NAME_OF_SECRET = re.compile(r"(?:[a-z]{1,20}:)?[A-Z][A-Z_]{2,40}")
#: A name; as a key of SkyPilot's mounts also a path.
_KEY = re.compile(r"[A-Za-z0-9_-]{1,80}|[/~][A-Za-z0-9_/-]{0,80}")


@dataclass(frozen=True, slots=True)
class _Reader:
    """How the keys of one configuration are named and read."""

    framework: str
    #: How a key is written in a path; empty for a key that is left out of it.
    key_of: Callable[[str], str]
    read: Callable[[Node], Value]
    #: Sections and lists that are not read into.
    stops: Callable[[Member], bool]
    because: tuple[Claim, ...]
    #: Whether the names of listed sections are stated together, as `tasks.names`.
    names: bool


def state_settings(
    node_claims: NodeClaims,
    root: Node,
    framework: str,
    *,
    only: Iterable[str] = (),
    floats_without_dot: bool = False,
    key_of: Callable[[str], str] = lambda key: key,
    stops: Callable[[Member], bool] = lambda member: False,
    read: Callable[[Node], Value] = value_of,
    because: tuple[Claim, ...] = (),
    names: bool = False,
) -> None:
    """Claim every key of a configuration; of duplicate keys the last is effective.

    Args:
        only: the top-level keys to claim; empty for all.
        floats_without_dot: whether the framework reads `1e-4` as a number (OmegaConf does, PyYAML reads a text).
        key_of: how a key is written in a path.
        stops: whether a section or list is stated without its content.
        read: the value of a node.
        because: the claims that each claim is based on.
        names: whether the names of listed sections are stated together, as `tasks.names`.
    """
    wanted = frozenset(only)
    left = [_MAX_KEYS]
    reader = _Reader(framework, key_of, _float_of if floats_without_dot else read, stops, because, names)
    for member in root.in_force:
        if not wanted or member.key in wanted:
            _state(node_claims, member, key_of(member.key), reader, left)


def _state(node_claims: NodeClaims, member: Member, path: str, reader: _Reader, left: list[int]) -> None:
    node = member.node
    hidden = is_secret(member.key)
    if left[0] <= 0 or not _KEY.fullmatch(reader.key_of(member.key)) or (hidden and _may_be_secret(node)):
        return
    left[0] -= 1
    spend(1)
    quantity = f"{SETTING_PREFIX}{reader.framework}.{path}"
    inner = node.kind is Kind.OBJECT
    stops = reader.stops(member)
    spelling = "" if inner or stops else node_claims.spelling(member)
    value = Known(SECTION) if inner else _setting_value(node, reader.read)
    claim = node_claims.add_key(quantity, value, member, spelling, because=reader.because)
    if node.kind is Kind.ARRAY and path.count(".") < _MAX_DEPTH:
        if reader.names and any(item.member("name") for item in node.items):
            listed = [item.at("name") for item in node.items]
            # The names of variables look like placeholders.
            read = value_of if stops else reader.read
            values = [Known(f"({at})") if name is None else read(name) for at, name in enumerate(listed)]
            node_claims.claims.append(replace(claim, quantity=f"{quantity}.names", value=lift(_as_texts, *values)))
        for number, item in enumerate(() if stops else node.items[:_MAX_LISTED]):
            for below in item.in_force if item.kind is Kind.OBJECT else ():
                _state(node_claims, below, f"{path}.item{number}.{reader.key_of(below.key)}", reader, left)
    if hidden:
        _state_names(node_claims, node, quantity)
    elif inner and path.count(".") < _MAX_DEPTH and not stops:
        for below in node.in_force:
            _state(node_claims, below, f"{path}.{reader.key_of(below.key)}", reader, left)


def _may_be_secret(node: Node) -> bool:
    """Return whether the value of a key with a secret's name may be a secret.

    A section, a truth value, null, and a list of names of secrets are not.
    """
    if node.kind is Kind.ARRAY:
        names = [item.value if item.kind is Kind.SCALAR else None for item in node.items]
        return not all(isinstance(name, str) and _NAME_OF_SECRET.fullmatch(name) for name in names)
    return node.kind is not Kind.OBJECT and not (
        node.kind is Kind.SCALAR and (node.value is None or isinstance(node.value, bool))
    )


def _as_texts(*items: Plain) -> Plain:
    return tuple(map(str, items))


def _state_names(node_claims: NodeClaims, section: Node, path: str) -> None:
    """Claim that keys of a section with secrets are given, without a value."""
    for member in section.in_force[:_MAX_LISTED]:
        if _KEY.fullmatch(member.key):
            value = Unresolved("part of a section with secrets")
            node_claims.add_key(f"{path}.{member.key}", value, member, member.key)


def _setting_value(node: Node, read: Callable[[Node], Value]) -> Value:
    if node.kind is Kind.ARRAY and node.items and all(item.kind is Kind.OBJECT for item in node.items):
        return Known((LISTED_SECTION,) * len(node.items))
    if node.kind is Kind.ARRAY and not all(item.kind is Kind.SCALAR for item in node.items):
        return Unresolved("a list of lists or of sections")
    return read(node)


def _float_of(node: Node) -> Value:
    """Return the value as OmegaConf reads it."""
    value = value_of(node)
    if isinstance(value, Known) and isinstance(value.value, str) and _FLOAT_WITHOUT_DOT.fullmatch(value.value):
        return Known(float(value.value))
    return value


# Reads files of PaddlePaddle's own: the configuration of PaddleRec, and the index files of PaddlePaddle 0.x.
#
# Sources: doc/yaml.md and tools/utils/static_ps/program_helper.py of PaddleRec (2.0 to 2.3, one `runner` mapping);
# doc/yaml.md and core/trainers of 1.8.5 (a list of runners, of which `mode` selects those that run).
#
# Source: doc/howto/cluster and the data providers of PaddlePaddle 0.8 to 0.11 (`define_py_data_sources2`).


#: The role in which other files refer to such a file.
ROLE = "paddlerec"
_RUNNER = re.compile(r"^runner[ \t]*:", re.MULTILINE)
#: Keys below `runner` that no other framework has there.
_PADDLEREC_KEYS = re.compile(
    r"^[ \t]+(?:-[ \t]+)?(?:train_reader_path|infer_reader_path|sync_mode|fleet_mode|distribute_strategy"
    r"|infer_load_path|save_checkpoint_interval|phases|class[ \t]*:[ \t]*(?:cluster_)?(?:train|infer))[ \t]*[:#\r\n]",
    re.MULTILINE,
)


class PaddleRecSource:
    """Reads one configuration of PaddleRec."""

    name = "paddlerec"
    roles = (ROLE,)

    def recognises(self, file: SourceFile) -> bool:
        """Return whether the file is YAML with a runner that has PaddleRec's keys."""
        if not file.path.lower().endswith((".yaml", ".yml")) or _RUNNER.search(file.text) is None:
            return False
        return _PADDLEREC_KEYS.search(file.text) is not None

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Return the claims of the runners and of the network's parameters."""
        document = document_of(file)
        node_claims = NodeClaims(file, self.name, scope)
        notes = tuple(node_claims.notes(document))
        root = document.root
        if root is not None and root.kind is Kind.OBJECT:
            _state_paddlerec(node_claims, root)
            state_settings(node_claims, root, self.name, only=("runner",))
        return Reading(claims=tuple(node_claims.claims), notes=notes, suppressions=suppressions(file))


def _state_paddlerec(node_claims: NodeClaims, root: Node) -> None:
    runner = root.member("runner")
    if runner is not None and runner.node.kind is Kind.OBJECT:
        node_claims.add_member("ps_update_mode", runner.node.member("sync_mode"), _mode)
        node_claims.add_member("dataset_files_shared", runner.node.member("split_file_list"))
        node_claims.add_member("data_path", runner.node.member("train_data_dir"))
        node_claims.add_member("geo_steps", runner.node.member("geo_step"))
        node_claims.add_member("dataloader_workers", runner.node.member("num_workers"))
    elif runner is not None and runner.node.kind is Kind.ARRAY:
        _state_runners(node_claims, root, runner)
    optimizer = root.member("hyper_parameters", "optimizer")
    if optimizer is not None and optimizer.node.kind is Kind.OBJECT:
        node_claims.add_member("optimizer", optimizer.node.member("class"), _text)
        if runner is not None and runner.node.kind is Kind.OBJECT:
            node_claims.add_member("ps_update_mode", optimizer.node.member("strategy"), _mode)
    rows = root.member("hyper_parameters", "sparse_feature_number")
    width = root.at("hyper_parameters", "sparse_feature_dim")
    if rows is not None and width is not None:
        node_claims.add("embedding_shape", lift(_shape, value_of(rows.node), value_of(width)), rows)


def _state_runners(node_claims: NodeClaims, root: Node, runner: Member) -> None:
    """Add claims for the runners of the older generation; `mode` selects those that run."""
    items = [item for item in runner.node.items if item.kind is Kind.OBJECT]
    names = tuple(item.text("name") for item in items)
    if names and all(names) and len(items) == len(runner.node.items):
        node_claims.add("runner_names", Known(names), runner)
    mode = root.member("mode")
    node_claims.add_member("runner_mode", mode, of_each(lambda item: item if isinstance(item, tuple) else (item,)))
    running = set(_names(mode))
    for item in items:
        if running and item.text("name") not in running:
            continue
        kind = item.member("class")
        node_claims.add_member("runner_class", kind, _text)
        if kind is None or item.text("class") != "cluster_train":
            reason = item.member("distribute_strategy") or item.member("fleet_mode")
            if reason is not None and kind is not None:
                node_claims.add_member("runner_not_distributed", reason, _text)
            continue
        fleet = item.member("fleet_mode")
        node_claims.add_member("ps_mode", fleet, of_each(lambda item: str(item).lower() in ("ps", "pslib")))
        if fleet is None or item.text("fleet_mode") == "ps":
            node_claims.add_member("ps_update_mode", item.member("distribute_strategy"), _mode)


def _names(mode: Member | None) -> Iterator[str]:
    if mode is None:
        return
    for node in (mode.node, *mode.node.items):
        if node.kind is Kind.SCALAR and isinstance(node.value, str):
            yield node.value


def _text(value: Value) -> Value:
    return lift(str, value)


def _mode(value: Value) -> Value:
    return lift(lambda item: str(item).strip().lower().replace("half_async", "half-async"), value)


def _shape(rows: Plain, width: Plain) -> Plain:
    if not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in (rows, width)):
        raise TypeError("sizes must be whole numbers")
    return (int(str(rows)), int(str(width)))


#: Longer lists are data; only their beginning is kept.
MAX_FILES = 10_000


class IndexListSource:
    """Reads one index file."""

    name = "index"
    roles = ("index",)

    def recognises(self, file: SourceFile) -> bool:
        """Return whether the file has the name of an index file and its first lines are paths, one per line and nothing
        else.
        """
        if posixpath.basename(file.path) not in ("train.list", "test.list"):
            return False
        head = [line.strip() for line in file.text[:2048].split("\n")[:20] if line.strip()]
        return all(len(line.split()) == 1 for line in head)

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Read the files that the index lists; each line's location is in `because`."""
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

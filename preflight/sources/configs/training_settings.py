"""Reads files of training settings that no launch names, and those of no known framework by the names of their keys.

Only names whose meaning is the same in every framework state a quantity, and only where the file gives them a single
value: the batch size of validation is not that of training. A plain `batch_size` may be that of one rank or of all, so
it is stated only as a given batch size. A Hydra configuration is composed with its defaults list.

Nodes and GPUs are stated only for a file that is read by itself. Whether a program uses them depends on how it is
started, so they are never compared with what a launch line starts.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from preflight._util import toml
from preflight._util.budget import truncate
from preflight.model.job import WHOLE_JOB, Claim, Known, Note, NoteKind, Reference, Scope, Strength, Value
from preflight.sources.base import Reading, SourceFile, Tree, suppressions
from preflight.sources.formats import structured
from preflight.sources.formats.structured import Kind, Node, NodeClaims, document_of, value_of
from preflight.sources.hydra.composition import compose_config
from preflight.sources.hydra.configuration import ConfigFolders, Leaf, leaves
from preflight.sources.hydra.overrides import Unreadable
from preflight.sources.hydra.run_config import claims_of, file_config
from preflight.sources.value_readers import READERS, Reader

#: How its claims are named; such a file alone starts nothing.
SOURCE = "settings"
_HEAD = 60_000
_MAX_LEAVES = 5_000


def _section(name: str) -> Mapping[str, tuple[str, Reader]]:
    """Return the names of a section of the table, each with its quantity and the function that reads its value."""
    found: dict[str, tuple[str, Reader]] = {}
    for quantity, row in _TABLE[name].items():
        names, reader = (row, "count") if isinstance(row, str) else (row["names"], row["read"])
        found.update(dict.fromkeys(names.split(), (quantity, READERS[reader])))
    return found


_TABLE = toml.beside(__file__, "training_settings.toml")
_COUNTS, _SIZES, _OTHERS = (_section(name) for name in ("counts", "sizes", "others"))
#: A key: in a line of its own, or in braces.
_KEY = r"(?:^[ \t]*(?:-[ \t]+)?|[{{,][ \t]*)[\"']?(?:[\w./]{{1,100}}[./])?(?:{names})[\"']?[ \t]*[:=]"


def _keys(names: Iterable[str], further: str = "") -> re.Pattern[str]:
    joined = "|".join((*(name.replace("_", "[-_]") for name in names), *further.split()))
    return re.compile(_KEY.format(names=joined), re.MULTILINE | re.IGNORECASE)


_HAS_COUNT = _keys(name for name in _COUNTS if "." not in name)
_HAS_NODES = _keys(("num_nodes", "nnodes", "n_nodes"), "nodes")
_HAS_PER_NODE = _keys(
    ("gpus_per_node", "num_gpus_per_node", "n_gpus_per_node", "nproc_per_node", "num_processes_per_node"),
    "ntasks_per_node tasks_per_node",
)
_HAS_SIZE = _keys(name.rpartition(".")[2] for name in _SIZES)
#: A number of processes, or a way to shard, whose meaning differs between programs: with keys of a training, the file
#: is read for the rest.
_SPREADS = _keys(
    (),
    "num_gpus n_gpus? ngpus? num_devices world_size zero_stage fsdp fsdp_config dp_size"
    r" (?:ici|dcn)_\w+_parallelism",
)
#: Degrees of parallelism, whose names have this meaning alone.
_DEGREES = _keys(
    (),
    "tensor[-_]parallel[-_]size tensor[-_]model[-_]parallel[-_]size pipeline[-_]parallel[-_]size"
    " pipeline[-_]model[-_]parallel[-_]size expert[-_]parallel[-_]size context[-_]parallel[-_]size tp[-_]size",
)
#: Keys that only a training has.
_TRAINS = _keys(
    (),
    "lr learning_rate base_lr max_lr init_lr initial_lr lr_scheduler scheduler scheduler_conf optimizer optim"
    " optim_conf solver epochs? num_epochs? n_epochs? max_epochs? number_of_epochs num_train_epochs max_steps"
    " train_steps max_train_steps num_train_steps iters train_iters weight_decay warmup_steps trainer"
    " train_dataset save_steps sharding_strategy",
)
#: Sections that such a file of a launcher has: how many nodes it takes.
_STARTS = _keys((), "partition launcher slurm cluster trainer tasks_per_node cpus_per_task num_gpus nodes run_config")
#: Files of other kinds with keys of these names.
_OTHER_KINDS = re.compile(
    r"^(?:apiVersion|kind|openapi|swagger|services|jobs|stages|pipelines|steps|on|repos|name_template)[ \t]*:"
    r"|^\[(?:project|build-system|package|workspace|tool)(?:\.[^\]\n]*)?\]",
    re.MULTILINE,
)
#: Parts of a configuration that are not the training itself.
_ASIDE = re.compile(
    r"(?:^|[._-])(?:val|valid|validation|eval|evaluation|evaluator|test|dev|infer|inference|actor_infer|predict|prediction"
    r"|generat\w*|rollout|vllm|sglang|serving|serve|export|benchmark|reference|reward\w*|critic|teacher|sampling|search\w*"
    r"|scale_config|decod\w*)(?:$|[._-])",
    re.IGNORECASE,
)
#: A Hydra configuration with a defaults list.
_DEFAULTS = re.compile(r"^defaults[ \t]*:[ \t]*(?:#[^\n]*)?\n(?:[ \t]*(?:#[^\n]*)?\n)*[ \t]*-[ \t]", re.MULTILINE)
#: An absolute name in a defaults list.
_ABSOLUTE = re.compile(r"^[ \t]*-[ \t]+(?:(?:override|optional)[ \t]+)*/([\w.-]+(?:/[\w.-]+)*)", re.MULTILINE)
_OF_HYDRA = _keys((), "hydra trainer training train optim optimizer model dataset task run_config experiment")


class Setting(NamedTuple):
    """One value of the file: its dotted path, and a claim about it for a quantity that is filled in."""

    path: str
    claim: Claim


class TrainingSettingsSource:
    """Reads one file of settings by the names of its keys."""

    name = SOURCE
    roles: tuple[str, ...] = ()
    starts_jobs = False

    def recognises(self, file: SourceFile) -> bool:
        """Return whether the file has a size of a job and a key that only trainers or launchers have, or Hydra's
        defaults list.
        """
        if not file.path.lower().endswith((".yaml", ".yml", ".toml", *structured.SUFFIXES)):
            return False
        head = file.text[:_HEAD]
        if _OTHER_KINDS.search(head) is not None:
            return False
        if _DEFAULTS.search(head) is not None and (_OF_HYDRA.search(head) or _HAS_SIZE.search(head)) is not None:
            return True
        if _HAS_SIZE.search(head) is not None:
            beside = (_TRAINS, _HAS_COUNT, _HAS_PER_NODE, _SPREADS, _DEGREES)
            return any(pattern.search(head) is not None for pattern in beside)
        pairs = ((_HAS_NODES, _HAS_PER_NODE), (_SPREADS, _TRAINS), (_HAS_COUNT, _TRAINS), (_HAS_COUNT, _STARTS))
        return any(one.search(head) is not None and other.search(head) is not None for one, other in pairs)

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Read the sizes of the training run; for a file that is read by itself also nodes and GPUs."""
        document = document_of(file)
        node_claims = NodeClaims(file, SOURCE, scope)
        notes = list(node_claims.notes(document))
        references: tuple[Reference, ...] = ()
        if document.root is None or document.root.kind is not Kind.OBJECT:
            return Reading(notes=tuple(notes), suppressions=suppressions(file))
        if _DEFAULTS.search(file.text[:_HEAD]) is not None and document.root.at("defaults") is not None:
            settings, files, missing = _compose(file, tree, scope)
            first = node_claims.places.span(0, 0)
            references = tuple(Reference(path, "composed", first, scope) for path in files if path != file.path)
            notes.extend(
                Note(NoteKind.MISSING, f"`{name}` in the defaults of {file.path} is not in the tree", first)
                for name in missing
            )
        else:
            settings = list(_settings(node_claims, document.root))
        names = {**_SIZES, **_OTHERS, **(_COUNTS if not role and scope == WHOLE_JOB else {})}
        claims = tuple(_select_claims(settings, names))
        return Reading(claims, (), references, tuple(notes), suppressions(file))


def _settings(node_claims: NodeClaims, root: Node) -> Iterator[Setting]:
    for path, member in truncate(list(root.leaves()), _MAX_LEAVES, "settings"):
        if member.node.kind is Kind.SCALAR and member.node.value is not None:
            yield Setting(".".join(path), node_claims.add("", value_of(member.node), member))


def _compose(file: SourceFile, tree: Tree, scope: Scope) -> tuple[list[Setting], list[str], list[str]]:
    """Return the settings of a Hydra configuration, the files that it consists of, and those that are not in the
    tree.
    """
    folder = _config_folder(file, tree)
    name = posixpath.relpath(file.path, folder or ".")
    folders = ConfigFolders(tree, (folder,))
    composition = compose_config(folders, name.removesuffix(".yaml"), (), {})
    found = []
    for path, leaf in truncate(list(leaves(composition.root)), _MAX_LEAVES, "settings"):
        if not isinstance(leaf, Leaf):
            continue
        value: Value = leaf.value
        if isinstance(value, Known) and isinstance(value.value, str) and "${" in value.value:
            try:
                value = composition.resolver.value(path) or value
            except Unreadable:
                continue
        claim = Claim("", value, leaf.place.span, leaf.place.spelling, SOURCE, scope, Strength.CONFIG)
        found.append(Setting(".".join(path), claim))
    return found, folders.files, composition.unknown


def _config_folder(file: SourceFile, tree: Tree) -> str:
    """Return the folder that absolute names of the defaults list (`/model: llama`, `override /model: llama`) start
    from.
    """
    folder = own = posixpath.dirname(file.path)
    groups = {match[1].partition("/")[0] for match in _ABSOLUTE.finditer(file.text[:_HEAD])}
    while groups:
        names = set(tree.names(folder))
        if any(names & {f"{group}/", f"{group}.yaml"} for group in groups):
            return folder
        if not folder:
            break
        folder = posixpath.dirname(folder)
    return own


def _select_claims(settings: Iterable[Setting], names: Mapping[str, tuple[str, Reader]]) -> Iterator[Claim]:
    """Yield the claims of quantities with one value in the file. A value that is filled in later does not count."""
    found: dict[str, list[Claim]] = {}
    for path, claim in settings:
        above, _, key = path.lower().replace("-", "_").rpartition(".")
        below = f"{above.rpartition('.')[2]}.{key}"
        quantity, read = names.get(below) or names.get(key, ("", READERS["any"]))
        if quantity and _ASIDE.search(above) is None:
            value = read(claim.value)
            if isinstance(value, Known):
                found.setdefault(quantity, []).append(replace(claim, quantity=quantity, value=value))
    per_node = {"gpus_per_node", "processes_per_node"} & set(found)
    for quantity, claims in found.items():
        # `num_nodes` without GPUs may count those of a graph.
        if len({claim.value for claim in claims}) == 1 and (quantity != "nodes" or per_node):
            yield claims[0]


_FRAMEWORK_HEAD = 60_000
#: Top-level keys which, together with a key below, only such a file has.
_TOP = re.compile(r"^(cluster|grpo|policy|allocation_mode|modules|worker|defaults):", re.MULTILINE)
_BELOW = re.compile(
    r"^[ \t]+(?:num_nodes|gpus_per_node|n_nodes|n_gpus_per_node|train_global_batch_size|pre_trainer|post_trainer"
    r"|sft_trainer|rollout|generation|megatron_cfg|dtensor_cfg):",
    re.MULTILINE,
)
_PARENT = re.compile(r"^defaults:[ \t]*(?:[\"']?[\w./-]+\.ya?ml|\n[ \t]*-[ \t]*[\"']?[\w./-]+\.ya?ml)", re.MULTILINE)


class FrameworkConfigSource:
    """Reads one configuration file by the keys of its framework."""

    name = "framework"
    roles = ("composed",)

    def recognises(self, file: SourceFile) -> bool:
        """Return whether the file is YAML with the sections of one of these frameworks."""
        if not file.path.lower().endswith((".yaml", ".yml")):
            return False
        head = file.text[:_FRAMEWORK_HEAD]
        tops = {match[1] for match in _TOP.finditer(head)}
        if "apiVersion:" in head[:2000]:
            return False
        # A child of another file may change as little as one key.
        if "defaults" in tops and _PARENT.search(head) and tops & {"cluster", "grpo", "policy"}:
            return True
        return bool(tops - {"defaults"}) and _BELOW.search(head) is not None

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Read the sizes of the job, including those from files that it inherits from."""
        document = document_of(file)
        notes: list[Note] = list(NodeClaims(file, self.name).notes(document))
        run = file_config(file.path, tree)
        if run is None:
            return Reading(notes=tuple(notes), suppressions=suppressions(file))
        places = NodeClaims(file, self.name).places
        first = places.span(0, 0)
        claims = claims_of(run, scope, "", first, file.path)
        references = [Reference(path, "composed", first, scope) for path in run.files if path != file.path]
        notes.extend(
            Note(NoteKind.MISSING, f"{file.path} names `{path}`, which is not in the tree", first)
            for path in run.composition.unknown
        )
        return Reading(claims, (), tuple(references), tuple(notes), suppressions(file))

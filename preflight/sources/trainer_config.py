"""Reads files of training arguments: Hugging Face's trainer, LLaMA-Factory, TRL and its recipes, axolotl, torchtune.

Source of keys: transformers/training_args.py (5.23); LLaMA-Factory 0.9.5 (llamafactory/hparams: TrainingArguments and
its own); axolotl 0.19 (axolotl/utils/schemas: micro_batch_size, base_model, fsdp_config ...); torchtune 0.6.1 (recipe
configurations: batch_size is that of one rank). Options of the command line win over the file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping

from preflight.job import WHOLE_JOB, Claim, Known, Reference, Scope, Strength, Unresolved, as_int
from preflight.lazy.patterns import lazy_pattern
from preflight.sources import fsdp
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.comments import suppressions
from preflight.sources.structured import Kind, Member, Node, NodeStating, document_of, value_of
from preflight.sources.trainer_settings import PRECISIONS, SETTINGS, Reader, as_number, as_text, precision_of

#: How other files refer to one of these.
ROLE = "trainer"
#: Keys whose names are looked at; the trainer has some hundred and fifty.
_MOST_KEYS = 500
_HEAD = 16384
#: Where a key of the top level begins: YAML's first column, or in quotation marks in JSON.
_TOP = r"(?:(?:^|[{,])[ \t]{0,8}\"|^'?)"
_END = r"[\"']?[ \t]*:"
#: Keys that only such a file has, two of them together.
_KEYS = lazy_pattern(
    rf"{_TOP}(?:per_device_train_batch_size|gradient_accumulation_steps|micro_batch_size|num_train_epochs|num_epochs"
    rf"|learning_rate|output_dir|model_name_or_path|base_model|lr_scheduler_type|finetuning_type|sequence_len){_END}",
    re.MULTILINE,
)
_SURE = lazy_pattern(
    rf"{_TOP}(?:per_device_train_batch_size|gradient_accumulation_steps|micro_batch_size){_END}", re.MULTILINE
)
#: Other frameworks with keys of these names: their files are somebody else's.
_OTHERS = lazy_pattern(
    rf"{_TOP}(?:compute_environment|distributed_type|train_micro_batch_size_per_gpu|zero_optimization|apiVersion|kind"
    rf"|defaults|trainer|hydra|megatron_amp_O2){_END}",
    re.MULTILINE,
)
_TORCHTUNE = lazy_pattern(r"_component_:[ \t]*torchtune\.")
#: Axolotl's own names.
_AXOLOTL: dict[str, tuple[str, Reader]] = {
    "micro_batch_size": ("micro_batch_size_per_gpu", as_int),
    "base_model": ("model_name", as_text),
    "tensor_parallel_size": ("tensor_parallel_size", as_int),
    "context_parallel_size": ("context_parallel_size", as_int),
    "max_grad_norm": ("gradient_clipping", as_number),
}
_TUNE: dict[str, tuple[str, Reader]] = {
    "batch_size": ("micro_batch_size_per_gpu", as_int),
    "gradient_accumulation_steps": ("gradient_accumulation_steps", as_int),
    "tensor_parallel_dim": ("tensor_parallel_size", as_int),
}


class TrainerConfigSource:
    """Reads one file of training arguments."""

    name = "trainer"
    roles = (ROLE,)

    def recognises(self, file: SourceFile) -> bool:
        """Whether it is YAML or JSON with keys of a trainer's batch and of its model or length."""
        if not file.path.lower().endswith((".yaml", ".yml", ".json")):
            return False
        head = file.text[:_HEAD]
        if _TORCHTUNE.search(head) is not None:
            return True
        if _SURE.search(head) is None or _OTHERS.search(head) is not None:
            return False
        return len({match[0].strip(" \"':\t") for match in _KEYS.finditer(head)}) >= 2

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State batch, optimizer, precision, saving, model; refer to the DeepSpeed configuration."""
        document = document_of(file)
        root = document.root
        stating = NodeStating(file, "trainer", scope)
        notes = stating.notes(document)
        references: list[Reference] = []
        if root is not None and root.kind is Kind.OBJECT:
            dialect = _dialect(file, root)
            for member in root.in_force:
                _state(stating, member, dialect)
            own = "torchtune" if dialect is _TUNE else "transformers" if dialect is SETTINGS else "axolotl"
            _state_framework(stating, root, own)
            if dialect is not _TUNE:
                _state_keys(stating, root)
                _state_fsdp(stating, root)
                _state_sharding(stating, root)
                references = list(_deepspeed(stating, root, tree))
        return Reading(tuple(stating.claims), (), tuple(references), tuple(notes), suppressions(file))


def _dialect(file: SourceFile, root: Node) -> dict[str, tuple[str, Reader]]:
    if _TORCHTUNE.search(file.text[:_HEAD]) is not None:
        return _TUNE
    own = root.at("base_model") is not None and root.at("model_name_or_path") is None
    return {**SETTINGS, **_AXOLOTL} if own else SETTINGS


def _state(stating: NodeStating, member: Member, dialect: Mapping[str, tuple[str, Reader]]) -> None:
    if member.key in PRECISIONS and dialect is not _TUNE:
        precision = precision_of(member.key, value_of(member.node))
        if precision is not None:
            stating.given("mixed_precision", member, lambda _: precision)
        return
    found = dialect.get(member.key)
    if found is not None:
        quantity, reader = found
        stating.given(quantity, member, reader)


def _state_framework(stating: NodeStating, root: Node, name: str) -> None:
    """Which library's trainer drives the loop, said at the first key that shows it."""
    for member in root.in_force:
        if _SURE.match(f"{member.key}:") or name == "torchtune":
            stating.given("training_framework", member, lambda _: Known(name))
            return


def _state_keys(stating: NodeStating, root: Node) -> None:
    for member in root.members[:_MOST_KEYS]:
        span = stating.places.span(member.key_start, member.key_end)
        value = Unresolved("a placeholder") if set(member.key) & set("{}<>$@%") else Known(member.key)
        claim = Claim("trainer_argument", value, span, member.key, "trainer", stating.scope, Strength.CONFIG)
        stating.claims.append(claim)


def _state_fsdp(stating: NodeStating, root: Node) -> None:
    section = root.at("fsdp_config")
    members = section.in_force if section is not None and section.kind is Kind.OBJECT else ()
    version = root.member("fsdp_version")
    for member in (*((version,) if version is not None else ()), *members):
        quantity = fsdp.quantity_of(member.key)
        if quantity is not None:
            stating.given(quantity, member, fsdp.reading_of(quantity))


def _state_sharding(stating: NodeStating, root: Node) -> None:
    for name in ("deepspeed", "fsdp"):
        member = root.member(name)
        if member is None or (member.node.kind is Kind.ARRAY and not member.node.items):
            continue
        if member.node.kind is Kind.TEMPLATE:
            stating.say("sharding_library", value_of(member.node), member)
        elif member.node.kind is not Kind.SCALAR or member.node.value not in (None, False, ""):
            stating.say("sharding_library", Known(name), member)


def _deepspeed(stating: NodeStating, root: Node, tree: Tree) -> Iterator[Reference]:
    member, path = root.member("deepspeed"), root.text("deepspeed")
    target = tree.resolve(path, relative_to=stating.file.path) if path.endswith((".json", ".jsonc", ".hjson")) else None
    if member is not None and target is not None:
        yield Reference(posixpath.normpath(target), "config", stating.span(member.node), stating.scope)

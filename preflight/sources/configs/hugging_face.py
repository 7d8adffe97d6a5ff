"""The arguments of Hugging Face's trainer, of PaddleNLP's and of FSDP, and their claims; the files that hold arguments
of trainers (LLaMA-Factory, TRL and its recipes, axolotl, torchtune).

Source: accelerate/utils/dataclasses.py (FullyShardedDataParallelPlugin), utils/constants.py and commands/launch.py,
accelerate 1.15; transformers/training_args.py (fsdp, fsdp_config), transformers 5.23.

The table is `hugging_face.toml`. The arguments of Paddle's trainers are stated as `setting.paddlenlp.NAME`, and rules
read them only where such a trainer is started.

Source of keys: transformers/training_args.py (5.23); LLaMA-Factory 0.9.5 (llamafactory/hparams: TrainingArguments and
its own); axolotl 0.19 (axolotl/utils/schemas: micro_batch_size, base_model, fsdp_config ...); torchtune 0.6.1 (recipe
configurations: batch_size is that of one rank). Command-line options take precedence over the file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping

from preflight._util import toml
from preflight._util.budget import truncate
from preflight.model.job import WHOLE_JOB, Claim, Known, Plain, Reference, Scope, Strength, Unresolved, Value, as_int
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.configs.framework_files import state_settings
from preflight.sources.configs.model_config import ROLE as MODEL_ROLE
from preflight.sources.configs.model_config import config_of
from preflight.sources.formats.comments import suppressions
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims, document_of, value_of
from preflight.sources.value_readers import READERS, Reader, as_bool, as_float, as_text, ordinal_or

_TABLE = toml.beside(__file__, "hugging_face.toml")
#: Argument -> quantity and the function that reads its value.
SETTINGS: dict[str, tuple[str, Reader]] = {
    name: (row["quantity"], READERS[row["read"]]) for name, row in _TABLE["settings"].items()
}
#: The same of FSDP's settings, without their `fsdp_` prefix.
_FSDP: dict[str, tuple[str, Reader]] = {
    name: (row["quantity"], READERS[row["read"]] if "read" in row else ordinal_or(tuple(row["words"])))
    for name, row in _TABLE["fsdp"].items()
}
#: Switches that select a precision when they are on.
PRECISIONS = ("fp16", "bf16")


def fsdp_setting(key: str) -> tuple[str, Reader] | None:
    """The quantity of a setting, with or without the `fsdp_` prefix, and the function that reads its value."""
    return _FSDP.get(key.removeprefix("fsdp_"))


def state_fsdp(node_claims: NodeClaims, members: Iterable[Member]) -> None:
    """State FSDP's settings among these keys."""
    for member in members:
        setting = fsdp_setting(member.key)
        if setting is not None:
            quantity, reader = setting
            node_claims.add_member(quantity, member, reader)


def precision_of(name: str, value: Value) -> Value | None:
    """The precision that `fp16` or `bf16` selects; None when it is off or left to the library (`auto`)."""
    on = as_bool(value)
    return Known(name) if on == Known(True) else None


#: How the settings are named.
FRAMEWORK = "paddlenlp"
#: Each argument that a rule asks for, and what the parser makes of its text.
FIELDS: dict[str, str] = {name: kind for kind, names in _TABLE["paddle"].items() for name in names.split()}
_PADDLE_TRUE = ("true", "t", "yes", "y", "1")
_PADDLE_FALSE = ("false", "f", "no", "n", "0")


def converted(name: str, item: Plain) -> Plain:
    """The value that the parser reads from an argument; unchanged if the parser stops, since a rule quotes it."""
    kind, text = FIELDS[name], str(item)
    if kind == "bool":
        return True if text.lower() in _PADDLE_TRUE else False if text.lower() in _PADDLE_FALSE else item
    try:
        return int(text) if kind == "int" else float(text) if kind == "float" else item
    except ValueError:
        return item


#: The role in which other files refer to such a file.
ROLE = "trainer"
#: Keys that are examined; the trainer has about a hundred and fifty.
_MAX_KEYS = 500
_HEAD = 16384
#: Where a top-level key begins: in YAML's first column, or in quotation marks in JSON.
_TOP = r"(?:(?:^|[{,])[ \t]{0,8}\"|^'?)"
_END = r"[\"']?[ \t]*:"
#: Keys that identify such a file when two of them occur together.
_KEYS = re.compile(
    rf"{_TOP}(?:per_device_train_batch_size|gradient_accumulation_steps|micro_batch_size|num_train_epochs|num_epochs"
    rf"|learning_rate|output_dir|model_name_or_path|base_model|lr_scheduler_type|finetuning_type|sequence_len){_END}",
    re.MULTILINE,
)
#: Nobody writes so many arguments: a trainer has saved all of them beside its results.
_MAX_WRITTEN = 120
_JSON_KEYS = re.compile(r'^ {0,4}"\w+":', re.MULTILINE)
_DISTINCTIVE_KEYS = re.compile(
    rf"{_TOP}(?:per_device_train_batch_size|gradient_accumulation_steps|micro_batch_size){_END}", re.MULTILINE
)
#: Other frameworks with keys of these names: the file belongs to one of them.
_OTHER_FRAMEWORKS = re.compile(
    rf"{_TOP}(?:compute_environment|distributed_type|train_micro_batch_size_per_gpu|zero_optimization|apiVersion|kind"
    rf"|defaults|trainer|hydra|megatron_amp_O2){_END}",
    re.MULTILINE,
)
#: The file of Hugging Face's `--fsdp_config`, whose keys may lack the prefix.
_FSDP_FILE = re.compile(
    r"^\s*\{[^{}]{0,400}?\"(?:xla_fsdp_v2|xla_fsdp_grad_ckpt|(?:fsdp_)?transformer_layer_cls_to_wrap|fsdp_min_num_params)\""
)
_TORCHTUNE = re.compile(r"_component_:[ \t]*torchtune\.")
#: LLaMA-Factory's own keys; a file with two of them is parsed by it, even if one is misspelt.
_LLAMAFACTORY_KEYS = frozenset(
    (
        *("stage", "finetuning_type", "cutoff_len", "template", "preprocessing_num_workers", "plot_loss"),
        *("lora_target", "lora_rank", "dataset_dir", "mask_history", "neat_packing", "freeze_vision_tower"),
    )
)
#: Those that other programs have as well.
_SHARED_KEYS = frozenset(("preprocessing_num_workers", "lora_rank", "lora_target", "template", "stage"))
#: Keys of axolotl; a file with two of them is its own, even where base_model is missing.
_AXOLOTL_KEYS = frozenset(
    (
        *("sequence_len", "sample_packing", "eval_sample_packing", "val_set_size", "dataset_prepared_path"),
        *("pad_to_sequence_len", "evals_per_epoch", "saves_per_epoch", "lora_target_linear"),
    )
)
#: Axolotl's own names.
_AXOLOTL: dict[str, tuple[str, Reader]] = {
    "micro_batch_size": ("micro_batch_size_per_gpu", as_int),
    "base_model": ("model_name", as_text),
    "tensor_parallel_size": ("tensor_parallel_size", as_int),
    "context_parallel_size": ("context_parallel_size", as_int),
    "max_grad_norm": ("gradient_clipping", as_float),
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
        """Whether the file is YAML or JSON and has at least two keys that are typical of a trainer's configuration."""
        if not file.path.lower().endswith((".yaml", ".yml", ".json")):
            return False
        head = file.text[:_HEAD]
        if _TORCHTUNE.search(head) is not None or (file.path.endswith(".json") and _FSDP_FILE.match(head) is not None):
            return True
        if _DISTINCTIVE_KEYS.search(head) is None or _OTHER_FRAMEWORKS.search(head) is not None:
            return False
        if file.path.endswith(".json") and len(_JSON_KEYS.findall(file.text)) > _MAX_WRITTEN:
            return False
        return len({match[0].strip(" \"':\t") for match in _KEYS.finditer(head)}) >= 2

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the batch, optimizer, precision, checkpoints and model, and refer to the DeepSpeed configuration."""
        document = document_of(file)
        root = document.root
        node_claims = NodeClaims(file, "trainer", scope)
        notes = node_claims.notes(document)
        references: list[Reference] = []
        if root is not None and root.kind is Kind.OBJECT and _FSDP_FILE.match(file.text[:_HEAD]) is not None:
            state_fsdp(node_claims, root.in_force)
        elif root is not None and root.kind is Kind.OBJECT:
            dialect = _dialect(file, root)
            for member in root.in_force:
                _state(node_claims, member, dialect)
            own = "torchtune" if dialect is _TUNE else "transformers" if dialect is SETTINGS else "axolotl"
            _state_framework(node_claims, root, own)
            if dialect is _TUNE:
                state_settings(node_claims, root, own)
            else:
                _state_keys(node_claims, root)
                of_llamafactory = own == "transformers" and _is_of_llamafactory(root)
                state_settings(node_claims, root, own, floats_without_dot=of_llamafactory)
                if own == "transformers" and not of_llamafactory:
                    state_settings(node_claims, root, FRAMEWORK, only=FIELDS, floats_without_dot=True)
                if of_llamafactory:
                    state_settings(node_claims, root, "llamafactory", floats_without_dot=True)
                _state_fsdp(node_claims, root)
                _state_sharding(node_claims, root)
                references = [*_deepspeed(node_claims, root, tree), *_model(node_claims, root, tree)]
        return Reading(tuple(node_claims.claims), (), tuple(references), tuple(notes), suppressions(file))


def _dialect(file: SourceFile, root: Node) -> dict[str, tuple[str, Reader]]:
    if _TORCHTUNE.search(file.text[:_HEAD]) is not None:
        return _TUNE
    named = {member.key for member in root.in_force}
    own = "model_name_or_path" not in named and ("base_model" in named or len(named & _AXOLOTL_KEYS) >= 2)
    return {**SETTINGS, **_AXOLOTL} if own else SETTINGS


def _is_of_llamafactory(root: Node) -> bool:
    found = {member.key for member in root.in_force} & _LLAMAFACTORY_KEYS
    return len(found) >= 2 and not found <= _SHARED_KEYS


def _state(node_claims: NodeClaims, member: Member, dialect: Mapping[str, tuple[str, Reader]]) -> None:
    if member.key in PRECISIONS and dialect is not _TUNE:
        precision = precision_of(member.key, value_of(member.node))
        if precision is not None:
            node_claims.add_member("mixed_precision", member, lambda _: precision)
        return
    found = dialect.get(member.key)
    if found is not None:
        quantity, reader = found
        node_claims.add_member(quantity, member, reader)


def _state_framework(node_claims: NodeClaims, root: Node, name: str) -> None:
    """State which library's trainer runs the loop, at the first key that shows it."""
    for member in root.in_force:
        if _DISTINCTIVE_KEYS.match(f"{member.key}:") or name == "torchtune":
            node_claims.add_member("training_framework", member, lambda _: Known(name))
            return


def _state_keys(node_claims: NodeClaims, root: Node) -> None:
    for member in truncate(root.members, _MAX_KEYS, "keys"):
        span = node_claims.places.span(member.key_start, member.key_end)
        value = Unresolved("a placeholder") if set(member.key) & set("{}<>$@%") else Known(member.key)
        claim = Claim("trainer_argument", value, span, member.key, "trainer", node_claims.scope, Strength.CONFIG)
        node_claims.claims.append(claim)


def _state_fsdp(node_claims: NodeClaims, root: Node) -> None:
    section = root.at("fsdp_config")
    members = section.in_force if section is not None and section.kind is Kind.OBJECT else ()
    version = root.member("fsdp_version")
    state_fsdp(node_claims, (*((version,) if version is not None else ()), *members))


def _state_sharding(node_claims: NodeClaims, root: Node) -> None:
    for name in ("deepspeed", "fsdp"):
        member = root.member(name)
        if member is None or (member.node.kind is Kind.ARRAY and not member.node.items):
            continue
        if member.node.kind is Kind.TEMPLATE:
            node_claims.add("sharding_library", value_of(member.node), member)
        elif member.node.kind is not Kind.SCALAR or member.node.value not in (None, False, ""):
            node_claims.add("sharding_library", Known(name), member)


def _deepspeed(node_claims: NodeClaims, root: Node, tree: Tree) -> Iterator[Reference]:
    member, path = root.member("deepspeed"), root.text("deepspeed")
    target = (
        tree.resolve(path, relative_to=node_claims.file.path) if path.endswith((".json", ".jsonc", ".hjson")) else None
    )
    if member is not None and target is not None:
        yield Reference(posixpath.normpath(target), "config", node_claims.span(member.node), node_claims.scope)


def _model(node_claims: NodeClaims, root: Node, tree: Tree) -> Iterator[Reference]:
    """The model's own configuration, where the file names a folder of the tree."""
    for key in ("model_name_or_path", "base_model"):
        member, path = root.member(key), root.text(key)
        target = config_of(path, tree, tree.resolve(path, relative_to=node_claims.file.path)) if path else None
        if member is not None and target is not None:
            yield Reference(target, MODEL_ROLE, node_claims.span(member.node), node_claims.scope)

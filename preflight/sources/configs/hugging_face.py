"""Hugging Face: a model's own `config.json`, arguments of trainers and files that hold them, Accelerate's files.

Source of the keys: transformers/models/*/configuration_*.py (4.57) and paddlenlp/transformers/*/configuration.py (2.8);
llama-models (params.json). A `config.json` is read for a launch that names its folder; by itself, such a file starts
nothing.

Numbers of parameters are the sums of the weights in
transformers/models/{llama,mistral,mixtral,qwen2,qwen2_moe,qwen3,qwen3_moe, deepseek_v3,gpt2}/modeling_*.py (4.57). For
other kinds of models no number is computed.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from preflight._util import toml
from preflight._util.budget import truncate
from preflight.model.job import (
    AUTO,
    WHOLE_JOB,
    Claim,
    Known,
    Note,
    NoteKind,
    Plain,
    Reference,
    Relation,
    Scope,
    Strength,
    Unresolved,
    Value,
    alternatives,
    as_int,
    is_whole_number,
)
from preflight.sources.base import Reading, SourceFile, Tree, suppressions
from preflight.sources.configs.framework_files import state_settings
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims, document_of, value_of
from preflight.sources.tables import load_table
from preflight.sources.value_readers import READERS, Reader, as_bool, as_text, ordinal_or

_TABLE = toml.beside(__file__, "hugging_face.toml")
#: The role in which other files refer to such a file.
MODEL_ROLE = "model configuration"
_FILE = "config.json"
_MODEL_HEAD = 60_000
_TYPE = re.compile(r"\"(?:model_type|architectures)\"[ \t]*:")
_LAYERS = re.compile(r"\"(?:num_hidden_layers|n_layer|n_layers|num_layers)\"[ \t]*:")
_WIDTH = re.compile(r"\"(?:hidden_size|n_embd|d_model|dim)\"[ \t]*:")
_LLAMA = re.compile(r"\"norm_eps\"[ \t]*:")
_OTHER_TOOLS = re.compile(
    r"\"(?:per_device_train_batch_size|train_micro_batch_size_per_gpu|zero_optimization)\"[ \t]*:"
)
#: The keys of each quantity; the first that a file has counts.
_MODEL_KEYS: dict[str, list[str]] = _TABLE["model"]


class ModelConfigSource:
    """Reads the configuration of one model."""

    name = "model"
    roles = (MODEL_ROLE,)

    def recognises(self, file: SourceFile) -> bool:
        """Return whether the file is JSON with a model's type, layers and width."""
        if not file.path.lower().endswith(".json"):
            return False
        head = file.text[:_MODEL_HEAD]
        if _LAYERS.search(head) is None or _WIDTH.search(head) is None or _OTHER_TOOLS.search(head) is not None:
            return False
        return _TYPE.search(head) is not None or _LLAMA.search(head) is not None

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Read the shape, and the number of parameters if the kind of model is known."""
        document = document_of(file)
        node_claims = NodeClaims(file, self.name, scope)
        notes = tuple(node_claims.notes(document))
        root = document.root
        if root is not None and root.kind is Kind.OBJECT:
            # Multimodal models keep the language model in its own section.
            inner = root.at("text_config") or root.at("llm_config") or root.at("language_config")
            _state_model(node_claims, root, inner if inner is not None and inner.kind is Kind.OBJECT else root)
        return Reading(tuple(node_claims.claims), notes=notes)


def config_of(path: str, tree: Tree, resolved: str | None) -> str | None:
    """Return the configuration in a folder that is named as a model, or the file itself; None if the tree has none."""
    if resolved is None or "://" in path:
        return None
    target = resolved if path.endswith(".json") else posixpath.join(resolved, _FILE)
    file = tree.read(posixpath.normpath(target))
    known = isinstance(file, SourceFile) and ModelConfigSource().recognises(file)
    return posixpath.normpath(target) if known else None


def _state_model(node_claims: NodeClaims, root: Node, model: Node) -> None:
    found: dict[str, Claim] = {}
    for quantity, names in _MODEL_KEYS.items():
        member = next((m for name in names if (m := model.member(name)) is not None and m.node.value is not None), None)
        value = as_int(value_of(member.node)) if member is not None else Known(None)
        number = next(iter(alternatives(value)), None)
        if member is not None and isinstance(number, int) and number >= 1:
            found[quantity] = node_claims.add(quantity, value, member)
    activation = model.member("hidden_act") or model.member("hidden_activation")
    kind = model.text("model_type") or root.text("model_type")
    if activation is not None and kind in _GATED:
        node_claims.add("gated_feed_forward", Known(True), activation)
    total = parameters_of(kind, Sizes(model, root)) if kind else None
    at = root.member("model_type") or model.member("model_type")
    if total is not None and at is not None:
        node_claims.add("model_parameters", Known(total), at, because=tuple(found.values()))


#: Kinds of models whose feed-forward part has a gate.
_GATED = (
    *("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3"),
    *("gemma", "gemma2", "phi3", "ernie4_5", "ernie4_5_moe", "internlm2", "internlm3", "olmo2"),
)


#: Kinds whose layers are attention with grouped heads and one gated feed-forward part. The values are what each adds: a
#: bias of the query, key and value projections; norms of each head's queries and keys.
_DENSE = {
    **dict.fromkeys(("llama", "mistral", "mixtral"), (False, False)),
    **dict.fromkeys(("qwen2", "qwen2_moe"), (True, False)),
    **dict.fromkeys(("qwen3", "qwen3_moe"), (False, True)),
}
_LATENT = ("deepseek_v3", "deepseek_v2")
_MAX_NUMBER = 10**15


class Sizes:
    """The numbers of one configuration; a missing or invalid one raises KeyError if it has no default."""

    def __init__(self, model: Node, root: Node) -> None:
        self._model = model
        self._root = root

    def number(self, name: str, default: int | None = None) -> int:
        """Return a whole number."""
        node = self._model.at(name)
        value = node.value if node is not None else None
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MAX_NUMBER:
            raise KeyError(name)
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a boolean."""
        node = self._model.at(name) or self._root.at(name)
        return node.value if node is not None and isinstance(node.value, bool) else default

    def has(self, name: str) -> bool:
        """Return whether there is a value."""
        node = self._model.at(name)
        return node is not None and node.value is not None


def parameters_of(kind: str, sizes: Sizes) -> int | None:
    """Return the number of parameters of a model of this `model_type`; None if the kind is unknown or a size is
    missing.
    """
    try:
        if kind in _DENSE:
            return _count_grouped_attention(kind, sizes)
        if kind in _LATENT:
            return _count_latent_attention(sizes, corrected=kind == "deepseek_v3")
        if kind == "gpt2":
            return _count_gpt2(sizes)
    except (KeyError, ZeroDivisionError):
        return None
    return None


def _embeddings(sizes: Sizes) -> int:
    rows = sizes.number("vocab_size") * sizes.number("hidden_size")
    return rows if sizes.flag("tie_word_embeddings", default=False) else 2 * rows


def _count_grouped_attention(kind: str, sizes: Sizes) -> int:
    width, layers = sizes.number("hidden_size"), sizes.number("num_hidden_layers")
    heads = sizes.number("num_attention_heads")
    groups = sizes.number("num_key_value_heads", heads)
    each = sizes.number("head_dim", width // heads)
    bias, normed = _DENSE[kind]
    attention = 2 * width * heads * each + 2 * width * groups * each
    attention += (heads + 2 * groups) * each if bias or sizes.flag("attention_bias", default=False) else 0
    attention += 2 * each if normed else 0
    dense = 3 * width * sizes.number("intermediate_size", 0 if kind.endswith("_moe") else None)
    if kind == "mixtral":
        experts = sizes.number("num_local_experts")
        part = experts * dense + experts * width
    elif kind.endswith("_moe"):
        experts = sizes.number("num_experts")
        part = experts * 3 * width * sizes.number("moe_intermediate_size") + experts * width
        if sizes.has("shared_expert_intermediate_size"):
            part += 3 * width * sizes.number("shared_expert_intermediate_size") + width
        if sizes.number("decoder_sparse_step", 1) != 1:
            raise KeyError("decoder_sparse_step")
    else:
        part = dense
    return layers * (attention + part + 2 * width) + width + _embeddings(sizes)


def _count_latent_attention(sizes: Sizes, *, corrected: bool) -> int:
    """Return the parameters of a model with DeepSeek's latent attention: its first layers are dense, the others have
    experts.

    `corrected`: whether a bias for each expert corrects the router's choice.
    """
    width, layers, heads, latent = map(
        sizes.number, ("hidden_size", "num_hidden_layers", "num_attention_heads", "kv_lora_rank")
    )
    plain, turned, out = map(sizes.number, ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    if sizes.has("q_lora_rank"):
        rank = sizes.number("q_lora_rank")
        query = width * rank + rank + rank * heads * (plain + turned)
    else:
        query = width * heads * (plain + turned)
    attention = query + width * (latent + turned) + latent + latent * heads * (plain + out) + heads * out * width
    first = min(sizes.number("first_k_dense_replace", 0), layers)
    if sizes.number("moe_layer_freq", 1) != 1:
        raise KeyError("moe_layer_freq")
    experts, shared = sizes.number("n_routed_experts"), sizes.number("n_shared_experts", 0)
    mixed = (experts + shared) * 3 * width * sizes.number("moe_intermediate_size") + experts * width
    mixed += experts if corrected else 0
    dense = 3 * width * sizes.number("intermediate_size")
    both = first * dense + (layers - first) * mixed
    return layers * (attention + 2 * width) + both + width + _embeddings(sizes)


def _count_gpt2(sizes: Sizes) -> int:
    width, layers = sizes.number("n_embd"), sizes.number("n_layer")
    inner = sizes.number("n_inner", 4 * width)
    layer = 4 * width * width + 4 * width + 2 * width * inner + inner + width + 4 * width
    return layers * layer + 2 * width + (sizes.number("vocab_size") + sizes.number("n_positions", 1024)) * width


# The arguments of Hugging Face's trainer, of PaddleNLP's and of FSDP, and their claims; the files that hold arguments
# of trainers (LLaMA-Factory, TRL and its recipes, axolotl, torchtune).
#
# Source: accelerate/utils/dataclasses.py (FullyShardedDataParallelPlugin), utils/constants.py and commands/launch.py,
# accelerate 1.15; transformers/training_args.py (fsdp, fsdp_config), transformers 5.23.
#
# The table is `hugging_face.toml`. The arguments of Paddle's trainers are stated as `setting.paddlenlp.NAME`, and
# rules read them only where such a trainer is started.
#
# Source of keys: transformers/training_args.py (5.23); LLaMA-Factory 0.9.5 (llamafactory/hparams: TrainingArguments
# and its own); axolotl 0.19 (axolotl/utils/schemas: micro_batch_size, base_model, fsdp_config ...); torchtune 0.6.1
# (recipe configurations: batch_size is that of one rank). Command-line options take precedence over the file.


def _settings(section: str) -> dict[str, tuple[str, Reader]]:
    return {name: (row["quantity"], READERS[row["read"]]) for name, row in _TABLE[section].items()}


#: Argument -> quantity and the function that reads its value.
SETTINGS = _settings("settings")
#: The same of FSDP's settings, without their `fsdp_` prefix.
_FSDP: dict[str, tuple[str, Reader]] = {
    name: (row["quantity"], READERS[row["read"]] if "read" in row else ordinal_or(tuple(row["words"])))
    for name, row in _TABLE["fsdp"].items()
}
#: Switches that select a precision when they are on.
PRECISIONS = ("fp16", "bf16")


def fsdp_setting(key: str) -> tuple[str, Reader] | None:
    """Return the quantity of a setting, with or without the `fsdp_` prefix, and the function that reads its value."""
    return _FSDP.get(key.removeprefix("fsdp_"))


def state_fsdp(node_claims: NodeClaims, members: Iterable[Member]) -> None:
    """Add claims for FSDP's settings among these keys."""
    for member in members:
        setting = fsdp_setting(member.key)
        if setting is not None:
            quantity, reader = setting
            node_claims.add_member(quantity, member, reader)


def precision_of(name: str, value: Value) -> Value | None:
    """Return the precision that `fp16` or `bf16` selects; None if it is off or left to the library (`auto`)."""
    on = as_bool(value)
    return Known(name) if on == Known(True) else None


#: How the settings are named.
FRAMEWORK = "paddlenlp"
#: Each argument that a rule asks for, and what the parser makes of its text.
FIELDS: dict[str, str] = {name: kind for kind, names in _TABLE["paddle"].items() for name in names.split()}
_PADDLE_TRUE = ("true", "t", "yes", "y", "1")
_PADDLE_FALSE = ("false", "f", "no", "n", "0")


def converted(name: str, item: Plain) -> Plain:
    """Return the value that the parser reads from an argument; unchanged if the parser stops, since a rule quotes
    it.
    """
    kind, text = FIELDS[name], str(item)
    if kind == "bool":
        return True if text.lower() in _PADDLE_TRUE else False if text.lower() in _PADDLE_FALSE else item
    try:
        return int(text) if kind == "int" else float(text) if kind == "float" else item
    except ValueError:
        return item


#: The role in which other files refer to such a file.
TRAINER_ROLE = "trainer"
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
_LLAMAFACTORY_KEYS = frozenset(_TABLE["keys"]["llamafactory"].split())
#: Those that other programs have as well.
_SHARED_KEYS = frozenset(_TABLE["keys"]["shared"].split())
#: Keys of axolotl; a file with two of them is its own, even where base_model is missing.
_AXOLOTL_KEYS = frozenset(_TABLE["keys"]["axolotl"].split())
#: Those that beside its `base_model` show that a file is axolotl's.
_WITH_BASE_MODEL = frozenset(_TABLE["keys"]["beside-base-model"].split())
#: Axolotl's own names.
_AXOLOTL = _settings("axolotl")
_TUNE = _settings("torchtune")


class TrainerConfigSource:
    """Reads one file of training arguments."""

    name = "trainer"
    roles = (TRAINER_ROLE,)

    def recognises(self, file: SourceFile) -> bool:
        """Return whether the file is YAML or JSON and has at least two keys that are typical of a trainer's
        configuration.
        """
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
        """Read the batch, optimizer, precision, checkpoints and model, and refer to the DeepSpeed configuration."""
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
    own = "model_name_or_path" not in named and len(named & (_AXOLOTL_KEYS | _WITH_BASE_MODEL)) >= 2
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
    """Add a claim about which library's trainer runs the loop, at the first key that shows it."""
    for member in root.in_force:
        if _DISTINCTIVE_KEYS.match(f"{member.key}:") or name == "torchtune":
            node_claims.add_member("training_framework", member, lambda _: Known(name))
            return


def _state_keys(node_claims: NodeClaims, root: Node) -> None:
    own = replace(node_claims, source="trainer", strength=Strength.CONFIG)
    for member in truncate(root.members, _MAX_KEYS, "keys"):
        value = Unresolved("a placeholder") if set(member.key) & set("{}<>$@%") else Known(member.key)
        own.add_key("trainer_argument", value, member, member.key)


def _state_fsdp(node_claims: NodeClaims, root: Node) -> None:
    version = root.member("fsdp_version")
    state_fsdp(node_claims, (*((version,) if version is not None else ()), *root.members_at("fsdp_config")))


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
    if root.text("deepspeed").endswith((".json", ".jsonc", ".hjson")):
        yield from _references(node_claims, root.member("deepspeed"), "config", tree)


def _references(node_claims: NodeClaims, member: Member | None, role: str, tree: Tree) -> Iterator[Reference]:
    """Yield a reference to the file below the root that a member names."""
    path = member.node.text() if member is not None else ""
    target = tree.resolve(path, relative_to=node_claims.file.path) if path else None
    if member is not None and target is not None:
        yield Reference(posixpath.normpath(target), role, node_claims.span(member.node), node_claims.scope)


def _model(node_claims: NodeClaims, root: Node, tree: Tree) -> Iterator[Reference]:
    """Yield the model's own configuration, if the file names a folder of the tree."""
    for key in ("model_name_or_path", "base_model"):
        member, path = root.member(key), root.text(key)
        target = config_of(path, tree, tree.resolve(path, relative_to=node_claims.file.path)) if path else None
        if member is not None and target is not None:
            yield Reference(target, MODEL_ROLE, node_claims.span(member.node), node_claims.scope)


# Reads the configuration of `accelerate launch` (YAML or JSON): machines, processes, and its sections.
#
# Source of keys, defaults and precedence: accelerate/commands/config/config_args.py and commands/launch.py of
# accelerate 1.15. `num_processes` counts over all machines. An option on the command line takes precedence over the
# file. Two keys of the file have no effect, because their options have defaults: `rdzv_backend` and `same_network`
# (in every version since 0.20).


#: The role in which other files refer to such a file.
ACCELERATE_ROLE = "accelerate"
#: Keys of one section that are examined; Accelerate has some thirty at the top.
_MAX_ACCELERATE_KEYS = 200
#: A file that does not identify itself within this many characters is something else.
_ACCELERATE_HEAD = 8192
#: Values that no other framework uses for that key.
_KINDS = re.compile(
    r"^[ \t]*[\"']?(?:compute_environment[\"']?[ \t]*:|distributed_type[\"']?[ \t]*:[ \t]*[\"']?(?:NO|no|MULTI_[A-Z]+"
    r"|FSDP|DEEPSPEED|MEGATRON_LM|TPU|XLA)\b)",
    re.MULTILINE,
)
_BESIDE = re.compile(
    r"^[ \t]*[\"']?(?:num_processes|num_machines|machine_rank|mixed_precision|fsdp_config|deepspeed_config"
    r"|main_process_ip|main_process_port|downcast_bf16|use_cpu|ec2_instance_type)[\"']?[ \t]*:",
    re.MULTILINE,
)
_INDENTED = re.compile(r"^[ \t].*$", re.MULTILINE)
_KEY = re.compile(r"^([A-Za-z_]\w*)[ \t]*:", re.MULTILINE)
_PLACEHOLDER = re.compile(r"[{}<>$@%]")
#: The parallel sizes of Accelerate's sections, which have options of the same names.
PARALLEL_SIZES: dict[str, str] = _TABLE["parallel_sizes"]
_DEFAULT_PORT = 29500
_FILLED_IN = Unresolved("a placeholder that is replaced later")
#: The methods of starting DeepSpeed on several machines that need accelerate on each of them.
EACH_MACHINE = ("standard", "nossh")


class AccelerateSource:
    """Reads one configuration of `accelerate launch`."""

    name = "accelerate"
    roles = (ACCELERATE_ROLE,)

    def recognises(self, file: SourceFile) -> bool:
        """Return whether the file is YAML or JSON with Accelerate's distribution settings."""
        if not file.path.lower().endswith((".yaml", ".yml", ".json")):
            return False
        head = file.text[:_ACCELERATE_HEAD]
        if not file.path.lower().endswith(".json"):
            # Such keys further in are those of a file that another one contains.
            head = _INDENTED.sub("", head)
        if _KINDS.search(head) is None or _BESIDE.search(head) is None:
            return False
        named = set(_KEY.findall(head))
        known = load_table("accelerate_config").names()
        return len(named - known) <= len(named & known)

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Read the launch's size, rendezvous, precision, and its DeepSpeed, FSDP and Megatron-LM sections."""
        document = document_of(file)
        root = document.root
        node_claims = NodeClaims(file, "accelerate", scope)
        notes = node_claims.notes(document)
        references: list[Reference] = []
        if root is not None and root.kind is Kind.OBJECT:
            _state_accelerate_keys(node_claims, root)
            state_settings(node_claims, root, "accelerate")
            if root.text("compute_environment") in ("", "LOCAL_MACHINE"):
                _state_launch(node_claims, root)
                references = _state_deepspeed(node_claims, root, tree)
                _state_sections(node_claims, root)
        elif root is not None:
            message = f"{file.path} has no keys; accelerate expects a mapping"
            notes.append(Note(NoteKind.MALFORMED, message, node_claims.span(root)))
        return Reading(tuple(node_claims.claims), (), tuple(references), tuple(notes), suppressions(file))


def starts_by_deepspeed(root: Node, machines: str = "", launcher: str = "") -> bool:
    """Return whether accelerate passes the launch to `deepspeed`, which reaches the other machines itself.

    `machines` and `launcher` come from the command line, which takes precedence over the file.
    """
    count = root.at("num_machines")
    number = machines or (str(count.value) if count is not None else "")
    chosen = launcher or root.text("deepspeed_config", "deepspeed_multinode_launcher")
    several = is_whole_number(number) and int(number) > 1
    return several and root.text("distributed_type") == "DEEPSPEED" and chosen not in EACH_MACHINE


def _state_accelerate_keys(node_claims: NodeClaims, root: Node) -> None:
    for member in truncate(root.members, _MAX_ACCELERATE_KEYS, "keys"):
        _state_key(node_claims, member, member.key)
        if member.key.endswith("_config") and member.node.kind is Kind.OBJECT:
            for inner in truncate(member.node.members, _MAX_ACCELERATE_KEYS, "keys of a section"):
                _state_key(node_claims, inner, f"{member.key}.{inner.key}")


def _state_key(node_claims: NodeClaims, member: Member, name: str) -> None:
    templated = _PLACEHOLDER.search(member.key) is not None
    value = _FILLED_IN if templated else Known(name)
    node_claims.add_key("accelerate_key", value, member, member.key)


def _state_launch(node_claims: NodeClaims, root: Node) -> None:
    node_claims.add_member("distributed_type", root.member("distributed_type"), as_text)
    machines = root.member("num_machines")
    node_claims.add_member("nodes", machines, as_int, relation=Relation.REQUIRES)
    node_claims.add_member("world_size", root.member("num_processes"), _processes)
    node_claims.add_member("node_rank", root.member("machine_rank"), as_int)
    node_claims.add_member("master_addr", root.member("main_process_ip"), host)
    port = root.member("main_process_port")
    node_claims.add_member("master_port", port, free_port)
    kind = root.member("distributed_type")
    if kind is not None and root.text("distributed_type") not in ("", "NO"):
        if machines is None:
            _default(node_claims, "nodes", 1, kind, "num_machines", Relation.REQUIRES)
        if port is None or port.node.value is None:
            _default(node_claims, "master_port", _DEFAULT_PORT, kind, "main_process_port", Relation.SETS)
    node_claims.add_member("rendezvous_backend_unread", root.member("rdzv_backend"), as_text)
    node_claims.add_member("mixed_precision", root.member("mixed_precision"), READERS["lower_no"])
    devices = root.member("gpu_ids")
    if devices is not None and devices.node.value not in (None, "all"):
        # Accelerate overwrites these variables.
        named = value_of(devices.node) if devices.node.kind is Kind.SCALAR else _FILLED_IN
        node_claims.add("env.CUDA_VISIBLE_DEVICES", as_text(named), devices, strength=Strength.FLAG)


def _default(
    node_claims: NodeClaims, quantity: str, value: int, member: Member, missing: str, relation: Relation
) -> None:
    claim = node_claims.add(quantity, Known(value), member, relation=relation, strength=Strength.DEFAULT)
    node_claims.claims[-1] = replace(claim, spelling=f"{claim.spelling} (without {missing})", origin=None)


def _state_deepspeed(node_claims: NodeClaims, root: Node, tree: Tree) -> list[Reference]:
    section = root.at("deepspeed_config")
    if section is None or section.kind is not Kind.OBJECT:
        return []
    references = [
        reference
        for key, role in (("deepspeed_config_file", "config"), ("deepspeed_hostfile", "hostfile"))
        if section.text(key) != "none"
        for reference in _references(node_claims, section.member(key), role, tree)
    ]
    node_claims.add_member("multinode_launcher", section.member("deepspeed_multinode_launcher"), as_text)
    if section.text("deepspeed_config_file") in ("", "none"):
        inner = NodeClaims(node_claims.file, "deepspeed", node_claims.scope)
        inner.add_member("gradient_accumulation_steps", section.member("gradient_accumulation_steps"), _unless_auto)
        inner.add_member("gradient_clipping", section.member("gradient_clipping"), _unless_auto)
        inner.add_member("zero_stage", section.member("zero_stage"))
        node_claims.claims.extend(inner.claims)
    return references


def _state_sections(node_claims: NodeClaims, root: Node) -> None:
    state_fsdp(node_claims, root.members_at("fsdp_config"))
    for name in ("megatron_lm_config", "parallelism_config"):
        for member in root.members_at(name):
            if member.key in PARALLEL_SIZES and member.key.startswith(name.removesuffix("config")):
                node_claims.add_member(PARALLEL_SIZES[member.key], member, as_int)


def _processes(value: Value) -> Value:
    if value == Known(-1):
        return Unresolved("-1: the command line must give the number")
    return as_int(value)


def host(value: Value) -> Value:
    """Return a host name, unless it is a placeholder."""
    from preflight.sources.launchers.claim_builder import unresolved_if_placeholder

    return unresolved_if_placeholder(as_text(value))


def free_port(value: Value) -> Value:
    """Return a port; with 0 accelerate uses any free one."""
    return Unresolved("0: any free port") if value in (Known(0), Known("0")) else as_int(value)


def _unless_auto(value: Value) -> Value:
    return AUTO if value == Known("auto") else value

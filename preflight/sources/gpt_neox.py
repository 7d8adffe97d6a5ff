"""Reads gpt-neox's YAML: DeepSpeed's keys beside Megatron's, in one flat mapping.

Source of the keys: megatron/neox_arguments (neox_args.py, deepspeed_args.py, arguments.py) of gpt-neox 2.0. Keys are
written with hyphens or with underscores. Several such files make one job; each is also a job of its own here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from preflight.job import WHOLE_JOB, Known, Plain, Scope, Value, as_int, lift
from preflight.lazy.patterns import lazy_pattern
from preflight.sources import deepspeed_claims
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.comments import suppressions
from preflight.sources.structured import Kind, Node, NodeStating, document_of, value_of

_HEAD = 20_000
#: Keys at the top of a file that no other YAML of the field has there.
_OWN = lazy_pattern(
    r"^[ \t{]{0,4}[\"']?(?:pipe[-_]parallel[-_]size|zero_optimization|train_micro_batch_size_per_gpu"
    r"|checkpoint[-_]factor)[\"']?[ \t]*:",
    re.MULTILINE,
)
_NUMBERS = {
    "model_parallel_size": "tensor_parallel_size",
    "context_parallel_size": "context_parallel_size",
    "moe_expert_parallel_size": "expert_parallel_size",
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "ffn_hidden_size",
    "num_attention_heads": "attention_heads",
    "num_kv_heads": "query_groups",
    "seq_length": "sequence_length",
    "moe_num_experts": "num_experts",
    "train_iters": "train_steps",
    "checkpoint_factor": "save_interval",
    "keep_last_n_checkpoints": "checkpoints_kept",
}
_PATHS = {"save": "checkpoint_path", "load": "resume_path", "vocab_file": "input_file", "merge_file": "input_file"}
_FORMATS = {"fp16": "fp16", "bfloat16": "bf16", "fp32": "fp32"}


class GptNeoxSource:
    """Reads one configuration of gpt-neox, or a piece of one."""

    name = "gpt-neox"
    roles = ()

    def recognises(self, file: SourceFile) -> bool:
        """Whether it is YAML with keys that only gpt-neox has at the top."""
        return file.path.lower().endswith((".yml", ".yaml")) and _OWN.search(file.text[:_HEAD]) is not None

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State DeepSpeed's part as DeepSpeed's, and sizes of the model and of its parallel parts."""
        document = document_of(file)
        stating = NodeStating(file, "gpt-neox", scope)
        notes = tuple(stating.notes(document))
        if document.root is None or document.root.kind is not Kind.OBJECT:
            return Reading(notes=notes, suppressions=suppressions(file))
        root = _underscored(document.root)
        own = NodeStating(file, "deepspeed", scope)
        deepspeed_claims.state(own, root, of_others=True)
        _state(stating, root)
        return Reading((*own.claims, *stating.claims), notes=notes, suppressions=suppressions(file))


def _underscored(root: Node) -> Node:
    return replace(root, members=tuple(replace(item, key=item.key.replace("-", "_")) for item in root.members))


def _state(stating: NodeStating, root: Node) -> None:
    for key, quantity in _NUMBERS.items():
        stating.given(quantity, root.member(key), as_int)
    for key, quantity in _PATHS.items():
        stating.given(quantity, root.member(key), _over(str))
    # Without a pipeline it is 0, which is one stage as well.
    stating.given("pipeline_parallel_size", root.member("pipe_parallel_size"), _over(_at_least_one))
    stating.given("mixed_precision", root.member("precision"), _over(lambda item: _FORMATS.get(str(item), str(item))))
    stating.given("gated_feed_forward", root.member("activation"), _over(lambda item: str(item) in ("swiglu", "geglu")))
    stating.given("recompute", root.member("checkpoint_activations"), _over(lambda item: "full" if item else "none"))
    allreduce = root.member("fp32_allreduce")
    if allreduce is not None and value_of(allreduce.node) == Known(True):
        stating.say("communication_data_type", Known("fp32"), allreduce)


def _over(function: Callable[[Plain], Plain]) -> Callable[[Value], Value]:
    return lambda value: lift(function, value)


def _at_least_one(item: Plain) -> Plain:
    return max(int(str(item)), 1)

"""gpt-neox's YAML: DeepSpeed's keys beside Megatron's, in one flat mapping.

Source of the keys: megatron/neox_arguments (neox_args.py, deepspeed_args.py, arguments.py) of gpt-neox 2.0. Keys are
written with hyphens or with underscores. Several such files make up one job; here each is also a separate job.
"""

from __future__ import annotations

import re
from dataclasses import replace

from preflight.model.job import Known, lift
from preflight.sources.configs import deepspeed_claims
from preflight.sources.configs.frameworks.table import Framework, Key, as_path, at_least_one, map_alternatives
from preflight.sources.formats.structured import Node, NodeClaims, value_of

_FORMATS = {"fp16": "fp16", "bfloat16": "bf16", "fp32": "fp32"}
_KEYS = (
    Key("model_parallel_size", "tensor_parallel_size"),
    Key("context_parallel_size", "context_parallel_size"),
    Key("moe_expert_parallel_size", "expert_parallel_size"),
    Key("num_layers", "num_layers"),
    Key("hidden_size", "hidden_size"),
    Key("intermediate_size", "ffn_hidden_size"),
    Key("num_attention_heads", "attention_heads"),
    Key("num_kv_heads", "query_groups"),
    Key("seq_length", "sequence_length"),
    Key("moe_num_experts", "num_experts"),
    Key("train_iters", "train_steps"),
    Key("checkpoint_factor", "save_interval"),
    Key("keep_last_n_checkpoints", "checkpoints_kept"),
    Key("save", "checkpoint_path", as_path),
    Key("load", "resume_path", as_path),
    # Without a pipeline it is 0, which also means one stage.
    Key("pipe_parallel_size", "pipeline_parallel_size", at_least_one),
    Key("precision", "mixed_precision", map_alternatives(lambda item: _FORMATS.get(str(item), str(item)))),
    Key("activation", "gated_feed_forward", map_alternatives(lambda item: str(item) in ("swiglu", "geglu"))),
    Key("checkpoint_activations", "recompute", map_alternatives(lambda item: "full" if item else "none")),
)


def _with_underscores(root: Node) -> Node:
    return replace(root, members=tuple(replace(item, key=item.key.replace("-", "_")) for item in root.members))


def _also(node_claims: NodeClaims, root: Node) -> None:
    for key in ("vocab_file", "merge_file"):
        node_claims.add_member("input_file", root.member(key), lambda value: lift(str, value))
    allreduce = root.member("fp32_allreduce")
    if allreduce is not None and value_of(allreduce.node) == Known(True):
        node_claims.add("communication_data_type", Known("fp32"), allreduce)
    own = NodeClaims(node_claims.file, "deepspeed", node_claims.scope)
    deepspeed_claims.state(own, root, of_others=True)
    node_claims.claims[:0] = own.claims


GPT_NEOX = Framework(
    name="gpt-neox",
    suffixes=(".yml", ".yaml"),
    signs=(
        # Top-level keys that no other YAML of the field has.
        re.compile(
            r"^[ \t{]{0,4}[\"']?(?:pipe[-_]parallel[-_]size|zero_optimization|train_micro_batch_size_per_gpu"
            r"|checkpoint[-_]factor)[\"']?[ \t]*:",
            re.MULTILINE,
        ),
    ),
    keys=_KEYS,
    normal=_with_underscores,
    also=_also,
    head=20_000,
)

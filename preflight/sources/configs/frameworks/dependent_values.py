"""Values that depend on several keys of a framework's configuration, and spellings of keys that it accepts."""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace

from preflight._util.secret_names import is_secret
from preflight.model.job import Known, lift
from preflight.sources.configs import deepspeed_claims
from preflight.sources.configs.frameworks.table import GATED, as_count
from preflight.sources.configs.setting_claims import state_settings
from preflight.sources.formats.structured import Kind, Node, NodeClaims, value_of

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
    deepspeed_claims.state(own, root, of_others=True)
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

"""The arguments of Hugging Face's trainer, of PaddleNLP's and of FSDP, and their claims, whichever file or line they
come from.

Source: accelerate/utils/dataclasses.py (FullyShardedDataParallelPlugin), utils/constants.py and commands/launch.py,
accelerate 1.15; transformers/training_args.py (fsdp, fsdp_config), transformers 5.23.

The table is `hugging_face.toml`. The arguments of Paddle's trainers are stated as `setting.paddlenlp.NAME`, and rules
read them only where such a trainer is started.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from preflight._util import toml
from preflight.model.job import Known, Plain, Value
from preflight.sources.formats.structured import Member, NodeClaims
from preflight.sources.value_readers import READERS, Reader, as_bool, ordinal_or

_TABLE = toml.load(Path(__file__).with_name("hugging_face.toml"))
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

"""Prints the values that LightningCLI's parser accepts for each argument of the trainer, by the types in the trainer's
signature.
"""

import json
import sys
import types
import typing

from lightning.pytorch import Trainer

#: The parser also reads texts that spell the value.
SPELLED = {int: "[+-]?[0-9]+", float: "[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?", bool: "(?i:true|false|yes|no|on|off|y|n)"}
NAMES = {int: ["integer"], float: ["number", "integer"], bool: ["boolean"], str: ["string"], list: ["array"]}
#: Taken as an object of a class, or as a mapping of the arguments of one.
OPEN = ("callbacks", "logger", "plugins", "profiler", "strategy", "accelerator", "devices", "precision", "max_time")


def options(kind):
    """Return the types of a union without duplicates."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [item for one in typing.get_args(kind) for item in options(one)]
    return [kind]


def rows():
    """Yield one row for each argument whose types have JSON names."""
    for name, kind in typing.get_type_hints(Trainer.__init__).items():
        found, patterns = [], []
        for one in options(kind):
            plain = typing.get_origin(one) or one
            if plain is typing.Literal:
                patterns.extend(word for word in typing.get_args(one) if isinstance(word, str))
                found.append("string")
            elif plain in NAMES:
                found.extend(NAMES[plain])
                patterns.append(SPELLED.get(plain, ""))
            elif plain is not type(None):
                found.append("")
        if name in OPEN or name == "return" or "" in found:
            continue
        row = {"key": name, "kind": "json", "types": [*dict.fromkeys([*found, "string"])], "nullable": True}
        if "string" not in found or all(patterns):
            row["pattern"] = f"^(?:{'|'.join(pattern for pattern in patterns if pattern)})$"
        yield row


json.dump(list(rows()), sys.stdout)

"""Prints Megatron-LM's options: kind, choices, and whether a value follows."""

import json
import sys

import megatron_validator

#: Options that have more choices in 0.18.2 or 0.19.0.
EXTENDED = ("position_embedding_type", "optimizer", "moe_router_load_balancing_type")
KINDS = {int: "whole", float: "decimal"}


def main():
    made = []
    for action in megatron_validator.PARSER._actions:
        for spelling in action.option_strings:
            if not spelling.startswith("--"):
                continue
            row = {"key": spelling[2:].replace("-", "_"), "kind": "any"}
            if action.nargs == 0:
                row["kind"] = "flag"
            elif action.nargs is None:
                row["kind"] = KINDS.get(action.type, "given")
                choices = [getattr(item, "name", str(item)) for item in action.choices or ()]
                if choices:
                    row.update(kind="given", choices=choices)
            elif action.nargs == "+" and action.type is str and action.choices:
                row.update(kind="words", choices=list(action.choices))
            if "choices" in row:
                # Earlier releases have others, so only a job that pins this one or a newer one gets an error.
                row.update({"since": "0.16"} | ({"until": "0.16"} if row["key"] in EXTENDED else {}))
            if not any(other["key"] == row["key"] for other in made):
                made.append(row)
    json.dump(made, sys.stdout)


main()

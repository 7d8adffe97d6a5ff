"""Prints Megatron-LM's options: kind, choices, and whether a value follows."""

import json
import sys

import megatron_validator

KINDS = {int: "whole", float: "decimal"}


def main():
    """Print one row for each option."""
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
                    # Other releases have others, so only a job that pins this one gets an error.
                    row.update(kind="given", choices=choices, since="0.16")
            if not any(other["key"] == row["key"] for other in made):
                made.append(row)
    json.dump(made, sys.stdout)


main()

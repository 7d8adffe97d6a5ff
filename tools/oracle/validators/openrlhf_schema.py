"""Prints the options of OpenRLHF's `train_ppo_ray`: kind, choices, and whether a value follows."""

import argparse
import json
import sys

import openrlhf_validator

KINDS = {int: "whole", float: "decimal", str: "given"}
PARSERS = []


class Built(Exception):
    """The program's parser is complete."""


def keep(parser, *given):
    PARSERS.append(parser)
    raise Built


def main():
    argparse.ArgumentParser.parse_args = keep
    try:
        exec(openrlhf_validator.PROGRAM, {"__name__": "__main__"})
    except Built:
        pass
    made = []
    for action in PARSERS[0]._actions:
        for spelling in action.option_strings:
            if not spelling.startswith("--"):
                continue
            row = {"key": spelling[2:].replace("-", "_"), "kind": "any"}
            if action.nargs == 0:
                row["kind"] = "flag"
            elif action.nargs is None:
                row["kind"] = KINDS.get(action.type, "given")
                if action.choices:
                    # Other releases have others, so only a job that pins this one gets an error.
                    row.update(choices=list(action.choices), since="0.11")
            made.append(row)
    json.dump(made, sys.stdout)


main()

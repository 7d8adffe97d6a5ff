"""Parses the configuration of a case as `dstack apply` does before it asks its server."""

import contextlib

from dstack._internal.cli.services.configurators import load_apply_configuration
from verdict_lines import main


def validate(case):
    """Raise what dstack raises."""
    load_apply_configuration(case["command"][0])


if __name__ == "__main__":
    main(validate, contextlib.nullcontext, same_here=True)

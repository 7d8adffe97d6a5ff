"""Reads the task of a case as `sky launch` does before it asks its server."""

import contextlib
import os

os.environ["SKYPILOT_DISABLE_USAGE_COLLECTION"] = "1"

from sky.utils import dag_utils
from verdict_lines import main


def validate(case):
    """Raise what SkyPilot raises while it reads the task."""
    dag_utils.load_chain_dag_from_yaml(case["command"][0])


if __name__ == "__main__":
    main(validate, contextlib.nullcontext, same_here=True)

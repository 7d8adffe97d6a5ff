"""Evaluates shell scripts abstractly: constants are folded, branches are joined, nothing is executed.

Modules in import order: `shell_document` and `words` (text with its location in files), `state` (variables, functions,
directory), `abstract_machine` (one evaluation: results and limits), `expansion` (words to values), `statements`
(control flow and commands), `evaluator` (entry points). The other modules cover one subject each and are imported by
these.
"""

from __future__ import annotations

from preflight.model.job.value import (
    ALLOCATED_HOSTS,
    FIRST_ALLOCATED_ADDRESS,
    FIRST_ALLOCATED_HOST,
    JOB_ID,
    RANDOM_NUMBER,
    THIS_ADDRESS,
    THIS_HOST,
    Symbol,
    symbols_in,
)
from preflight.sources.shell.evaluator import evaluate

__all__ = [
    "ALLOCATED_HOSTS",
    "FIRST_ALLOCATED_ADDRESS",
    "FIRST_ALLOCATED_HOST",
    "JOB_ID",
    "RANDOM_NUMBER",
    "THIS_ADDRESS",
    "THIS_HOST",
    "Symbol",
    "evaluate",
    "symbols_in",
]

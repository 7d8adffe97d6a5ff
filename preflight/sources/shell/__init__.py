"""Reads shell scripts by abstract evaluation: constants fold, branches join, nothing is executed."""

from __future__ import annotations

from preflight.job.symbols import (
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
from preflight.sources.shell.evaluate import evaluate

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

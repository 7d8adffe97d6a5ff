"""Preflight's own rules, each of which judges a job only from its claims.

A rule is a function under `@rule` in any module of this package, and its cases in `tests/rules/cases`. `PACK` finds the
modules by their file names and imports none of them.
"""

from __future__ import annotations

from pathlib import Path

from preflight._util import toml
from preflight.plugins.pack import Pack, modules

PACK = Pack(items=modules(__name__, str(Path(__file__).parent)), areas=toml.beside(__file__, "data/areas.toml"))

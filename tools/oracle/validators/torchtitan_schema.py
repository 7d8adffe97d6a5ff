"""Prints the keys of torchtitan's configuration. Its parser looks at no value of a TOML file, so they have no kind."""

import dataclasses
import json
import sys
import typing

import torchtitan_validator  # noqa: F401 - makes the package importable
from torchtitan.config.job_config import JobConfig


def rows(above, owner):
    """Yield the rows of a section and its subsections."""
    hints = typing.get_type_hints(owner)
    for field in dataclasses.fields(owner):
        key = f"{above}.{field.name}" if above else field.name
        section = dataclasses.is_dataclass(hints[field.name])
        yield {"key": key, "closed": section}
        if section:
            yield from rows(key, hints[field.name])


json.dump(list(rows("", JobConfig)), sys.stdout)

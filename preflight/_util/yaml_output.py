"""Writes YAML as people do: in block style, with texts of several lines as such and without aliases."""

from __future__ import annotations

import functools
from typing import Any


def to_yaml(value: Any, *, width: int) -> str:
    """Return a value as YAML. Raises yaml.YAMLError or ValueError for characters, RecursionError for nesting."""
    import yaml

    return str(
        yaml.dump(value, Dumper=_dumper(), sort_keys=False, default_flow_style=False, allow_unicode=True, width=width)
    )


@functools.cache
def _dumper() -> Any:
    import yaml

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(base):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, data: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)

    Dumper.add_representer(str, text)
    return Dumper

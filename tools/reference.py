"""Pages of the site that are generated from code: the keys of a configuration file, and the formats of reports."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from preflight.config import document as settings
from preflight.plugins import registry

#: Names of JSON Schema types on the page.
_TYPES = {"string": "text", "boolean": "true or false", "array": "list", "object": "table", "null": ""}


def pages() -> dict[str, str]:
    """Return the text of each page by its path below docs/."""
    return {"reference/configuration-keys.md": configuration_keys(), "reference/formats.md": formats()}


def configuration_keys() -> str:
    schema = settings.schema()
    lines = [
        "# Keys of the configuration",
        "",
        "Of `preflight.toml`, or of `[tool.preflight]` in `pyproject.toml`; from the schema that",
        "`preflight schema config` prints. [Configuration](../configuration.md) describes how they work together.",
        "",
        *_table(schema),
    ]
    for name, inner in sorted(schema.get("$defs", {}).items()):
        if "properties" in inner:
            lines += ["", f"## `[[{name.lower()}]]`", "", inner.get("description", ""), "", *_table(inner)]
    return "\n".join(lines) + "\n"


def formats() -> str:
    lines = ["# Formats", "", "What `--output FORMAT[:FILE]` takes; repeatable, one report on standard output."]
    for item in sorted(registry.load(registry.REPORTERS).items, key=lambda item: item.name):
        described = inspect.getdoc(sys.modules[type(item).__module__]) or ""
        lines += ["", f"## `{item.name}`", "", described]
    return "\n".join(lines) + "\n"


def _table(schema: dict[str, Any]) -> list[str]:
    rows = ["| key | value | meaning |", "|---|---|---|"]
    for key, value in sorted(schema["properties"].items()):
        needed = ", needed" if key in schema.get("required", ()) else ""
        rows.append(f"| `{key}` | {_kind(value)}{needed} | {value.get('description', '')} |")
    return rows


def _kind(value: dict[str, Any]) -> str:
    """Return the type of a key in words."""
    if "anyOf" in value:
        return " or ".join(filter(None, map(_kind, value["anyOf"])))
    if "enum" in value:
        return ", ".join(f"`{one}`" for one in value["enum"])
    if value.get("type") == "array":
        inner = value["items"]
        return f"list of {inner['$ref'].rpartition('/')[2].lower()} tables" if "$ref" in inner else "list of strings"
    if value.get("type") == "object":
        inner = value.get("additionalProperties")
        return f"table of {_kind(inner)}" if isinstance(inner, dict) else "table"
    return value.get("format") or _TYPES.get(value.get("type", ""), str(value.get("type", "")))

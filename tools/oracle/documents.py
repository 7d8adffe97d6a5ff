"""Writes configurations as text, with the line of every key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

Lines = dict[str, int]


class Words(list[Any]):
    """Values of an option that takes several words."""


def flat(settings: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every key that is not a section, joined by dots, with its value."""
    for key, value in settings.items():
        path = f"{above}.{key}" if above else key
        if isinstance(value, dict):
            yield from flat(value, path)
        else:
            yield path, value


def json_text(settings: dict[str, Any]) -> tuple[str, Lines]:
    """Return JSON with one key per line, and the line of each key (joined by dots), from 1."""
    rows, lines = ["{"], Lines()
    _json(settings, "", "  ", rows, lines)
    return "\n".join([*rows, "}", ""]), lines


def _json(section: dict[str, Any], above: str, indent: str, rows: list[str], lines: Lines) -> None:
    for number, (key, value) in enumerate(section.items()):
        path = f"{above}.{key}" if above else key
        comma = "," if number + 1 < len(section) else ""
        lines[path] = len(rows) + 1
        if isinstance(value, dict) and value:
            rows.append(f"{indent}{json.dumps(key)}: {{")
            _json(value, path, indent + "  ", rows, lines)
            rows.append(f"{indent}}}{comma}")
        else:
            rows.append(f"{indent}{json.dumps(key)}: {json.dumps(value)}{comma}")


def yaml_text(settings: dict[str, Any]) -> tuple[str, Lines]:
    """Return YAML with one key per line, and the line of each key (joined by dots), from 1."""
    rows, lines = list[str](), Lines()
    _yaml(settings, "", "", rows, lines)
    return "\n".join([*rows, ""]), lines


def _yaml(section: dict[str, Any], above: str, indent: str, rows: list[str], lines: Lines) -> None:
    for key, value in section.items():
        path = f"{above}.{key}" if above else key
        lines[path] = len(rows) + 1
        if isinstance(value, dict) and value:
            rows.append(f"{indent}{key}:")
            _yaml(value, path, indent + "  ", rows, lines)
        else:
            word = yaml.safe_dump({"x": value}, default_flow_style=True, width=10_000).strip()
            rows.append(f"{indent}{key}: {word[len('{x: ') : -1]}")


def toml_text(settings: dict[str, Any]) -> tuple[str, Lines]:
    """Return TOML with one key per line, without keys that are None, and the line of each key."""
    rows, lines = list[str](), Lines()
    _toml(settings, "", rows, lines)
    return "\n".join([*rows, ""]), lines


def _toml(section: dict[str, Any], above: str, rows: list[str], lines: Lines) -> None:
    plain = {key: value for key, value in section.items() if not isinstance(value, dict) and value is not None}
    for key, value in plain.items():
        lines[f"{above}.{key}" if above else key] = len(rows) + 1
        rows.append(f"{key} = {json.dumps(value)}")
    for key, value in section.items():
        if isinstance(value, dict):
            path = f"{above}.{key}" if above else key
            lines[path] = len(rows) + 1
            rows.append(f"[{path}]")
            _toml(value, path, rows, lines)


def keywords_text(template: str, settings: dict[str, Any]) -> tuple[str, Lines]:
    """Return a script whose line `{settings}` is replaced by keyword arguments, and the line of each key."""
    before, _, after = template.partition("{settings}\n")
    given = {key: value for key, value in settings.items() if key.isidentifier()}
    rows = "".join(f"    {key}={value!r},\n" for key, value in given.items())
    return before + rows + after, {key: number for number, key in enumerate(given, start=before.count("\n") + 1)}


def flat_words(settings: dict[str, Any]) -> dict[str, Any]:
    """Return options whose sections are joined by dots, with lists as several words."""
    return {key: Words(value) if isinstance(value, list) else value for key, value in flat(settings)}


def overrides_text(before: str, settings: dict[str, Any]) -> tuple[str, Lines]:
    """Return a command over several lines, with one Hydra override (`section.key=value`) per line."""
    rows, lines = [before], Lines()
    for key, value in flat(settings):
        rows.append(f"  {key}={_override(value)}")
        lines[key] = len(rows)
    return " \\\n".join(rows) + "\n", lines


def _override(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"'[{','.join(map(str, value))}]'"
    text = str(value)
    return f"'{text}'" if any(sign in text for sign in " $~*") else text


def flags_text(before: str, settings: dict[str, Any], after: str = "") -> tuple[str, Lines]:
    """Return a command over several lines, one option each. True is a bare option; None and False are left out."""
    rows, lines = [before], Lines()
    for key, value in settings.items():
        if value is None or value is False:
            continue
        rows.append(f"  --{key}" if value is True else f"  --{key} {_word(value)}")
        lines[key] = len(rows)
    if after:
        rows.append(f"  {after}")
    return " \\\n".join(rows) + "\n", lines


def _word(value: Any) -> str:
    if isinstance(value, Words):
        return " ".join(_word(item) for item in value)
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"'{text}'" if not text or any(sign in text for sign in ' {}"[]*<>') else text

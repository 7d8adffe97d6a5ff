"""Conditions and kinds of the tables that settings are judged by."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path
from typing import Any

import pytest

from preflight._util import toml
from preflight.model.job import WHOLE_JOB, Claim, Known, Plain, Span
from preflight.sources.conditions import UnknownValue, holds, parse_condition
from preflight.sources.kubernetes.operators import SHAPES
from preflight.sources.python import called_settings
from preflight_rules.settings import tables
from preflight_rules.settings.tables import Setting, expected_values, framework, in_range, reads, row_of, settings
from preflight_rules.settings.unknown_settings import NearestNames


def value_of(known: dict[str, Any]) -> Any:
    def lookup(key: str) -> Any:
        if key == "open":
            raise UnknownValue(key)
        return known.get(key)

    return lookup


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b and c == 2", True),
        ("a.b and c > 2", False),
        ("missing is None", True),
        ("given_or(missing, 8) * c == 16", True),
        ("c not in (1, 3)", True),
        ("rises(pair)", True),
        ("rises(level)", False),
        ("rises(c)", False),
        # One part decides it, whatever the other is.
        ("open or c == 2", True),
        ("open and c == 3", False),
    ],
)
def test_a_condition(text: str, expected: bool) -> None:
    assert holds(text, value_of({"a.b": True, "c": 2, "pair": (0.2, 0.3), "level": (1, 1)})) is expected


@pytest.mark.parametrize("text", ["open == 1", "open and c == 2", "not open", "c + 'x' == 1", "c < 'x'", "c % 0 == 0"])
def test_a_condition_on_an_unknown_value_is_unknown(text: str) -> None:
    with pytest.raises(UnknownValue):
        holds(text, value_of({"c": 2}))


def test_nothing_but_conditions_is_evaluated() -> None:
    with pytest.raises((ValueError, KeyError)):
        holds("[x for x in (1, 2)]", value_of({}))
    with pytest.raises((ValueError, KeyError)):
        holds("open_file('x')", value_of({}))


@pytest.mark.parametrize(
    ("setting", "value", "taken"),
    [
        (Setting("k", "int", minimum=0), "8", True),
        (Setting("k", "int", minimum=0), 5e8, True),
        (Setting("k", "int", minimum=0), "5e8", False),
        (Setting("k", "int", minimum=0), -1, False),
        (Setting("k", "int"), 2.5, False),
        (Setting("k", "bool"), "yes", True),
        (Setting("k", "bool"), 2, False),
        (Setting("k", "bool"), None, False),
        (Setting("k", "bool", nullable=True), None, True),
        (Setting("k", "float", maximum=1), 1.5, False),
        (Setting("k", "str", choices=("cpu", "none")), "gpu", False),
        (Setting("k", "int", choices=(0, 1, 2, 3)), "2", True),
        (Setting("k", "section"), "x", False),
    ],
)
def test_a_value_of_a_kind(setting: Setting, value: Plain, taken: bool) -> None:
    assert (expected_values(setting, value) == "") is taken


@pytest.mark.parametrize(
    ("version", "since", "until", "expected"),
    [
        ("0.19.8", "0.19.8", "", True),
        ("0.16.9", "0.19.8", "", False),
        ("5.24.0", "", "4.57.1", False),
        ("4.36.2", "", "4.57.1", True),
        ("4.57.1.post1", "", "4.57.1", True),
        ("2.10.0rc1", "2.10.0", "", False),
        ("2.10", "2.10.0", "", True),
        ("", "5.0", "", None),
        ("", "", "", True),
    ],
)
def test_a_release_in_a_range(version: str, since: str, until: str, expected: bool | None) -> None:
    assert in_range(version, since, until) is expected


def keys_of(text: str) -> set[str]:
    """Every key that a condition names, with the sections above it."""
    return {
        ast.unparse(node) for node in ast.walk(parse_condition(text)) if isinstance(node, (ast.Name, ast.Attribute))
    }


#: What a row may blame beside keys of its condition: the place itself.
_PLACES = {"(any)", "(call)", "(parser)", "ds.(any)", "function", "job.setting.paddle_minimize.(call)"}

#: Rows about a key that is missing, or about what the program does, blame an argument that is there.
_BLAMED_INSTEAD = {
    "primus",
    "xtuner_trainer",
    "xtuner_rl",
    "torch_ddp",
    "torch_sampler",
    "torch_split",
    "volcano_policy",
}
_BLAMED_INSTEAD |= {"tf_function", "torchrec_table"}


def test_every_row_of_the_refusals_blames_keys_of_its_condition() -> None:
    rows = tables.all_refusals()
    assert len(rows) > 3000
    for row in rows:
        keys = keys_of(row.when)
        places = keys | _PLACES | {key.rpartition(".")[0] for key in keys}
        assert row.known or set(row.at) & places or row.of in _BLAMED_INSTEAD, row.when
        assert row.source
        assert row.remedy.endswith(".")
        assert not row.why.endswith(".")


@pytest.mark.parametrize("framework", ["deepspeed", "accelerate", "transformers"])
def test_every_condition_of_a_setting_can_be_parsed(framework: str) -> None:
    for setting in settings(framework).values():
        assert not setting.when or keys_of(setting.when)


def test_only_the_first_unknown_names_of_a_file_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def close(name: str, *_: Any, **__: Any) -> list[str]:
        asked.append(name)
        return ["known"]

    monkeypatch.setattr(difflib, "get_close_matches", close)
    names = NearestNames()
    at = Claim("setting.megatron.x", Known(1), Span("run.sh", 1, 1, 1, 2), "--x", "megatron", WHOLE_JOB)
    found = [names.nearest(at, "Megatron-LM", f"name{number}", tuple) for number in range(100)]
    assert asked == [f"name{number}" for number in range(20)]
    assert found == ["known"] * 20 + [""] * 80
    # A name that several launches give is compared once.
    assert names.nearest(at, "Megatron-LM", "name3", tuple) == "known"
    assert len(asked) == 20


@pytest.mark.parametrize(
    ("text", "item", "expected"),
    [
        ("descends(x)", "8..1", True),
        ("descends(x)", "H100:64GB..8GB:8", True),
        ("descends(x)", "1..8", False),
        ("descends(x)", "512MB..1GB", False),
        ("all_match(x, '[0-9]+')", (8000, "6006"), True),
        ("all_match(x, '[0-9]+')", ("http",), False),
        ("are_unique(first_parts(x, '='))", ("A=1", "A=2"), False),
        ("are_unique(first_parts(x, '='))", ("A=1", "B=1"), True),
    ],
)
def test_conditions_on_lists_and_ranges(text: str, item: Plain, expected: bool) -> None:
    assert holds(text, value_of({"x": item})) is expected


def test_no_pattern_is_held_against_a_long_text() -> None:
    with pytest.raises(UnknownValue):
        holds("matches(x, '(a*)*b')", value_of({"x": "a" * 5000}))


@pytest.mark.parametrize(
    ("setting", "value", "taken"),
    [
        (Setting("n", "json", types=("integer",), minimum=1), 2, True),
        (Setting("n", "json", types=("integer",), minimum=1), 0, False),
        (Setting("n", "json", types=("integer",)), "2", False),
        (Setting("n", "json", types=("integer",)), True, False),
        (Setting("n", "json", types=("string", "integer"), pattern="^[0-9]+GB$"), "64GB", True),
        (Setting("n", "json", types=("string", "integer"), pattern="^[0-9]+GB$"), "big", False),
        (Setting("n", "json", types=("string",), choices=("MOUNT",)), "mount", True),
        (Setting("n", "json", types=("string",)), None, False),
        (Setting("n", "json", types=("string",), nullable=True), None, True),
    ],
)
def test_a_value_of_a_json_type(setting: Setting, value: Plain, taken: bool) -> None:
    assert (expected_values(setting, value) == "") is taken


def test_sections_of_lists_and_mounts_share_rows() -> None:
    known = settings("skypilot")
    assert row_of(known, "resources.any_of.item1.cpus") is known["resources.any_of.item.cpus"]
    assert row_of(known, "file_mounts./ckpt.mode") is known["file_mounts.*.mode"]
    assert row_of(known, "resources.labels.team") is known["resources.labels.*"]
    assert row_of(known, "resources.cpu") is None


def test_every_row_of_refusals_is_in_a_file_of_its_framework() -> None:
    folder = Path(tables.__file__).parents[1] / "data" / "refusals"
    files = {path.stem: toml.load(path)["code"] for path in sorted(folder.glob("*.toml"))}
    assert len(files) > 30
    for file, rows in files.items():
        for row in rows:
            for name in row["of"] if isinstance(row["of"], list) else [row["of"]]:
                known = framework(name)
                assert known is not None, (file, name)
                assert file in known.refusals, (file, name)


def test_every_name_of_settings_that_a_source_gives_is_a_framework() -> None:
    table = called_settings.calls()
    calls = (*table.paddle, *table.families, *table.torch)
    objects = [name for shape in SHAPES.values() for name in (shape.framework, *shape.parts.values())]
    assert len(calls) > 90 and len(objects) > 20
    assert [name for name in (*calls, *objects) if framework(name) is None] == []
    assert [name for name in objects if not reads(name, "object")] == []

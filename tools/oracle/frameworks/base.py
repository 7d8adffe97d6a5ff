"""The description of a framework that the oracle needs."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from tools.oracle.cases import Case, Change, located
from tools.oracle.documents import (
    Lines,
    flags_text,
    flat,
    flat_words,
    json_text,
    keywords_text,
    overrides_text,
    toml_text,
    yaml_text,
)
from tools.oracle.mutation import NUMBERS, apply, mutants

SEEDS = Path(__file__).parents[1] / "seeds"


@dataclass(frozen=True, slots=True)
class Seed:
    """A valid configuration. `form` is its file format; `settings` are its keys and values, in sections."""

    form: str
    settings: dict[str, Any]


class _Loader(yaml.CSafeLoader):
    """YAML in which `!tuple [1, 2]` is a tuple."""


_Loader.add_constructor("!tuple", lambda loader, node: tuple(loader.construct_sequence(node)))  # type: ignore[arg-type]


@functools.cache
def _document(name: str) -> dict[str, Any]:
    text = (SEEDS / f"{name}.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = yaml.load(text, _Loader)
    return document


def seeds(name: str) -> tuple[Seed, ...]:
    """Return the valid configurations in `tools/oracle/seeds/NAME.yaml`.

    A row has its own settings, and those of the row that it names in `from`, except the keys in `without`. The keys of
    sections may be joined by dots. A row without `form` is only a base for other rows.
    """
    result: dict[str, dict[str, Any]] = {}
    found: list[Seed] = []
    for row in _document(name)["seeds"]:
        settings = copy.deepcopy(result[row["from"]]) if "from" in row else {}
        for key in row.get("without", ()):
            apply(settings, Change(key, "removed"))
        for key, value in row["settings"].items() if "settings" in row else ():
            apply(settings, Change(key, "value", value))
        result[row.get("name", "")] = settings
        if "form" in row:
            found.append(Seed(row["form"], settings))
    return tuple(found)


def space(name: str) -> dict[str, dict[str, tuple[Any, ...]]]:
    """Return the values to try by format and key (joined by dots), from `tools/oracle/seeds/NAME.yaml`."""
    forms = _document(name)["space"]
    return {form: {key: tuple(values) for key, values in flat(keys)} for form, keys in forms.items()}


@dataclass(frozen=True, slots=True)
class Framework:
    """One framework at a pinned version.

    Args:
        name: as on the command line.
        distribution: as on the package index.
        requirements: what pip installs, with all dependencies.
        alone: what pip installs without dependencies (`--no-deps`), because they would take gigabytes.
        environment: an environment of the project that already holds the release, relative to its root; empty if none.
        needs_torch: whether the environment sees the torch of the tests.
        validator: the program in `tools/oracle/validators` for the framework.
        space: for each format, values to try by key.
        render: writes the files and the launch line of a configuration.
        keep: keys that are not changed.
        numbers: replacements for the numbers of a valid configuration.
        sections: sections whose keys are tried only if a configuration has them.
    """

    name: str
    distribution: str
    version: str
    requirements: tuple[str, ...]
    validator: str
    seeds: tuple[Seed, ...]
    space: Mapping[str, Mapping[str, tuple[Any, ...]]]
    render: Callable[[str, dict[str, Any]], Case]
    alone: tuple[str, ...] = ()
    environment: str = ""
    needs_torch: bool = True
    keep: frozenset[str] = frozenset()
    numbers: tuple[int, ...] = NUMBERS
    sections: frozenset[str] = frozenset()

    def cases(self, number: int, random_seed: int) -> Iterator[Case]:
        """Yield the valid configurations and about `number` changed ones."""
        draw = random.Random(random_seed)
        seen: set[str] = set()
        each = max(1, number // len(self.seeds))
        for seed in self.seeds:
            drawn = mutants(
                seed.settings,
                {key: values for key, values in self.space[seed.form].items() if self._fits(seed, key)},
                number=each,
                random_seed=draw.randrange(2**32),
                keep=self.keep,
                numbers=self.numbers,
            )
            for settings, changes in ((seed.settings, ()), *drawn):
                case = located(replace(self.render(seed.form, settings), changes=changes))
                if case.id not in seen:
                    seen.add(case.id)
                    yield case

    def _fits(self, seed: Seed, key: str) -> bool:
        """Return whether a key is worth trying: keys of a second file only if the configuration has that file."""
        root, dot, _ = key.partition(".")
        return not dot or root not in self.sections or root in seed.settings

    def with_changes(self, case: Case, changes: tuple[Change, ...]) -> Iterator[Case]:
        for seed in self.seeds:
            if seed.form != case.form:
                continue
            if self.render(case.form, _changed(seed.settings, case.changes)).id == case.id:
                yield replace(self.render(case.form, _changed(seed.settings, changes)), changes=changes)
                return


def _changed(settings: dict[str, Any], changes: tuple[Change, ...]) -> dict[str, Any]:
    result = copy.deepcopy(settings)
    for change in changes:
        apply(result, change)
    return result


def described(name: str) -> Framework:
    """Return the framework that `tools/oracle/seeds/NAME.yaml` describes.

    `files` are the same in each case or in each case of a form; a form names the file with the settings and its format.
    A section may be in a separate file, `second`, and a file may exist only if a key names it.
    """
    document = _document(name)
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in document["framework"].items()}
    given |= {key: frozenset(given[key]) for key in ("keep", "sections") if key in given}

    def render(form: str, settings: dict[str, Any]) -> Case:
        written = document["forms"][form]
        files = {**document["files"], **written.get("files", {})}
        lines: dict[str, Lines] = {}
        for path, key in written.get("named_by", {}).items():
            if settings.get(key) != path:
                del files[path]
        second = written.get("second", {"section": ""})
        own = {key: value for key, value in settings.items() if key != second["section"]}
        if second["section"] in settings:
            section = settings[second["section"]]
            files[second["file"]], found = json_text(section if isinstance(section, dict) else {})
            lines[second["file"]] = {f"{second['section']}.{key}": line for key, line in found.items()}
        path = written["file"]
        files[path], lines[path] = _written(written, own, files.get(path, ""))
        return Case(name, form, files, tuple(written.get("command", ())), lines=lines)

    return Framework(name=name, **given, seeds=seeds(name), space=space(name), render=render)


def _written(form: dict[str, str], settings: dict[str, Any], template: str) -> tuple[str, Lines]:
    """Return the settings as text, and the line of each key."""
    kind = form["format"]
    if kind in _FORMATS:
        return _FORMATS[kind](settings)
    if kind == "keywords":
        return keywords_text(template.replace("{name}", form.get("name", "")), settings)
    if kind == "overrides":
        text, lines = overrides_text(form["before"], settings)
    else:
        options = flat_words(settings) if kind == "flat_flags" else settings
        text, lines = flags_text(form["before"], options, form.get("after", ""))
    before = "#!/bin/bash\npip install -r requirements.txt\n"
    return before + text, {key: line + before.count("\n") for key, line in lines.items()}


_FORMATS = {"json": json_text, "yaml": yaml_text, "toml": toml_text}

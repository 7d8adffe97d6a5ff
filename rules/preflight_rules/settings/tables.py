"""The tables of the settings that frameworks accept (`data/settings/`) and reject (`data/refusals/`)."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

from preflight.model.job import Job, Plain
from preflight.model.job.value import SECTION, texts
from preflight.sources.tables import Generated, Row
from preflight_rules.data_tables import table

if TYPE_CHECKING:
    from packaging.version import Version


#: The pseudo-framework of a launch's variables, by name.
ENVIRONMENT = "environment"
#: The pseudo-framework of the options of a batch header.
SBATCH = "sbatch"


class Keys(NamedTuple):
    """The keys of a framework whose table lists all of them.

    Args:
        title: the owner of the keys, for messages.
        extended: whether programs add their own options, so unknown keys are reported only if the job pins the table's
            release.
        extended_by: keys that name a module of the job, which adds keys.
        flat: whether option names contain dots that do not separate sections.
        stopped: the effect of an unknown key, for messages.
        dashed: the options with an underscore, where all others have only dashes; None if unknown.
        usual: the intended keys for keys of earlier releases and other frameworks.
    """

    title: str
    extended: bool = False
    extended_by: tuple[str, ...] = ()
    flat: bool = False
    stopped: str = "every rank stops"
    dashed: frozenset[str] | None = None
    usual: Mapping[str, str] = {}


class Framework(NamedTuple):
    """One row of the table, whose head describes the fields.

    Args:
        name: the name that was looked up.
        keys: its keys; None if the table does not list all of them.
    """

    name: str
    title: str
    refusals: tuple[str, ...] = ()
    settings: str = ""
    distributions: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()
    named: str = ""
    program: str = ""
    keys: Keys | None = None


@functools.cache
def framework(name: str) -> Framework | None:
    """Return the row of a name; None if the table does not have it."""
    for row in table("frameworks")["framework"]:
        if any(fnmatchcase(name, pattern) for pattern in row["names"]):
            return _parse_framework(name, row)
    return None


def reads(name: str, how: str) -> bool:
    """Return whether a framework reads its settings in the way `how`, one of those in the table's head."""
    row = framework(name)
    return row is not None and how in row.reads


def distributions(name: str) -> tuple[str, ...]:
    """Return a framework's names in the package index; for other names, the name itself."""
    row = framework(name)
    return row.distributions if row is not None else (name,)


@functools.cache
def alias_names(name: str) -> tuple[str, ...]:
    """Return the frameworks whose settings have the name of the framework `name`."""
    rows = table("frameworks")["framework"]
    return tuple(each for row in rows if row.get("named") == name for each in row["names"])


@functools.cache
def with_all_keys() -> tuple[str, ...]:
    """Return the frameworks whose table lists every key."""
    return tuple(row["names"][0] for row in table("frameworks")["framework"] if "keys" in row)


def _parse_framework(name: str, row: dict[str, Any]) -> Framework:
    keys = row.get("keys")
    return Framework(
        name,
        row["title"],
        tuple(row.get("refusals", ())),
        row.get("settings", ""),
        tuple(row.get("distributions", (name,))),
        frozenset(row.get("reads", ())),
        row.get("named", ""),
        row.get("program", ""),
        _parse_keys({"title": row["title"], **keys}) if keys is not None else None,
    )


def _parse_keys(row: dict[str, Any]) -> Keys:
    dashed = row.pop("dashed", None)
    return Keys(
        **{**row, "extended_by": tuple(row.get("extended_by", ()))},
        dashed=frozenset(dashed) if dashed is not None else None,
    )


# The values that a framework accepts for one key, and whether a given value is one of them.
#
# The conversions are those of pydantic in its lax mode, which DeepSpeed's models use: `1` and `"yes"` are booleans,
# `"8"` and `8.0` whole numbers. Source: pydantic's conversion table (2.12).


#: Texts that pydantic and Accelerate convert to booleans, in lower case.
_TRUE_OR_FALSE = frozenset(("0", "1", "off", "on", "f", "t", "false", "true", "n", "y", "no", "yes"))


class Setting(NamedTuple):
    """One key of a framework's configuration.

    Args:
        key: with its sections, separated by dots.
        kind: `int`, `float`, `bool`, `str`, `path`, `list`, `section`; of a protobuf message `int_or_bool`,
            `bool_or_int`, `number`, `texts`, `numbers`; without any conversion `exact_bool`; of a command line `whole`,
            `decimal`, `strtobool`, `flag`, `given`; `json` for one of the types of a JSON Schema; empty for any.
        also: another kind that the key accepts.
        choices: the values that the key accepts; empty if it accepts any value of its kind.
        words: strings that the key accepts in addition to its kind (`auto`).
        minimum: the inclusive lower bound; None if there is no bound.
        above: the exclusive lower bound.
        maximum: the inclusive upper bound.
        nullable: whether null has the same effect as omitting the key.
        closed: for a section, whether a key that is not listed is rejected.
        alias: another name of the key.
        replaced_by: the key that replaced it; the two may not be combined.
        when: the condition under which the framework reads the key; empty if it always does.
        former: values that the key accepted in earlier releases.
        bool_until: the release up to which true and false count as whole numbers; empty if they always do.
        added: the first release with the key, among the releases that the table was read from; empty if all have it.
        gone: the last release with the key; empty if the newest release has it.
        since: the first release that rejects other values; empty if all known releases do.
        until: the last release that is known to reject other values; empty if it is the newest.
        types: for the kind `json`, the names of the types; empty if any type is accepted.
        pattern: for the kind `json`, a pattern that a string must contain. Choices are compared without case.
    """

    key: str
    kind: str = ""
    also: str = ""
    choices: tuple[Plain, ...] = ()
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    nullable: bool = False
    closed: bool = False
    alias: str = ""
    replaced_by: str = ""
    since: str = ""
    until: str = ""
    when: str = ""
    former: tuple[Plain, ...] = ()
    words: tuple[Plain, ...] = ()
    bool_until: str = ""
    added: str = ""
    gone: str = ""
    types: tuple[Plain, ...] = ()
    pattern: str = ""


def expected_values(setting: Setting, value: Plain) -> str:
    """Return a description of the values that a setting accepts; empty if it accepts `value`."""
    return "" if _accepts(setting, value) else _allowed_values_text(setting)


def _accepts(setting: Setting, value: Plain) -> bool:
    kind = setting.kind
    if value is None:
        return setting.nullable or not kind
    if value in setting.words:
        return True
    if kind == "json":
        return _fits_schema(setting, value)
    if kind == "words":
        words = value.split() if isinstance(value, str) else value if isinstance(value, tuple) else (value,)
        known = (*setting.choices, *setting.former)
        return isinstance(value, bool) or value == SECTION or all(word in known for word in words)
    if kind == "names":
        return not isinstance(value, str) or value in setting.choices
    if kind == "lower":
        return value is False or (isinstance(value, str) and value.lower() in setting.choices)
    if setting.choices and kind == "given":
        return str(value) in setting.choices and value is not True
    if setting.choices:
        # Whole numbers are converted before they are looked up.
        converted = _number("int", value) if kind == "int" else value
        return converted in (*setting.choices, *setting.former)
    if kind in ("int", "float"):
        number = _number(kind, value)
        return number is not None and _is_within_bounds(setting, number)
    is_of_kind = _is_of_kind(kind, value)
    if isinstance(value, int | float | str) and kind in ("whole", "number", "int_or_bool", "decimal") and is_of_kind:
        return _is_within_bounds(setting, float(value))
    return is_of_kind or (bool(setting.also) and _is_of_kind(setting.also, value))


def _json_types(value: Plain) -> tuple[str, ...]:
    """Return the JSON Schema types of a value; a number without a fraction is an integer."""
    if value == SECTION:
        return ("object",)
    if isinstance(value, bool):
        return ("boolean",)
    if isinstance(value, tuple):
        return ("array",)
    if isinstance(value, str):
        return ("string",)
    return ("integer", "number") if isinstance(value, int) or float(str(value)).is_integer() else ("number",)


def _fits_schema(setting: Setting, value: Plain) -> bool:
    types = _json_types(value)
    if setting.types and not set(types) & set(setting.types):
        return False
    if "string" in types:
        text = str(value)
        is_choice = not setting.choices or text.lower() in (str(choice).lower() for choice in setting.choices)
        return is_choice and (not setting.pattern or re.search(setting.pattern, text) is not None)
    return "number" not in types or _is_within_bounds(setting, float(str(value)))


#: Kinds of a command line, whose values are texts; argparse calls Python's own types.
_CONVERTED: dict[str, Callable[[str], object]] = {"whole": int, "decimal": float}


def _is_text_of(kind: str, value: Plain) -> bool:
    try:
        _CONVERTED[kind](str(value))
    except ValueError:
        return False
    return not isinstance(value, tuple)


def _is_plain_number(value: Plain) -> bool:
    return isinstance(value, int | float)


def _number(kind: str, value: Plain) -> float | None:
    if isinstance(value, tuple) or value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    if kind == "int" and (not number.is_integer() or (isinstance(value, str) and "e" in value.lower())):
        return None
    return number


def _is_within_bounds(setting: Setting, number: float) -> bool:
    return (
        (setting.minimum is None or number >= setting.minimum)
        and (setting.above is None or number > setting.above)
        and (setting.maximum is None or number <= setting.maximum)
    )


def _is_of_kind(kind: str, value: Plain) -> bool:
    if kind == "bool":
        return (
            isinstance(value, bool) or value in (0, 1) or (isinstance(value, str) and value.lower() in _TRUE_OR_FALSE)
        )
    if kind in ("truth", "strtobool"):
        return str(value).lower() in _TRUE_OR_FALSE
    if kind == "flag":
        return value is True
    if kind == "given":
        return value is not True
    if kind == "exact_bool":
        return isinstance(value, bool)
    if kind in ("int_or_bool", "bool_or_int"):
        return isinstance(value, int)
    if kind == "number":
        return _is_plain_number(value)
    if kind in ("texts", "numbers"):
        items = value if isinstance(value, tuple) else tuple(value) if isinstance(value, str) else (None,)
        return all(isinstance(item, str) if kind == "texts" else _is_plain_number(item) for item in items)
    if kind in _CONVERTED:
        return not isinstance(value, bool) and _is_text_of(kind, value)
    if kind in ("str", "path"):
        return isinstance(value, str)
    if kind == "section":
        return value == SECTION
    if kind == "list":
        return isinstance(value, tuple) and value != SECTION
    return True


_KIND_TEXTS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a string",
    "exact_bool": "true or false",
    "strtobool": "true or false",
    "flag": "no value",
    "given": "one value",
    "int_or_bool": "a whole number",
    "bool_or_int": "true or false",
    "whole": "a whole number",
    "decimal": "a number",
    "number": "a number",
    "texts": "a list of strings",
    "numbers": "a list of numbers",
    "truth": "true or false",
    "path": "a path",
    "list": "a list",
    "section": "a section with its own keys",
}


_KIND_BY_JSON_TYPE = {
    "object": "section",
    "boolean": "exact_bool",
    "array": "list",
    "string": "str",
    "integer": "int",
    "number": "float",
}


def _allowed_values_text(setting: Setting) -> str:
    if setting.choices:
        return f"one of {', '.join(map(str, setting.choices))}"
    bounds = [
        f"{word} {bound:g}"
        for word, bound in (("at least", setting.minimum), ("more than", setting.above), ("at most", setting.maximum))
        if bound is not None
    ]
    if setting.kind == "json":
        kinds = [*dict.fromkeys(_KIND_TEXTS[_KIND_BY_JSON_TYPE[str(name)]] for name in setting.types if name != "null")]
        types_text = " or ".join(kinds) + (
            f" that matches `{setting.pattern}`" if 0 < len(setting.pattern) < 60 else ""
        )
        return " ".join((types_text or "another value", *((", ".join(bounds),) if bounds else ())))
    description = " ".join((_KIND_TEXTS.get(setting.kind, "another value"), *((", ".join(bounds),) if bounds else ())))
    return ", or ".join((description, *map(str, setting.words)))


# The tables of what frameworks accept and reject: `data/settings/NAME.toml` and `data/refusals/NAME.toml`.


_LIST_INDEX = re.compile(r"\.item\d{1,4}(?=\.|$)")
_MOUNT_PATH = re.compile(r"\.[/~][^.]*")
_PINNED = re.compile(
    r"([a-z0-9][a-z0-9-]*)=="
    r"(\d{1,6}(?:\.\d{1,6}){0,3}(?:(?:a|b|rc)\d{1,6})?(?:\.post\d{1,6})?(?:\.dev\d{1,6})?).*"
)


class Refusal(NamedTuple):
    """A condition under which a framework fails at startup.

    Args:
        of: the framework whose settings the condition concerns; in the data also a list of several.
        when: the condition (`conditions.py`).
        at: the keys that cause the failure, the most important key first.
        why: what the framework does, after the quoted settings.
        remedy: what to do, in a sentence.
        source: the location in the framework's code that checks the condition.
        since: the first release that rejects the settings; empty if all known releases do.
        until: the last release that rejects the settings; empty if it is the newest.
        package: the distribution that `since` and `until` are about; empty for the framework's own.
        severity: "warning" if the framework continues without the setting, or slowly; empty for an error.
        known: the known keys of the section that the only key of `at` names (`config.*`), or patterns of keys, which
            begin with `^`. Any other key of the section causes the failure.
        pinned: whether the failure is reported only if the files pin a release.
        later: whether the framework reads the settings without an error, but the job fails or is wrong afterwards.

    In the data, `[[code]]` is a location in a framework's code, with `of` and `source`, and each `[[code.refuses]]` is
    a condition that it rejects. `each` creates a row for each of its strings, which replaces `{}` in all other strings,
    and `{^}` in capitals.
    """

    of: str
    when: str
    at: tuple[str, ...]
    why: str
    remedy: str
    source: str
    since: str = ""
    until: str = ""
    package: str = ""
    severity: str = ""
    known: tuple[str, ...] = ()
    pinned: bool = False
    later: bool = False


@functools.cache
def refusals(name: str) -> tuple[Refusal, ...]:
    """Return the refusals of one framework."""
    return tuple(_refusals(_refusal_files(name), name))


def all_refusals() -> tuple[Refusal, ...]:
    """Return the refusals of every framework, once each."""
    files = dict.fromkeys(file for row in table("frameworks")["framework"] for file in row.get("refusals", ()))
    return tuple(_refusals((table(f"refusals/{file}") for file in files), ""))


def _refusals(files: Iterable[dict[str, Any]], name: str) -> Iterator[Refusal]:
    """Yield the refusals of one framework in these files, or, for an empty name, all refusals, each under its first
    name.
    """
    for code in (each for file in files for each in file["code"]):
        frameworks = code["of"] if isinstance(code["of"], list) else [code["of"]]
        if name in frameworks or not name:
            for row in (row for each in code["refuses"] for row in _expand_row(each)):
                lists = {"at": tuple(row["at"]), "known": tuple(row.get("known", ()))}
                yield Refusal(**{**row, **lists, "of": name or frameworks[0], "source": code["source"]})


def _refusal_files(name: str) -> list[dict[str, Any]]:
    row = framework(name)
    return [table(f"refusals/{file}") for file in (row.refusals if row is not None else ())]


def _expand_row(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the row itself, or one row for each of its `each` texts."""
    if "each" not in row:
        yield row
        return
    for text in row["each"]:

        def fill(item: Any, text: str = text) -> Any:
            if isinstance(item, list):
                return [fill(part) for part in item]
            return item.replace("{}", text).replace("{^}", text.upper()) if isinstance(item, str) else item

        yield {key: fill(item) for key, item in row.items() if key != "each"}


@functools.cache
def oldest(name: str) -> str:
    """Return the oldest release that a framework's refusals were read from; empty if they apply to all releases."""
    return next((str(file["oldest"]) for file in _refusal_files(name) if "oldest" in file), "")


@functools.cache
def from_checkpoint(name: str) -> frozenset[str]:
    """Return the settings that a checkpoint may provide if nothing else does."""
    if not reads(name, "checkpoint"):
        return frozenset()
    return frozenset(key for file in _refusal_files(name) for key in file.get("from_checkpoint", ()))


@functools.cache
def settings(name: str) -> dict[str, Setting]:
    """Return the settings that a framework accepts, by key and by alias; empty if no table lists them."""
    settings_by_key: dict[str, Setting] = {}
    framework_row = framework(name)
    for row in (
        table(f"settings/{framework_row.settings}")["setting"]
        if framework_row is not None and framework_row.settings
        else ()
    ):
        lists = {name: tuple(row.get(name, ())) for name in ("choices", "former", "words", "types")}
        setting = Setting(**{**row, **lists})
        settings_by_key[setting.key] = setting
        if setting.alias:
            settings_by_key[setting.alias] = setting
    return settings_by_key


def full_name(name: str, key: str) -> str:
    """Return the option that a key names, possibly by an unambiguous abbreviation; otherwise the key itself."""
    if not reads(name, "abbreviated") or key in settings(name):
        return key
    matches = [each for each in settings(name) if each.startswith(key)]
    return matches[0] if len(matches) == 1 else key


def canonical(key: str) -> str:
    """Return the key as it is in the tables: without list indices and without the path of a mount."""
    return _MOUNT_PATH.sub(".*", _LIST_INDEX.sub(".item", key))


def row_of(rows: dict[str, Setting], key: str) -> Setting | None:
    """Return the row of a key; None if there is no row.

    The sections of a list share rows (`any_of.item.cpus` for `any_of.item0.cpus`), and so do user-defined keys of a
    section (`tags.*`).
    """
    canonical_key = canonical(key)
    return rows.get(key) or rows.get(canonical_key) or rows.get(f"{canonical_key.rpartition('.')[0]}.*")


@functools.cache
def newest(name: str) -> str:
    """Return the newest release that the table of a framework's settings was read from; empty without a table."""
    row = framework(name)
    return str(table(f"settings/{row.settings}")["version"]) if row is not None and row.settings else ""


@functools.cache
def alias_refusals(name: str) -> tuple[Refusal, ...]:
    """Return the refusals of two names for one key, and of a key together with its replacement."""
    if not reads(name, "one-name"):
        return ()
    all_settings = settings(name)
    pairs = []
    for key, setting in all_settings.items():
        if setting.alias and key == setting.key:
            pairs.append((key, setting.alias))
        new_key = setting.replaced_by
        if new_key:
            pairs.extend((key, second) for second in {new_key, all_settings[new_key].alias} - {""})
    return tuple(
        Refusal(
            name,
            f"{first} is not None and {second} is not None",
            (first, second),
            "both are names of the same setting, and the framework rejects them together",
            "Keep the newer name.",
            "deepspeed/runtime/config_utils.py",
        )
        for first, second in pairs
    )


class Index(NamedTuple):
    """The refusals of one framework, indexed by the keys that cause them.

    Args:
        rows: all refusals.
        by_key: the row numbers of refusals that a key, or a key under `PREFIX.`, causes.
        others: the row numbers of refusals that the place itself, or other claims of the job, cause.
    """

    rows: tuple[Refusal, ...]
    by_key: dict[str, list[int]]
    others: list[int]

    def about(self, keys: Iterable[str], prefixes: Iterable[str]) -> list[Refusal]:
        """Return the refusals that one of these keys, or a key under these prefixes, may cause, in table order."""
        row_numbers = set(self.others)
        for key in (*keys, *(f"{prefix}." for prefix in prefixes)):
            row_numbers.update(self.by_key.get(key, ()))
        return [self.rows[number] for number in sorted(row_numbers)]


@functools.cache
def index(name: str) -> Index:
    """Return the index of one framework's refusals, including those for several names of one key."""
    result = Index((*refusals(name), *alias_refusals(name)), {}, [])
    for number, row in enumerate(result.rows):
        for key in row.at:
            if key.startswith(("(", "job.")) or key.endswith("*"):
                result.others.append(number)
            for each in {key, f"{key.partition('.')[0]}."}:
                result.by_key.setdefault(each, []).append(number)
    return result


#: Images of projects whose tags begin with a release, and their distribution.
_DISTRIBUTION_BY_IMAGE = {
    "rayproject/ray": "ray",
    "horovod/horovod": "horovod",
    "paddlepaddle/paddle": "paddlepaddle",
    "pytorch/pytorch": "torch",
    "tensorflow/tensorflow": "tensorflow",
}
_IMAGE = re.compile(rf"(?:\S+/)?({'|'.join(_DISTRIBUTION_BY_IMAGE)}):v?(\d+(?:\.\d+)+)(?![\w.])")


def pinned(job: Job, name: str) -> str:
    """Return the release of a framework or distribution that the job pins; empty if none or several are pinned.

    0.0.0 is not a release, but the version of Paddle's daily builds.
    """
    names = distributions(name)
    image_releases = {
        match[2]
        for quantity in ("container", "image_base", "pod_image")
        for claim in job.about(quantity)
        for text in texts(claim.value)
        if (match := _IMAGE.match(text)) is not None and _DISTRIBUTION_BY_IMAGE[match[1]] in names
    }
    releases = {
        match[2]
        for claim in job.about("package")
        for text in texts(claim.value)
        if (match := _PINNED.fullmatch(text)) is not None and match[1] in names and not match[2].startswith("0.0.0")
    }
    # Installed packages may replace those of the image.
    releases = releases or image_releases
    return releases.pop() if len(releases) == 1 else ""


def in_range(version: str, since: str, until: str) -> bool | None:
    """Return whether a release is in a range; None if `version` is empty, unless the range includes all releases."""
    if not since and not until:
        return True
    if not version:
        return None
    return (not since or release(version) >= release(since)) and (
        not until or cut(version, until) <= release(until).release
    )


@functools.lru_cache(maxsize=1024)
def release(version: str) -> Version:
    """Return a release as a comparable version."""
    from packaging.version import Version

    return Version(version)


def cut(version: str, like: str) -> tuple[int, ...]:
    """Return the first numbers of a release, as many as in `like`: 2.4.1 counts as 2.4."""
    return release(version).release[: len(release(like).release)]


def may_have(table: Generated, row: Row, version: str) -> bool:
    """Return whether a release may have the option. A release between two known releases may have the options of
    either.
    """
    if not version:
        return True
    wanted = release(version)
    older = [item for item in table.versions if release(item) <= wanted]
    newer = [item for item in table.versions if release(item) >= wanted]
    around = {*older[-1:], *newer[:1]}
    first = release(row.since or table.versions[0])
    last = release(row.until or table.newest)
    return any(first <= release(item) <= last for item in around)

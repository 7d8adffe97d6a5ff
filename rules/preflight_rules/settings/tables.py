"""The tables of what frameworks accept and reject: `data/settings/NAME.toml` and `data/refusals/NAME.toml`."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from preflight.model.job import Job
from preflight.model.job.value import texts
from preflight.sources.tables import Generated, Row
from preflight_rules.data_tables import table
from preflight_rules.settings.frameworks import distributions, framework, reads
from preflight_rules.settings.kinds import Setting

if TYPE_CHECKING:
    from packaging.version import Version

_ITEM = re.compile(r"\.item\d{1,4}(?=\.|$)")
_PATH = re.compile(r"\.[/~][^.]*")
_PINNED = re.compile(
    r"([a-z0-9][a-z0-9-]*)=="
    r"(\d{1,6}(?:\.\d{1,6}){0,3}(?:(?:a|b|rc)\d{1,6})?(?:\.post\d{1,6})?(?:\.dev\d{1,6})?).*"
)


class Refusal(NamedTuple):
    """A condition under which a framework fails at startup.

    Args:
        of: the framework whose settings it concerns; in the data also a list of several.
        when: the condition (`conditions.py`).
        at: the keys that cause it, the most important one first.
        why: what the framework does, after the quoted settings.
        remedy: what to do, in a sentence.
        source: where the framework says so.
        since: the first release that refuses it; empty for all that are known.
        until: the last release that does; empty for the newest.
        package: the distribution that `since` and `until` are about; empty for the framework's own.
        severity: "warning" where the framework continues, but without what is set, or slowly; empty for an error.
        known: the keys of the section that the only key of `at` names (`config.*`), or patterns of them, which begin
            with `^`: any other one is to blame.
        pinned: whether it is only said where the files pin a release.
        later: whether its settings are read without complaint, and the job fails or is wrong after that.

    In the data, `each` makes a row for each of its texts, which stands for `{}` in all others, in capitals for `{^}`.
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
    """The refusals of one framework."""
    return tuple(_refusals((table("refusals"), *_files(name)), name))


def every_refusal() -> tuple[Refusal, ...]:
    """The refusals of every framework, once each."""
    files = dict.fromkeys(file for row in table("frameworks")["framework"] for file in row.get("refusals", ()))
    return tuple(_refusals((table("refusals"), *(table(f"refusals/{file}") for file in files)), ""))


def _refusals(files: Iterable[dict[str, Any]], name: str) -> Iterator[Refusal]:
    """The refusals of one framework in these files; for an empty name those of each, under its first name."""
    for file in files:
        for each in file["refusal"]:
            of = each["of"] if isinstance(each["of"], list) else [each["of"]]
            if name in of or not name:
                for row in _expanded(each):
                    lists = {"at": tuple(row["at"]), "known": tuple(row.get("known", ()))}
                    yield Refusal(**{**row, **lists, "of": name or of[0]})


def _files(name: str) -> list[dict[str, Any]]:
    """The files of a framework's refusals."""
    row = framework(name)
    return [table(f"refusals/{file}") for file in (row.refusals if row is not None else ())]


def _expanded(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The row itself, or one for each of its texts."""
    if "each" not in row:
        yield row
        return
    for text in row["each"]:

        def filled(item: Any, text: str = text) -> Any:
            if isinstance(item, list):
                return [filled(part) for part in item]
            return item.replace("{}", text).replace("{^}", text.upper()) if isinstance(item, str) else item

        yield {key: filled(item) for key, item in row.items() if key != "each"}


@functools.cache
def oldest(name: str) -> str:
    """The oldest release that the refusals of a framework were read in; empty if they hold for all that are used."""
    return next((str(file["oldest"]) for file in _files(name) if "oldest" in file), "")


@functools.cache
def from_checkpoint(name: str) -> frozenset[str]:
    """The settings that a checkpoint may give where nothing else does."""
    if not reads(name, "checkpoint"):
        return frozenset()
    return frozenset(key for file in _files(name) for key in file.get("from_checkpoint", ()))


@functools.cache
def settings(name: str) -> dict[str, Setting]:
    """The settings that a framework accepts, by key and by alias; empty where no table lists them."""
    found: dict[str, Setting] = {}
    known = framework(name)
    for row in table(f"settings/{known.settings}")["setting"] if known is not None and known.settings else ():
        lists = {name: tuple(row.get(name, ())) for name in ("choices", "former", "words", "types")}
        setting = Setting(**{**row, **lists})
        found[setting.key] = setting
        if setting.alias:
            found[setting.alias] = setting
    return found


def full_name(name: str, key: str) -> str:
    """The option that a key names: for a parser that takes abbreviations, the only one that starts with it."""
    if not reads(name, "abbreviated") or key in settings(name):
        return key
    found = [each for each in settings(name) if each.startswith(key)]
    return found[0] if len(found) == 1 else key


def canonical(key: str) -> str:
    """The key as a table has it: without the number of an item of a list, and without the path of a mount."""
    return _PATH.sub(".*", _ITEM.sub(".item", key))


def row_of(known: dict[str, Setting], key: str) -> Setting | None:
    """The row of a key.

    The sections of a list share rows (`any_of.item.cpus` for `any_of.item0.cpus`), and so do the keys of a section that
    are names of the user's (`tags.*`).
    """
    one = canonical(key)
    return known.get(key) or known.get(one) or known.get(f"{one.rpartition('.')[0]}.*")


@functools.cache
def newest(name: str) -> str:
    """The newest release that the table of a framework's settings was read from; empty without a table."""
    known = framework(name)
    return str(table(f"settings/{known.settings}")["version"]) if known is not None and known.settings else ""


@functools.cache
def names_together(name: str) -> tuple[Refusal, ...]:
    """The refusals of two names of one key, and of a key together with its replacement."""
    if not reads(name, "one-name"):
        return ()
    known = settings(name)
    found = []
    for key, setting in known.items():
        if setting.alias and key == setting.key:
            found.append((key, setting.alias))
        new = setting.replaced_by
        if new:
            found.extend((key, other) for other in {new, known[new].alias} - {""})
    return tuple(
        Refusal(
            name,
            f"{one} is not None and {other} is not None",
            (one, other),
            "both are names of the same setting, and the framework rejects the combination",
            "Keep the newer name.",
            "deepspeed/runtime/config_utils.py",
        )
        for one, other in found
    )


class Index(NamedTuple):
    """The refusals of one framework, found by the keys that they blame.

    Args:
        rows: all of them.
        by_key: the numbers of those that blame a key, or a key of what `PREFIX.` stands for.
        others: those that blame the place itself, or what other claims of the job say.
    """

    rows: tuple[Refusal, ...]
    by_key: dict[str, list[int]]
    others: list[int]

    def about(self, keys: Iterable[str], prefixes: Iterable[str]) -> list[Refusal]:
        """Those that may blame one of these keys, or a key below one of these prefixes, in the order of the table."""
        numbers = set(self.others)
        for key in (*keys, *(f"{prefix}." for prefix in prefixes)):
            numbers.update(self.by_key.get(key, ()))
        return [self.rows[number] for number in sorted(numbers)]


@functools.cache
def index(name: str) -> Index:
    """The refusals of one framework, with those of names for one key."""
    found = Index((*refusals(name), *names_together(name)), {}, [])
    for number, row in enumerate(found.rows):
        for key in row.at:
            if key.startswith(("(", "job.")) or key.endswith("*"):
                found.others.append(number)
            for each in {key, f"{key.partition('.')[0]}."}:
                found.by_key.setdefault(each, []).append(number)
    return found


def pinned(job: Job, name: str) -> str:
    """The release of a framework or distribution that the job's files pin; empty if they pin none, or several.

    0.0.0 is not a release: Paddle's daily builds have it.
    """
    names = distributions(name)
    found = {
        match[2]
        for claim in job.about("package")
        for text in texts(claim.value)
        if (match := _PINNED.fullmatch(text)) is not None and match[1] in names and not match[2].startswith("0.0.0")
    }
    return found.pop() if len(found) == 1 else ""


def in_range(version: str, since: str, until: str) -> bool | None:
    """Whether a release is in a range; None if no release is known and the range does not hold all of them."""
    if not since and not until:
        return True
    if not version:
        return None
    return (not since or release(version) >= release(since)) and (
        not until or cut(version, until) <= release(until).release
    )


@functools.lru_cache(maxsize=1024)
def release(version: str) -> Version:
    """A release, to be compared."""
    from packaging.version import Version

    return Version(version)


def cut(version: str, like: str) -> tuple[int, ...]:
    """The numbers of a release, as many as `like` has: 2.4.1 is within 2.4."""
    return release(version).release[: len(release(like).release)]


def may_have(table: Generated, row: Row, version: str) -> bool:
    """Whether a release may have the option: one between two that were read has what either of these has."""
    if not version:
        return True
    own = release(version)
    older = [item for item in table.versions if release(item) <= own]
    newer = [item for item in table.versions if release(item) >= own]
    around = {*older[-1:], *newer[:1]}
    first = release(row.since or table.versions[0])
    last = release(row.until or table.newest)
    return any(first <= release(item) <= last for item in around)

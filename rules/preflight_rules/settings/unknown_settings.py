"""Settings and keys that a framework or orchestrator does not have, with the nearest one that it does have."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from preflight.model.findings import Severity
from preflight.model.job import WHOLE_JOB, Claim, Job, Strength
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight.plugins.claim_text import quoted, why_unresolved
from preflight.sources.tables import Generated, load_table
from preflight_rules.data_tables import table
from preflight_rules.settings.places import CALL, CLASS, PARSER, PlaceSettings, place_settings
from preflight_rules.settings.tables import (
    Keys,
    canonical,
    framework,
    in_range,
    may_have,
    newest,
    pinned,
    reads,
    release,
    row_of,
    settings,
    with_all_keys,
)

#: Similarity from which an unknown name is treated as a misspelling.
_MISSPELLING_SIMILARITY = 0.85
#: Names of a file that are compared with all known ones: each comparison takes milliseconds.
_MAX_COMPARED = 20


@dataclass(slots=True)
class NearestNames:
    """Looks up the known names nearest to unknown names, but only for the first unknown names of each file.

    Args:
        found: the nearest names by file, section and name; empty if none is close.
        compared: the number of names looked up per file.
    """

    found: dict[tuple[str, str, str], str] = field(default_factory=dict)
    compared: dict[str, int] = field(default_factory=dict)

    def nearest(self, claim: Claim, section: str, name: str, known: Callable[[], Iterable[str]]) -> str:
        """Return the nearest name; empty if none is close, or if the file has too many unknown names.

        Args:
            claim: the claim about the unknown name.
            section: the owner of the names, for display.
            name: the unknown name.
            known: returns the existing names.
        """
        path = claim.span.path
        if (path, section, name) not in self.found:
            if self.compared.get(path, 0) >= _MAX_COMPARED:
                return ""
            self.compared[path] = self.compared.get(path, 0) + 1
            matches = difflib.get_close_matches(name, known(), n=1, cutoff=_MISSPELLING_SIMILARITY)
            self.found[path, section, name] = matches[0] if matches else ""
        return self.found[path, section, name]


def unknown_name(
    place: PlaceSettings,
    claim: Claim,
    *,
    name: str,
    owner: str,
    release: str,
    nearest: str,
    sure: bool,
    unless_sure: Severity | None,
    stopped: str = "every rank stops",
) -> Verdict:
    """Return the verdict on a name that its framework does not have.

    Args:
        place: the place of the name.
        claim: the claim about the name.
        name: the name, without its section.
        owner: the owner of the known names: `TrainingArguments`.
        release: the releases without the name: `trl 1.16.0`, `any release up to 1.16.0`.
        nearest: the probable name, empty if none is known.
        sure: whether no other release can have the name.
        unless_sure: the severity if another release may have it; None for an unknown verdict.
        stopped: the effect of an unknown name: `SkyPilot refuses the task`.
    """
    if claim.condition and (unresolved := why_unresolved((claim,), place.launch)) is not None:
        return unknown(place.subject, f"{quoted(claim)} is unknown: {unresolved[1]}", at=claim)
    if not sure and unless_sure is None:
        reason = f"{quoted(claim)}: {owner} has no {name} in {release}; a newer release may have it"
        return unknown(place.subject, reason, at=claim)
    return failed(
        place.subject,
        f"{quoted(claim)}: {owner} has no {name} in {release}, and {stopped}.",
        at=claim,
        remedy=f"Write {nearest}, or remove it." if nearest else "Remove it.",
        severity=None if sure else unless_sure,
    )


class Parser(NamedTuple):
    """A parser that rejects unknown keys.

    Args:
        title: its name for display.
        names: the names of its tables, its own first.
        switches: environment variables that make it accept other keys.
        others: keys of another parser that such a variable selects; a file with one of them is not judged.
        usual: the intended key for each key of another framework and each common mistake.
        fixes_others: whether the pinned release of its own distribution also limits the releases of the other tables.
    """

    title: str
    names: tuple[str, ...]
    switches: tuple[str, ...]
    others: frozenset[str]
    usual: dict[str, str]
    fixes_others: bool = False

    @property
    def tables(self) -> tuple[Generated, ...]:
        """Its tables of accepted keys, its own first."""
        return tuple(load_table(name) for name in self.names)


_TABLE = table("parsers")
_PARSERS = {
    name: Parser(
        row["title"],
        tuple(row["tables"]),
        tuple(row.get("switches", ())),
        frozenset(row.get("others", ())),
        _TABLE["usual"][row["usual"]],
        row.get("fixes_others", False),
    )
    for name, row in _TABLE.items()
    if "tables" in row
}
#: The parsers of TRL, by their classes.
_TRL_PARSERS = {
    name: Parser(f"TRL's {name}", (own, "training_arguments"), (), frozenset(), _TABLE["usual"]["trl"])
    for name, own in _TABLE["trl"].items()
}
_OFF_VALUES = frozenset(("0", "n", "no", "false", "off", ""))


@rule(
    "CFG004",
    "setting-unknown",
    severity=Severity.ERROR,
    otherwise="no configuration of a parser that stops at unknown keys",
)
def setting_unknown(job: Job) -> Iterator[Verdict]:
    """A configuration has an unknown key, at which its framework stops.

    What it checks: Every key of a file that LLaMA-Factory parses, every argument of a TRL configuration that a script
    creates, and every argument of Lightning's `Trainer` or `Fabric`, in a script or for LightningCLI, belongs to the
    framework or to Hugging Face's trainer, in the releases that the job's files pin, or in any known release.

    Why it matters: The parser stops in every rank ("Some keys are not used by the HfArgumentParser"), and so does
    Python ("unexpected keyword argument").

    Example: `lora_r: 8` for LLaMA-Factory, where it is called lora_rank; `SFTConfig(max_seq_length=2048)` for TRL 0.24,
    where it is called max_length.

    Fix: Write the key as in that release, or remove it.

    Known limits: Without a pinned release, a key that exists in some release passes, and the verdict on a key that
    resembles no known key is unknown, because a newer release may have it. Nothing is judged if a variable makes the
    parser accept other keys (`ALLOW_EXTRA_ARGS`, `USE_MCA`), if the file has keys of Megatron's parser, or if a script
    creates several TRL configurations.
    """
    seen_locations: set[tuple[str, int, int]] = set()
    names = NearestNames()
    for name in (*_PARSERS, "trl"):
        for place in place_settings(job, name):
            parser = _PARSERS.get(name) or _TRL_PARSERS.get(str(place.keys[CLASS].alternatives[0]))
            if parser is None:
                continue
            if _accepts_more_keys(job, place, parser):
                yield unknown(place.subject, f"a variable or a key may make {parser.title} accept additional keys")
                continue
            verdicts = tuple(_unknown_keys(job, place, parser, names))
            for verdict in verdicts:
                location = verdict.locations[0]
                if (location.path, location.line, location.column) not in seen_locations:
                    seen_locations.add((location.path, location.line, location.column))
                    yield verdict
            if not verdicts:
                yield passed(place.subject)


def _accepts_more_keys(job: Job, place: PlaceSettings, parser: Parser) -> bool:
    """Return whether a variable is set, or may be set, that makes the parser accept other keys."""
    if parser.others & place.keys.keys():
        return True
    scope = place.launch.scope if place.launch is not None else None
    for name in parser.switches:
        claims = job.about(f"env.{name}", scope) if scope is not None else job.about(f"env.{name}")
        if any(
            {text.lower() for text in texts(claim.value)} - _OFF_VALUES or not texts(claim.value) for claim in claims
        ):
            return True
    return False


def _unknown_keys(job: Job, place: PlaceSettings, parser: Parser, names: NearestNames) -> Iterator[Verdict]:
    versions = {table.distribution: pinned(job, table.distribution) for table in parser.tables}
    for key, claim in place.keys.items():
        if "." not in key and key.isidentifier() and key != CLASS:
            verdict = _unknown_key_verdict(place, parser, key, claim, versions, names)
            if verdict is not None:
                yield verdict


def _unknown_key_verdict(
    place: PlaceSettings, parser: Parser, key: str, claim: Claim, versions: dict[str, str], names: NearestNames
) -> Verdict | None:
    table_rows = [(table, row) for table in parser.tables for row in table.rows if row.dest == key]
    if any(may_have(table, row, versions[table.distribution]) for table, row in table_rows):
        return None
    own_table = parser.tables[0]
    version = versions[own_table.distribution]
    if version and release(version) < release(own_table.versions[0]) and not table_rows:
        reason = f"{quoted(claim)}: {own_table.distribution} {version} is older than the known releases"
        return unknown(place.subject, reason, at=claim)
    nearest = parser.usual.get(key) or names.nearest(
        claim, parser.title, key, lambda: _accepted_names(parser, versions)
    )
    is_known = all(
        versions[table.distribution] and release(versions[table.distribution]) <= release(table.newest)
        for table in (parser.tables[:1] if parser.fixes_others else parser.tables)
    )
    return unknown_name(
        place,
        claim,
        name=key,
        owner=parser.title,
        release=f"{own_table.distribution} {version}" if version else f"any release up to {own_table.newest}",
        nearest=nearest,
        sure=bool(nearest or table_rows or is_known),
        unless_sure=None,
    )


def _accepted_names(parser: Parser, versions: dict[str, str]) -> Iterator[str]:
    """Yield the names that a parser accepts in these releases."""
    for accepted in parser.tables:
        for row in accepted.rows:
            if may_have(accepted, row, versions[accepted.distribution]):
                yield row.dest


@rule(
    "CFG007",
    "framework-setting-unknown",
    severity=Severity.ERROR,
    otherwise="no settings of a framework that stops at unknown settings",
)
def framework_setting_unknown(job: Job) -> Iterator[Verdict]:
    """A framework is given a setting that it does not have, so it stops.

    What it checks: The attributes of a `fleet.DistributedStrategy` and the keys of its `..._configs`, the options of a
    program of Megatron-LM and of OpenRLHF's `train_ppo_ray`, the keys that a command line sets for verl's `main_ppo`,
    and the keys of torchtitan's TOML and of SkyPilot or dstack tasks exist in the release that the job's files pin, or
    in any known release.

    Why it matters: The framework stops in every rank while it reads its settings: "use_amp is not a attribute of
    DistributedStrategy".

    Example: `strategy.use_amp = True`, or `strategy.amp_configs = {"dtype": "float16"}`.

    Fix: Write the name that the finding gives, or remove the setting.

    Known limits: Without a pinned release, a name that resembles no other is a warning, because a newer release may
    have it. Programs add options to those of Megatron-LM, so these are unknown unless the job pins the release in the
    table; the same applies to OpenRLHF and verl. Keys of verl are judged only with its default configuration, not with
    `model_engine=megatron`, and those of torchtitan only without a module that adds keys and without torchtitan's own
    package in the tree. A script that creates several strategies is not judged.
    """
    seen_locations: set[tuple[str, int, int]] = set()
    names = NearestNames()
    for name in with_all_keys():
        table_keys, version = _table_keys(name), pinned(job, name)
        for place in place_settings(job, name):
            is_accepted = True
            extension = _extension_claim(job, place, table_keys)
            if extension is not None:
                yield unknown(place.subject, f"{quoted(extension)} may add keys to {table_keys.title}", at=extension)
                continue
            for key, claim in place.keys.items():
                verdict = (
                    None
                    if key in (CALL, PARSER)
                    else _unknown_setting_verdict(place, table_keys, key, claim, version, names)
                )
                if verdict is None:
                    continue
                is_accepted = False
                location = (claim.span.path, claim.span.line, claim.span.column)
                if location not in seen_locations:
                    seen_locations.add(location)
                    yield verdict
            if is_accepted:
                yield passed(place.subject)


def _table_keys(name: str) -> Keys:
    row = framework(name)
    assert row is not None and row.keys is not None
    return row.keys


def _extension_claim(job: Job, place: PlaceSettings, known: Keys) -> Claim | None:
    """Return the setting, in the file or on the program's command line, that names a module with additional keys.

    The claim that the tree contains the framework's own package also counts. None if there is no such claim.
    """
    scope = place.launch.scope if place.launch is not None else WHOLE_JOB
    for bundled in job.about("bundled_framework", scope):
        if bundled.alternatives == (place.framework,):
            return bundled
    claims_by_key = dict(job.settings(place.framework, scope)) if known.extended_by else {}
    claims = (claims_by_key[name] for name in known.extended_by if name in claims_by_key)
    return next((claim for claim in claims if claim.alternatives != ("",)), None)


def _unknown_setting_verdict(
    place: PlaceSettings, known: Keys, key: str, claim: Claim, version: str, names: NearestNames
) -> Verdict | None:
    table = settings(place.framework)
    if key.rpartition(".")[2].startswith("_"):
        return None  # Private attributes are not in the table.
    if reads(place.framework, "composed"):
        if not _is_override(place, claim):
            return None
        # The first missing part is at fault: `actor.fsdp` for `actor.fsdp.size`.
        while "." in key and row_of(table, key.rpartition(".")[0]) is None:
            key = key.rpartition(".")[0]
    section, name = _split_key(known, key)
    section_row = row_of(table, section) if section else None
    if section and (section_row is None or not section_row.closed):
        return None
    setting = row_of(table, key)
    option = claim.spelling.partition(" ")[0].partition("=")[0]
    if setting is not None and known.dashed is not None and "_" in option and option not in known.dashed:
        return unknown_name(
            place,
            claim,
            name=option,
            owner=known.title,
            release=f"release {version}" if version else f"any release up to {newest(place.framework)}",
            nearest=option.replace("_", "-"),
            sure=bool(version),
            unless_sure=Severity.WARNING,
            stopped=known.stopped,
        )
    if setting is not None and (not version or in_range(version, setting.added, setting.gone) is not False):
        return None
    newest_release = newest(place.framework)
    # The table is for one release. Older and newer releases have other options.
    is_other_release = not version or release(version).release[:2] != release(newest_release).release[:2]
    if known.extended and setting is None and is_other_release:
        reason = f"{quoted(claim)} is not a known option of {known.title}; the program may add it"
        return unknown(place.subject, reason, at=claim)
    owner = section or known.title
    nearest = known.usual.get(key) or names.nearest(
        claim, owner, name, lambda: _section_names(place.framework, known, key, version)
    )
    # A checkout from before the first release may have earlier names.
    is_moved = key in known.usual and not version and "." in key
    return unknown_name(
        place,
        claim,
        name=name,
        owner=owner,
        release=f"release {version}" if version else f"any release up to {newest_release}",
        nearest=nearest,
        sure=bool(
            (nearest and not is_moved) or setting is not None or (version and in_range(version, "", newest_release))
        ),
        unless_sure=Severity.WARNING,
        stopped=known.stopped,
    )


def _split_key(known: Keys, key: str) -> tuple[str, str]:
    """Return the section of a key, and its name in the section."""
    section, _, name = ("", "", key) if known.flat else key.rpartition(".")
    return section, name


def _is_override(place: PlaceSettings, claim: Claim) -> bool:
    """Return whether an override sets a key of the default configuration; it neither adds a key nor chooses a group."""
    word = claim.spelling.lstrip("'\"")
    uses_default = "model_engine" not in place.keys and place.complete
    return (
        uses_default
        and claim.strength is Strength.FLAG
        and not word.startswith(("+", "~", "hydra"))
        and "@" not in word
    )


def _section_names(name: str, known: Keys, key: str, version: str) -> Iterator[str]:
    """Yield the names that a release has in the section of a key."""
    section = canonical(_split_key(known, key)[0])
    for other, row in settings(name).items():
        other_section, other_name = _split_key(known, other)
        if other_section == section and other != key and in_range(version, row.added, row.gone) is not False:
            yield other_name

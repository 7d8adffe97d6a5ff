"""Settings and combinations of settings that a framework rejects or in which ranks hang, judged by tables."""

from __future__ import annotations

import contextlib
import functools
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Known, Launch, Plain, Scope, Strength, Unresolved, is_whole_number
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight.plugins.claim_text import placed, quoted, why_unresolved
from preflight.plugins.questions import subjects
from preflight.sources.base import NO_VALUE
from preflight.sources.conditions import UnknownValue, holds
from preflight.sources.tables import Row, load_table
from preflight_rules.data_tables import table
from preflight_rules.launches import nodes_spanned, ranks_started
from preflight_rules.settings.given import ANY, AUTO, CALL, Given, given, with_settings
from preflight_rules.settings.tables import (
    Refusal,
    Setting,
    cut,
    framework,
    in_range,
    index,
    may_have,
    oldest,
    pinned,
    reads,
    refused,
    release,
    row_of,
    settings,
)
from preflight_rules.settings.unknown_settings import NearestNames, unknown_name


@rule("CFG001", "setting-value-refused", severity=Severity.ERROR, otherwise="no setting has a known type")
def setting_value_refused(job: Job) -> Iterator[Verdict]:
    """A setting has a value of the wrong type, or out of range, that the framework rejects.

    What it checks: Every key of DeepSpeed's configuration whose type, bounds or choices DeepSpeed's own models declare
    has a valid value, and so has every key of a task of SkyPilot or dstack. Strings that these models convert (`"8"`,
    `"true"`) count as what they convert to.

    Why it matters: The framework stops in every rank while it reads its configuration, after the nodes were allocated.

    Example: `"zero_optimization": {"stage": 4}`, or `"reduce_bucket_size": -1`.

    Fix: Write a value of the type and in the range that the finding names.

    Known limits: Types and bounds are those of the release that the table names; values that only newer releases reject
    are a warning unless the job's files pin one of them. Where autotuning is enabled, a list holds the values that it
    tries, and they are not judged.
    """
    seen: set[tuple[str, int, int]] = set()
    for name in with_settings(job):
        for place in given(job, name) if not reads(name, "object") else ():
            table, version = settings(name), pinned(job, name)
            for key, claim in place.keys.items():
                setting = row_of(table, key) or _parsed_setting(place, key, claim)
                if claim.source == "arguments" and place.certain and _lacks_value(place, key, claim):
                    yield _missing_value_verdict(place, claim)
                    continue
                at = (claim.span.path, claim.span.line, claim.span.column)
                if setting is None or not setting.kind or at in seen:
                    continue
                seen.add(at)
                yield _setting_verdict(place, setting, claim, version)


#: How the parser of TrainingArguments reads a word of the command line, by the type of the field.
_PARSED = {"int": "whole", "float": "decimal", "bool": "strtobool"}
#: Values of `log_level` and `log_level_replica`, which the class does not check.
_LEVELS = ("detail", "debug", "info", "warning", "error", "critical", "passive")


def _parsed_setting(place: Given, key: str, claim: Claim) -> Setting | None:
    """Return the row that TrainingArguments' parser uses for an option; None for anything else."""
    row = _arguments().get(key) if place.framework == "transformers" and claim.source == "arguments" else None
    if row is None or not place.certain or row.takes not in ("1", "?"):
        return None
    kind = _PARSED.get(row.kind.removesuffix(" | None"), "given")
    if key.startswith("log_level"):
        return Setting(key, kind, choices=_LEVELS)
    return Setting(key, kind) if kind != "given" or row.takes == "1" else None


#: Switches without a default, which Hugging Face's parser turns into options with a value (hf_argparser.py,
#: bool_kwargs; training_args.py of transformers 4.36 to 5.24).
_VALUED_SWITCHES = frozenset(
    (
        *("tf32", "disable_tqdm", "greater_is_better", "ddp_find_unused_parameters", "ddp_broadcast_buffers"),
        "ddp_static_graph",
    )
)


def _lacks_value(place: Given, key: str, claim: Claim) -> bool:
    """Return whether an option lacks a value: another option or nothing follows, or it is a switch that needs one."""
    if place.framework == "transformers" and key == "fsdp":
        # Newer releases take it alone.
        return False
    if claim.value == NO_VALUE:
        return True
    if place.framework == "transformers" and key in _VALUED_SWITCHES and claim.value == Known(True):
        return not claim.spelling.split()[1:] and "=" not in claim.spelling
    following = (item for item in claim.alternatives if isinstance(item, str) and item != claim.spelling)
    return any(item.startswith("--") for item in following)


def _missing_value_verdict(place: Given, claim: Claim) -> Verdict:
    """Return the verdict on an option that lacks its required value."""
    fault = (
        "another option follows"
        if isinstance(claim.value, Known) and claim.value.value is not True
        else "nothing is given"
    )
    return failed(
        place.subject,
        f"{quoted(claim)}: {fault} where a value is expected, and the parser stops with `expected one argument`.",
        at=claim,
        remedy="Give the option its value, or remove it.",
    )


def _setting_verdict(place: Given, setting: Setting, claim: Claim, version: str) -> Verdict:
    unresolved = why_unresolved((claim,), place.launch)
    if unresolved is not None:
        return unknown(place.subject, f"{quoted(claim)} is unknown: {unresolved[1]}", at=claim)
    applies = in_range(version, setting.since, setting.until)
    expected = [_expected_values(setting, item, version) for item in claim.alternatives if item != AUTO]
    if applies is False or not any(expected):
        return passed(place.subject)
    try:
        if not _is_read(place, setting) or _is_tuned(place, claim):
            return passed(place.subject)
    except UnknownValue as error:
        return unknown(place.subject, f"whether {quoted(claim)} is read depends on {error}", at=claim)
    if not all(expected):
        return unknown(place.subject, f"{quoted(claim)} has several values, some of which are rejected", at=claim)
    known = framework(place.framework)
    assert known is not None
    return failed(
        place.subject,
        f"{quoted(claim)} is rejected: {known.title} expects {expected[0]} for {setting.key}, so it fails at startup"
        + (f" (since {setting.since})." if setting.since else "."),
        at=claim,
        remedy=f"Write {expected[0]}, or remove the key.",
        severity=Severity.WARNING if applies is None else None,
    )


def _expected_values(setting: Setting, item: Plain, version: str) -> str:
    """Return the expected values in words; empty if the release accepts this one."""
    if isinstance(item, bool) and setting.bool_until:
        return "a whole number" if version and in_range(version, "", setting.bool_until) is False else ""
    return refused(setting, item)


def _is_tuned(place: Given, claim: Claim) -> bool:
    """Return whether the value lists values for DeepSpeed's autotuning to try.

    Raises UnknownValue if that depends on an unknown value.
    """
    if place.framework != "deepspeed" or not all(isinstance(item, tuple) for item in claim.alternatives):
        return False
    return bool(place.value("autotuning.enabled"))


def _is_read(place: Given, setting: Setting) -> bool:
    """Return whether the framework reads the setting. Raises UnknownValue if that depends on an unknown value."""
    return not setting.when or holds(setting.when, place.value)


@rule(
    "CFG002",
    "settings-refused-together",
    severity=Severity.ERROR,
    otherwise="no settings of a framework with known refusals",
)
def settings_refused_together(job: Job) -> Iterator[Verdict]:
    """Settings of a framework contradict each other, or one of them is no longer supported.

    What it checks: The conditions under which transformers, DeepSpeed, Accelerate, Lightning, torchtitan, SkyPilot and
    dstack stop while they read their settings, are listed in a table with source and releases. For PaddlePaddle, its
    launcher, PaddleNLP, PaddleFormers, PaddleFleetX and PaddleRec the table also lists conditions that make ranks wait
    or lose a setting; if the job continues anyway, the finding is a warning.

    Why it matters: The framework stops in every rank with an exception, after the nodes were allocated.

    Example: `load_best_model_at_end=True` with `eval_strategy="no"`, or `"elasticity": {...}` for DeepSpeed 0.19.8.

    Fix: The finding names the change for its condition.

    Known limits: Settings that a script makes after it has created the object are not seen. A condition that holds only
    for some releases is a warning unless the job's files pin a release.
    """
    seen: set[tuple[str, int, str]] = set()
    releases = functools.cache(functools.partial(pinned, job))
    for name in with_settings(job):
        for place in given(job, name):
            fine = True
            version, first = releases(name), oldest(name)
            is_older = bool(version and first) and in_range(version, first, "") is False
            for row in index(name).about(place.keys, place.inner):
                if is_older and not (row.since and in_range(row.since, first, "") is False):
                    # Only a row that begins before the releases that were read is about such a release.
                    continue
                applies = in_range(releases(row.package or name), row.since, row.until)
                verdict = _condition_verdict(place, row, certain=applies is True) if applies is not False else None
                if verdict is None:
                    continue
                fine = False
                at = verdict.locations[0]
                key = (at.path, at.line, row.when)
                if key not in seen:
                    seen.add(key)
                    yield verdict
            if fine and is_older:
                yield unknown(
                    place.subject, f"the job pins {version}, and the checks of releases before {first} are unknown"
                )
            elif fine:
                yield passed(place.subject)


def _condition_verdict(place: Given, row: Refusal, *, certain: bool) -> Verdict | None:
    """Return the verdict of one condition; None if it does not hold or concerns keys that are not given."""
    claims = place.others(row.at[0], row.known) if row.known else []
    claims = claims or [claim for key in row.at if (claim := place.claim(key)) is not None]
    # What a file lacks that no launch names, the program that reads it may add.
    alone = ANY in row.at and place.launch is None and reads(place.framework, "from-programs")
    if not claims or alone or (row.pinned and not certain):
        return None
    assumption = ""
    try:
        if not holds(row.when, place.value):
            return None
    except UnknownValue as error:
        if not _holds_in_call(place, row):
            return None
        if not _holds_for_several(place, row):
            return unknown(place.subject, f"{error} is unknown, and {row.why}", at=claims[0])
        assumption = "with more than one rank, "
    first, *rest = claims
    rest = [claim for claim in rest if claim.span != first.span]
    others = "".join(f" and {placed(claim)}" for claim in rest[:2])
    range_text = "" if certain else f" ({_range(row)})"
    return failed(
        place.subject,
        f"{quoted(first)}{others}: {assumption}{row.why}{range_text}.",
        at=first,
        also=tuple((claim, "with this") for claim in rest),
        remedy=row.remedy,
        severity=None if certain and place.certain and not row.severity and not assumption else Severity.WARNING,
    )


def _holds_in_call(place: Given, row: Refusal) -> bool:
    """Return whether a condition may hold in a call if the call's branch is taken."""
    try:
        return holds(row.when, place.value_in_call)
    except UnknownValue:
        return True


def _holds_for_several(place: Given, row: Refusal) -> bool:
    """Whether a condition holds if a launcher, whose number of ranks is unknown, starts more than one."""
    try:
        return holds(row.when, place.value_of_several)
    except UnknownValue:
        return False


def _range(row: Refusal) -> str:
    if row.since and row.until:
        return f"releases {row.since} to {row.until}"
    return f"since {row.since}" if row.since else f"until {row.until}"


@rule(
    "CFG003",
    "trainer-argument-unknown",
    severity=Severity.ERROR,
    otherwise="no options are parsed only for TrainingArguments",
)
def trainer_argument_unknown(job: Job) -> Iterator[Verdict]:
    """Hugging Face's trainer is given an argument that it does not have.

    What it checks: The names in `TrainingArguments(...)`, and in a file or on a command line that `HfArgumentParser`
    parses for TrainingArguments alone, are its fields in the release that the job's files pin, or in any known release.

    Why it matters: Python stops at the call ("unexpected keyword argument"), and the parser at the name ("Some keys are
    not used"), in every rank.

    Example: `TrainingArguments(evaluation_strategy="steps")` with transformers 5, where it is called eval_strategy.

    Fix: Write the argument as that release spells it, or remove it.

    Known limits: Without a pinned release, a name that some release has is accepted, and one that resembles none is a
    warning. Classes derived from TrainingArguments have their own fields, and are not judged.
    """
    seen: set[tuple[str, int, int]] = set()
    names = NearestNames()
    version = pinned(job, "transformers")
    for place in given(job, "transformers"):
        call = place.keys.get(CALL)
        # A class that extends TrainingArguments has fields of its own.
        plain = call is not None and call.spelling.endswith("TrainingArguments")
        strict = plain or (place.parser is not None and place.parser.alternatives == (True,))
        if not strict:
            continue
        fine = True
        for key, claim in place.keys.items():
            at = (claim.span.path, claim.span.line, claim.span.column)
            if "." in key or key == CALL or at in seen:
                continue
            verdict = _unknown_argument(place, key, claim, version, names)
            if verdict is not None:
                fine = False
                seen.add(at)
                yield verdict
        if fine:
            yield passed(place.subject)


def _unknown_argument(place: Given, key: str, claim: Claim, version: str, names: NearestNames) -> Verdict | None:
    row = _arguments().get(key)
    if row is not None and may_have(load_table("training_arguments"), row, version):
        return None
    first = load_table("training_arguments").versions[0]
    if row is None and version and not in_range(version, first, ""):
        reason = f"{quoted(claim)}: transformers {version} is older than the known releases"
        return unknown(place.subject, reason, at=claim)
    nearest = _RENAMED.get(key) or names.nearest(
        claim, "TrainingArguments", key, lambda: (name for name, other in _arguments().items() if not other.until)
    )
    newest = load_table("training_arguments").newest
    return unknown_name(
        place,
        claim,
        name=key,
        owner="TrainingArguments",
        release=f"transformers {version}" if version else f"any release up to {newest}",
        nearest=nearest,
        sure=bool(nearest or row is not None or (version and in_range(version, "", newest))),
        unless_sure=Severity.WARNING,
    )


#: Arguments that transformers 5 renamed or replaced.
_RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "warmup_ratio": "warmup_steps",
}


@functools.cache
def _arguments() -> dict[str, Row]:
    """Return the rows by field, including the negations that the parser adds (`--no_tf32`)."""
    rows = load_table("training_arguments").rows
    negated = {spelling[2:]: row for row in rows for spelling in row.spellings if "-" not in spelling[2:]}
    return {row.dest: row for row in rows} | negated


# Combinations of script features, settings and releases that a framework refuses, or in which ranks hang.


_FEATURE = "script_feature"
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_WORDS = {"true": True, "false": False}


class _Combination(NamedTuple):
    name: str
    all: tuple[str, ...]
    why: str
    remedy: str
    severity: str
    source: str
    none: tuple[str, ...] = ()


class _Undecided(Exception):
    """A term depends on the unknown value in the exception's argument."""


class _Match(NamedTuple):
    """A term that holds: the claims that show it, and the text that replaces `{}`."""

    claims: tuple[Claim, ...]
    text: str = ""
    certain: bool = True
    named: bool = True


@functools.cache
def _combinations() -> tuple[_Combination, ...]:
    rows = table("combinations")["combination"]
    return tuple(_Combination(**{**row, "all": tuple(row["all"]), "none": tuple(row.get("none", ()))}) for row in rows)


@rule("CFG008", "combination-refused", severity=Severity.ERROR, otherwise="no known combination is present")
def combination_refused(job: Job) -> Iterator[Verdict]:
    """A script's calls, its settings and the releases exclude each other: the framework stops, or the ranks hang.

    What it checks: A table of combinations, each with its source: calls of the scripts, settings of files and command
    lines, and releases that the files pin. Among them are processes that are spawned while a script is imported,
    samplers for streams, adapters in one flat parameter of FSDP, float16 weights with a scaler, checkpoints with a
    search for unused parameters, functions with a collective that one rank calls, stages of sharding, attributes that a
    wrapper hides, process groups that nothing creates, and functions that cannot be pickled for a spawned process.

    Why it matters: Each part is valid alone, so nothing fails before all ranks run; then every rank stops with an
    exception, or waits until a timeout.

    Example: `mp.spawn(run, nprocs=4)` at the end of a script without `if __name__ == "__main__":`.

    Fix: The finding names the change for its combination.

    Known limits: A part under a condition makes the finding a warning. Calls inside a library are not seen.
    """
    seen: set[tuple[str, str, int]] = set()
    for subject, scope, launch in subjects(job):
        fine = False
        for row in _combinations():
            for verdict in _row_verdicts(job, row, subject, scope, launch):
                if verdict is None:
                    fine = True
                    continue
                at = verdict.locations[0]
                if (row.name, at.path, at.line) not in seen:
                    seen.add((row.name, at.path, at.line))
                    yield verdict
        if fine:
            yield passed(subject)


def _row_verdicts(
    job: Job, row: _Combination, subject: str, scope: Scope, launch: Launch | None
) -> Iterator[Verdict | None]:
    """Yield the verdicts of one row; None if its first term holds and another does not."""
    if row.all[0].startswith("package ") and not all(
        _names_distribution(job, term.split(" ")[1]) for term in row.all if term.startswith("package ")
    ):
        # Two releases exclude each other: a package that no file names is not there.
        return
    try:
        firsts = list(_first_matches(job, row.all[0], scope, launch))
    except _Undecided as error:
        with contextlib.suppress(_Undecided):
            if all(_match_term(job, term, scope, launch) for term in row.all[1:] if "{}" not in term):
                for claim in job.setting(row.all[0].split(" ")[0], scope)[:1]:
                    yield unknown(subject, str(error), at=claim)
        return
    for first in firsts:
        try:
            others = [_match_term(job, term.replace("{}", first.text), scope, launch) for term in row.all[1:]]
            if not all(others):
                yield None
                continue
            if any(_match_term(job, term, scope, launch) for term in row.none):
                yield None
                continue
        except _Undecided as error:
            yield unknown(subject, f"{quoted(first.claims[0])}: {error}", at=first.claims[0])
            continue
        yield _failed(row, subject, first, [met for met in others if met is not None])


def _first_matches(job: Job, term: str, scope: Scope, launch: Launch | None) -> Iterator[_Match]:
    """Yield each way the first term of a row holds. Raises _Undecided if that is unknown."""
    kind, _, rest = term.partition(" ")
    if kind != "feature":
        met = _match_term(job, term, scope, launch)
        if met is not None:
            yield met
        return
    prefix, joined, _ = rest.partition("{}")
    for claim in job.about(_FEATURE, scope):
        for text in texts(claim.value):
            if text == rest or (joined and text.startswith(prefix)):
                yield _Match((claim,), text.removeprefix(prefix) if joined else "", certain=not claim.condition)


def _match_term(job: Job, term: str, scope: Scope, launch: Launch | None) -> _Match | None:
    """Return how a term holds; None if it does not. Raises _Undecided if that is unknown."""
    words = term.split(" ")
    if words[0] == "feature":
        feature = term.partition(" ")[2]
        found = [claim for claim in job.about(_FEATURE, scope) if feature in texts(claim.value)]
        certain = any(not claim.condition for claim in found)
        return _Match(tuple(found[:1]), certain=certain) if found else None
    if term in ("several ranks", "certainly several ranks"):
        met = _match_several_ranks(job, scope, launch)
        return met if met is not None and (met.certain or term == "several ranks") else None
    if term == "no default of accelerate":
        by_accelerate = launch is not None and launch.launcher == "accelerate"
        return _Match((), certain=not by_accelerate or bool(job.setting("distributed_type", scope)))
    if term == "plain python":
        plain = [claim for claim in job.about("plain_program", scope) if not job.launches]
        return _Match(tuple(plain[:1]), certain=not (plain and plain[0].condition)) if plain else None
    if term == "visible devices beyond the request":
        return _match_beyond_request(job, scope, launch)
    if words[0] == "launched":
        return _Match((), named=False) if launch is not None and launch.launcher in words[2].split("|") else None
    if words[0] == "started":
        started = {text for claim in job.about("script", scope) for text in texts(claim.value)}
        return _Match((), named=False) if term.partition(" ")[2] in started else None
    if words[0] == "argument":
        given = [word or "" for word in launch.arguments] if launch is not None else []
        return _Match((), named=False) if any(re.fullmatch(f"--({words[1]})(=.*)?", word) for word in given) else None
    if words[0] == "written":
        found = [claim for claim in job.setting(words[1], scope) if re.search(words[2], claim.spelling)]
        return _Match(tuple(found[:1])) if found else None
    if term == "several nodes":
        nodes, claims = nodes_spanned(job, launch) if launch is not None else (Unresolved("no launch"), ())
        return _Match(claims[:1], named=False) if numbers(nodes) and min(numbers(nodes)) > 1 else None
    if words[0] in ("perhaps", "pinned"):
        try:
            return _package(job, words[2], words[3], words[4])
        except _Undecided:
            return _Match((), certain=False) if words[0] == "perhaps" else None
    if words[0] == "package":
        return _package(job, words[1], words[2], words[3])
    return _claimed(job, words[0], words[1], words[2], scope, launch)


def _match_several_ranks(job: Job, scope: Scope, launch: Launch | None) -> _Match | None:
    """Return whether the launch starts several ranks. If the number is unknown, the rule still reports."""
    value, claims = ranks_started(job, scope) if launch is not None else (Unresolved("no launch"), ())
    found = numbers(value)
    if found and max(found) <= 1:
        return None
    return _Match(claims[:1] if found else (), certain=bool(found) and min(found) > 1, named=False)


def _match_beyond_request(job: Job, scope: Scope, launch: Launch | None) -> _Match | None:
    """Return the match for CUDA_VISIBLE_DEVICES with an index beyond the requested GPUs, which are numbered from 0."""
    visible = job.setting("env.CUDA_VISIBLE_DEVICES", scope)
    requested = [claim for claim in job.setting("gpus_per_node", scope) if claim.strength is Strength.SCHEDULER]
    if not visible or not requested or why_unresolved((*visible, *requested), launch) is not None:
        return None
    count = max(numbers(requested[0].value), default=0)
    listed = [text.split(",") for text in texts(visible[0].value)]
    beyond = all(any(is_whole_number(part) and int(part) >= count for part in parts) for parts in listed)
    return _Match((visible[0], requested[0])) if count and listed and beyond else None


def _names_distribution(job: Job, name: str) -> bool:
    """Return whether the files name a distribution, in any release."""
    said = (text for claim in job.about("package") for text in (*texts(claim.value), claim.spelling.strip("\"'")))
    return any(re.match(rf"{name}(?![\w-])", text) is not None for text in said)


def _package(job: Job, name: str, sign: str, wanted: str) -> _Match | None:
    version = pinned(job, "paddle" if name == "paddlepaddle" else name)
    if not version:
        raise _Undecided(f"the release of {name} is not pinned")
    if sign in ("<=", "=="):
        is_met = _OPERATORS[sign](cut(version, wanted), release(wanted).release)
    else:
        is_met = _OPERATORS[sign](release(version), release(wanted))
    if not is_met:
        return None
    names = (name, f"{name}-gpu")
    found = [
        c for c in job.about("package") if any(text.startswith(f"{n}==") for n in names for text in texts(c.value))
    ]
    return _Match(tuple(found[:1]))


def _claimed(job: Job, quantity: str, sign: str, wanted: str, scope: Scope, launch: Launch | None) -> _Match | None:
    claims = job.setting(quantity, scope)
    if not claims:
        return None
    unresolved = why_unresolved(claims, launch)
    if unresolved is not None:
        raise _Undecided(f"{quoted(unresolved[0])} is unknown: {unresolved[1]}")
    held = [all(_compared(item, sign, wanted) for item in claim.alternatives) for claim in claims]
    return _Match(claims[:1]) if all(held) else None


def _compared(item: Plain, sign: str, wanted: str) -> bool:
    if sign == "matches":
        return re.search(wanted, str(item)) is not None
    if wanted in _WORDS:
        return _OPERATORS[sign](str(item).lower() in ("true", "1"), _WORDS[wanted])
    try:
        return _OPERATORS[sign](float(str(item)), float(wanted))
    except ValueError:
        return sign == "==" and str(item) == wanted


def _failed(row: _Combination, subject: str, first: _Match, others: list[_Match]) -> Verdict:
    at = first.claims[0]
    spans = {at.span}
    rest: list[Claim] = []
    for claim in (*at.because, *(claim for met in others for claim in met.claims)):
        if claim.span not in spans:
            spans.add(claim.span)
            rest.append(claim)
    parts = [met.claims[0] for met in (first, *others) if met.claims and met.claims[0].quantity == _FEATURE]
    # Parts in different files may be about different models; a name that both files give joins them.
    joined = first.text != "" or len({claim.span.path for claim in parts}) <= 1
    certain = row.severity == "error" and joined and first.certain and all(met.certain for met in others)
    named = [claim for met in others if met.named for claim in met.claims if claim in rest]
    company = f", with {placed(named[0])}," if named and not at.because else ""
    return failed(
        subject,
        f"{quoted(at)}{company} {row.why}.",
        at=at,
        also=tuple((claim, "with this") for claim in rest),
        remedy=row.remedy,
        severity=None if certain else Severity.WARNING,
    )

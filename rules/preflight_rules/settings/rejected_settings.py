"""Settings and combinations of settings that, according to tables, a framework rejects or in which ranks hang."""

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
from preflight_rules.settings.places import ANY, AUTO, CALL, PlaceSettings, frameworks_of, place_settings
from preflight_rules.settings.tables import (
    Refusal,
    Setting,
    cut,
    expected_values,
    framework,
    in_range,
    index,
    may_have,
    oldest,
    pinned,
    reads,
    release,
    row_of,
    settings,
)
from preflight_rules.settings.unknown_settings import NearestNames, unknown_name


@rule("CFG001", "setting-value-refused", severity=Severity.ERROR, otherwise="no setting has a known type")
def setting_value_refused(job: Job) -> Iterator[Verdict]:
    """A setting has a value of the wrong type, or out of range, that the framework rejects.

    What it checks: Every key of a DeepSpeed configuration whose type, bounds or choices DeepSpeed's own models declare
    has a valid value, and so does every key of a SkyPilot or dstack task. Strings that these models convert (`"8"`,
    `"true"`) count as the converted values.

    Why it matters: The framework stops in every rank while it reads its configuration, after the nodes were allocated.

    Example: `"zero_optimization": {"stage": 4}`, or `"reduce_bucket_size": -1`.

    Fix: Write a value of the type and in the range that the finding names.

    Known limits: Types and bounds are those of the release that the table names; values that only newer releases reject
    are a warning unless the job's files pin one of them. If autotuning is enabled, a list contains the values to try,
    and these are not judged.
    """
    seen_locations: set[tuple[str, int, int]] = set()
    for name in frameworks_of(job):
        for place in place_settings(job, name) if not reads(name, "object") else ():
            table, version = settings(name), pinned(job, name)
            for key, claim in place.keys.items():
                setting = row_of(table, key) or _parsed_setting(place, key, claim)
                if claim.source == "arguments" and place.certain and _lacks_value(place, key, claim):
                    yield _missing_value_verdict(place, claim)
                    continue
                location = (claim.span.path, claim.span.line, claim.span.column)
                if setting is None or not setting.kind or location in seen_locations:
                    continue
                seen_locations.add(location)
                yield _setting_verdict(place, setting, claim, version)


#: The kind of value that the parser of TrainingArguments expects on the command line, by the type of the field.
_PARSED_KINDS = {"int": "whole", "float": "decimal", "bool": "strtobool"}
#: Values of `log_level` and `log_level_replica`, which the class does not check.
_LEVELS = ("detail", "debug", "info", "warning", "error", "critical", "passive")


def _parsed_setting(place: PlaceSettings, key: str, claim: Claim) -> Setting | None:
    """Return the setting for an option that TrainingArguments' parser reads; None for other keys."""
    row = _argument_rows().get(key) if place.framework == "transformers" and claim.source == "arguments" else None
    if row is None or not place.certain or row.takes not in ("1", "?"):
        return None
    kind = _PARSED_KINDS.get(row.kind.removesuffix(" | None"), "given")
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


def _lacks_value(place: PlaceSettings, key: str, claim: Claim) -> bool:
    """Return whether an option lacks a value: nothing or another option follows, or it is a switch that needs a
    value.
    """
    if place.framework == "transformers" and key == "fsdp":
        # Newer releases accept the option without a value.
        return False
    if claim.value == NO_VALUE:
        return True
    if place.framework == "transformers" and key in _VALUED_SWITCHES and claim.value == Known(True):
        return not claim.spelling.split()[1:] and "=" not in claim.spelling
    following = (item for item in claim.alternatives if isinstance(item, str) and item != claim.spelling)
    return any(item.startswith("--") for item in following)


def _missing_value_verdict(place: PlaceSettings, claim: Claim) -> Verdict:
    """Return the verdict on an option that lacks its required value."""
    fault = (
        "another option follows"
        if isinstance(claim.value, Known) and claim.value.value is not True
        else "nothing follows"
    )
    return failed(
        place.subject,
        f"{quoted(claim)}: {fault} where a value is expected, and the parser stops with `expected one argument`.",
        at=claim,
        remedy="Give the option a value, or remove it.",
    )


def _setting_verdict(place: PlaceSettings, setting: Setting, claim: Claim, version: str) -> Verdict:
    unresolved = why_unresolved((claim,), place.launch)
    if unresolved is not None:
        return unknown(place.subject, f"{quoted(claim)} is unknown: {unresolved[1]}", at=claim)
    applies = in_range(version, setting.since, setting.until)
    expected_texts = [_expected_values_text(setting, item, version) for item in claim.alternatives if item != AUTO]
    if applies is False or not any(expected_texts):
        return passed(place.subject)
    try:
        if not _is_read(place, setting) or _is_tuned(place, claim):
            return passed(place.subject)
    except UnknownValue as error:
        return unknown(place.subject, f"whether {quoted(claim)} is read depends on {error}", at=claim)
    if not all(expected_texts):
        return unknown(place.subject, f"{quoted(claim)} has several values, some of which are rejected", at=claim)
    framework_row = framework(place.framework)
    assert framework_row is not None
    return failed(
        place.subject,
        f"{quoted(claim)} is rejected: {framework_row.title} expects {expected_texts[0]} for {setting.key}, so it"
        " fails at startup" + (f" (since {setting.since})." if setting.since else "."),
        at=claim,
        remedy=f"Write {expected_texts[0]}, or remove the key.",
        severity=Severity.WARNING if applies is None else None,
    )


def _expected_values_text(setting: Setting, item: Plain, version: str) -> str:
    """Return a description of the expected values; empty if the release accepts `item`."""
    if isinstance(item, bool) and setting.bool_until:
        return "a whole number" if version and in_range(version, "", setting.bool_until) is False else ""
    return expected_values(setting, item)


def _is_tuned(place: PlaceSettings, claim: Claim) -> bool:
    """Return whether the value lists values for DeepSpeed's autotuning to try.

    Raises UnknownValue if that depends on an unknown value.
    """
    if place.framework != "deepspeed" or not all(isinstance(item, tuple) for item in claim.alternatives):
        return False
    return bool(place.value("autotuning.enabled"))


def _is_read(place: PlaceSettings, setting: Setting) -> bool:
    """Return whether the framework reads the setting. Raises UnknownValue if that depends on an unknown value."""
    return not setting.when or holds(setting.when, place.value)


@rule(
    "CFG002",
    "settings-refused-together",
    severity=Severity.ERROR,
    otherwise="no settings of a framework whose checks are known",
)
def settings_refused_together(job: Job) -> Iterator[Verdict]:
    """Settings of a framework contradict each other, or one of them is no longer supported.

    What it checks: The settings match no condition in a table, with sources and releases, under which transformers,
    DeepSpeed, Accelerate, Lightning, torchtitan, SkyPilot and dstack stop while reading their settings. For
    PaddlePaddle, its launcher, PaddleNLP, PaddleFormers, PaddleFleetX and PaddleRec the table also lists conditions
    that make ranks wait or lose a setting; if the job continues anyway, the finding is a warning.

    Why it matters: The framework stops in every rank with an exception, after the nodes were allocated.

    Example: `load_best_model_at_end=True` with `eval_strategy="no"`, or `"elasticity": {...}` for DeepSpeed 0.19.8.

    Fix: The finding names the change for its condition.

    Known limits: Settings that a script changes after creating the object are not seen. A condition that holds only for
    some releases is a warning unless the job's files pin a release.
    """
    seen_rows: set[tuple[str, int, str]] = set()
    releases = functools.cache(functools.partial(pinned, job))
    for name in frameworks_of(job):
        for place in place_settings(job, name):
            is_accepted = True
            version, oldest_release = releases(name), oldest(name)
            is_older = bool(version and oldest_release) and in_range(version, oldest_release, "") is False
            for row in index(name).about(place.keys, place.inner):
                if is_older and not (row.since and in_range(row.since, oldest_release, "") is False):
                    # Only rows that begin before the oldest known release apply to older releases.
                    continue
                applies = in_range(releases(row.package or name), row.since, row.until)
                verdict = _condition_verdict(place, row, certain=applies is True) if applies is not False else None
                if verdict is None:
                    continue
                is_accepted = False
                location = verdict.locations[0]
                key = (location.path, location.line, row.when)
                if key not in seen_rows:
                    seen_rows.add(key)
                    yield verdict
            if is_accepted and is_older:
                yield unknown(
                    place.subject,
                    f"the job pins {version}, and what releases before {oldest_release} reject is unknown",
                )
            elif is_accepted:
                yield passed(place.subject)


def _condition_verdict(place: PlaceSettings, row: Refusal, *, certain: bool) -> Verdict | None:
    """Return the verdict on one condition; None if it is false or its keys are not given."""
    claims = place.others(row.at[0], row.known) if row.known else []
    claims = claims or [claim for key in row.at if (claim := place.claim(key)) is not None]
    # The program may add settings that a file lacks, if no launch names the file.
    may_be_added = ANY in row.at and place.launch is None and reads(place.framework, "from-programs")
    if not claims or may_be_added or (row.pinned and not certain):
        return None
    assumption = ""
    try:
        if not holds(row.when, place.value):
            return None
    except UnknownValue as error:
        if not _may_hold_in_call(place, row):
            return None
        if _certainly_holds(place.value_of_several_ranks, row):
            assumption = "with more than one rank, "
        elif _certainly_holds(place.value_on_one_node, row):
            assumption = "on one node, "
        else:
            return unknown(place.subject, f"{error} is unknown, and {row.why}", at=claims[0])
    first, *other_claims = claims
    other_claims = [claim for claim in other_claims if claim.span != first.span]
    other_places = "".join(f" and {placed(claim)}" for claim in other_claims[:2])
    range_text = "" if certain else f" ({_range_text(row)})"
    return failed(
        place.subject,
        f"{quoted(first)}{other_places}: {assumption}{row.why}{range_text}.",
        at=first,
        also=tuple((claim, "with this") for claim in other_claims),
        remedy=row.remedy,
        severity=None if certain and place.certain and not row.severity and not assumption else Severity.WARNING,
    )


def _may_hold_in_call(place: PlaceSettings, row: Refusal) -> bool:
    """Return whether a condition may hold in a call, assuming that the call's branch is taken."""
    try:
        return holds(row.when, place.value_in_call)
    except UnknownValue:
        return True


def _certainly_holds(value_of: Callable[[str], Any], row: Refusal) -> bool:
    """Return whether a condition certainly holds with the values that the assumption gives."""
    try:
        return holds(row.when, value_of)
    except UnknownValue:
        return False


def _range_text(row: Refusal) -> str:
    if row.since and row.until:
        return f"releases {row.since} to {row.until}"
    return f"since {row.since}" if row.since else f"until {row.until}"


@rule(
    "CFG003",
    "trainer-argument-unknown",
    severity=Severity.ERROR,
    otherwise="no options are parsed for TrainingArguments alone",
)
def trainer_argument_unknown(job: Job) -> Iterator[Verdict]:
    """Hugging Face's trainer is given an argument that it does not have.

    What it checks: The names in `TrainingArguments(...)`, and in a file or on a command line that `HfArgumentParser`
    parses for TrainingArguments alone, are its fields in the release that the job's files pin, or in any known release.

    Why it matters: Python stops at the call ("unexpected keyword argument"), and the parser at the name ("Some keys are
    not used"), in every rank.

    Example: `TrainingArguments(evaluation_strategy="steps")` with transformers 5, where it is called eval_strategy.

    Fix: Write the argument as in that release, or remove it.

    Known limits: Without a pinned release, a name that exists in some release is accepted, and a name that resembles no
    field is a warning. Classes derived from TrainingArguments have their own fields, and are not judged.
    """
    seen_locations: set[tuple[str, int, int]] = set()
    names = NearestNames()
    version = pinned(job, "transformers")
    for place in place_settings(job, "transformers"):
        call = place.keys.get(CALL)
        # A class that extends TrainingArguments may have its own fields.
        is_plain = call is not None and call.spelling.endswith("TrainingArguments")
        is_strict = is_plain or (place.parser is not None and place.parser.alternatives == (True,))
        if not is_strict:
            continue
        is_accepted = True
        for key, claim in place.keys.items():
            location = (claim.span.path, claim.span.line, claim.span.column)
            if "." in key or key == CALL or location in seen_locations:
                continue
            verdict = _unknown_argument_verdict(place, key, claim, version, names)
            if verdict is not None:
                is_accepted = False
                seen_locations.add(location)
                yield verdict
        if is_accepted:
            yield passed(place.subject)


def _unknown_argument_verdict(
    place: PlaceSettings, key: str, claim: Claim, version: str, names: NearestNames
) -> Verdict | None:
    row = _argument_rows().get(key)
    if row is not None and may_have(load_table("training_arguments"), row, version):
        return None
    oldest_release = load_table("training_arguments").versions[0]
    if row is None and version and not in_range(version, oldest_release, ""):
        reason = f"{quoted(claim)}: transformers {version} is older than the known releases"
        return unknown(place.subject, reason, at=claim)
    nearest = _RENAMED_ARGUMENTS.get(key) or names.nearest(
        claim, "TrainingArguments", key, lambda: (name for name, other in _argument_rows().items() if not other.until)
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
_RENAMED_ARGUMENTS = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "warmup_ratio": "warmup_steps",
}


@functools.cache
def _argument_rows() -> dict[str, Row]:
    """Return the rows by field name, including the negations that the parser adds (`--no_tf32`)."""
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
_BOOLEANS = {"true": True, "false": False}


class _Combination(NamedTuple):
    name: str
    all: tuple[str, ...]
    why: str
    remedy: str
    severity: str
    source: str
    none: tuple[str, ...] = ()


class _UnknownTermError(Exception):
    """A term depends on an unknown value, which the exception's argument describes."""


class _Match(NamedTuple):
    """A term that holds or may hold: the claims that show it, the text that replaces `{}`, and whether it certainly
    holds.

    `named`: whether a message quotes the claims.
    """

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
    """Calls, settings or pinned package versions are incompatible: the framework stops, or the ranks hang.

    What it checks: The job has no combination from a table, each with its source, of calls in scripts, settings in
    files and command lines, and pinned releases. Among them are processes that are spawned while a script is imported,
    samplers on iterable datasets, adapters in one flat FSDP parameter, float16 weights with a scaler, activation
    checkpointing with a search for unused parameters, functions with a collective that only one rank calls, sharding
    stages, attributes that a wrapper hides, process groups that are never created, and functions that cannot be pickled
    for a spawned process.

    Why it matters: Each part is valid alone, so nothing fails until all ranks are running; then every rank stops with
    an exception, or waits until a timeout.

    Example: `mp.spawn(run, nprocs=4)` at the end of a script without `if __name__ == "__main__":`.

    Fix: The finding names the change for its combination.

    Known limits: A part under a condition makes the finding a warning. Calls inside a library are not seen.
    """
    seen_rows: set[tuple[str, str, int]] = set()
    for subject, scope, launch in subjects(job):
        has_passed = False
        for row in _combinations():
            for verdict in _row_verdicts(job, row, subject, scope, launch):
                if verdict is None:
                    has_passed = True
                    continue
                location = verdict.locations[0]
                if (row.name, location.path, location.line) not in seen_rows:
                    seen_rows.add((row.name, location.path, location.line))
                    yield verdict
        if has_passed:
            yield passed(subject)


def _row_verdicts(
    job: Job, row: _Combination, subject: str, scope: Scope, launch: Launch | None
) -> Iterator[Verdict | None]:
    """Yield the verdicts of one row; None for each match of its first term that another term excludes."""
    if row.all[0].startswith("package ") and not all(
        _names_distribution(job, term.split(" ")[1]) for term in row.all if term.startswith("package ")
    ):
        # The row is about two releases, and no file names one of the packages.
        return
    try:
        firsts = list(_first_matches(job, row.all[0], scope, launch))
    except _UnknownTermError as error:
        with contextlib.suppress(_UnknownTermError):
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
        except _UnknownTermError as error:
            yield unknown(subject, f"{quoted(first.claims[0])}: {error}", at=first.claims[0])
            continue
        yield _combination_finding(row, subject, first, [match for match in others if match is not None])


def _first_matches(job: Job, term: str, scope: Scope, launch: Launch | None) -> Iterator[_Match]:
    """Yield each match of a row's first term. Raises _UnknownTermError if a match is unknown."""
    kind, _, rest = term.partition(" ")
    if kind != "feature":
        match = _match_term(job, term, scope, launch)
        if match is not None:
            yield match
        return
    prefix, has_suffix, _ = rest.partition("{}")
    for claim in job.about(_FEATURE, scope):
        for text in texts(claim.value):
            if text == rest or (has_suffix and text.startswith(prefix)):
                yield _Match((claim,), text.removeprefix(prefix) if has_suffix else "", certain=not claim.condition)


def _match_term(job: Job, term: str, scope: Scope, launch: Launch | None) -> _Match | None:
    """Return the match of a term; None if it is false. Raises _UnknownTermError if its value is unknown."""
    words = term.split(" ")
    if words[0] == "feature":
        feature = term.partition(" ")[2]
        matching = [claim for claim in job.about(_FEATURE, scope) if feature in texts(claim.value)]
        certain = any(not claim.condition for claim in matching)
        return _Match(tuple(matching[:1]), certain=certain) if matching else None
    if term in ("several ranks", "certainly several ranks"):
        match = _match_several_ranks(job, scope, launch)
        return match if match is not None and (match.certain or term == "several ranks") else None
    if term == "no default of accelerate":
        is_accelerate = launch is not None and launch.launcher == "accelerate"
        return _Match((), certain=not is_accelerate or bool(job.setting("distributed_type", scope)))
    if term == "plain python":
        programs = [claim for claim in job.about("plain_program", scope) if not job.launches]
        return _Match(tuple(programs[:1]), certain=not (programs and programs[0].condition)) if programs else None
    if term == "visible devices beyond the request":
        return _match_beyond_request(job, scope, launch)
    if words[0] == "launched":
        return _Match((), named=False) if launch is not None and launch.launcher in words[2].split("|") else None
    if words[0] == "started":
        scripts = {text for claim in job.about("script", scope) for text in texts(claim.value)}
        return _Match((), named=False) if term.partition(" ")[2] in scripts else None
    if words[0] == "argument":
        words_given = [word or "" for word in launch.arguments] if launch is not None else []
        return (
            _Match((), named=False)
            if any(re.fullmatch(f"--({words[1]})(=.*)?", word) for word in words_given)
            else None
        )
    if words[0] == "written":
        matching = [claim for claim in job.setting(words[1], scope) if re.search(words[2], claim.spelling)]
        return _Match(tuple(matching[:1])) if matching else None
    if term == "several nodes":
        nodes, claims = nodes_spanned(job, launch) if launch is not None else (Unresolved("no launch"), ())
        return _Match(claims[:1], named=False) if numbers(nodes) and min(numbers(nodes)) > 1 else None
    if words[0] in ("perhaps", "pinned"):
        try:
            return _match_package(job, words[2], words[3], words[4])
        except _UnknownTermError:
            return _Match((), certain=False) if words[0] == "perhaps" else None
    if words[0] == "package":
        return _match_package(job, words[1], words[2], words[3])
    return _match_quantity(job, words[0], words[1], words[2], scope, launch)


def _match_several_ranks(job: Job, scope: Scope, launch: Launch | None) -> _Match | None:
    """Return a match if the launch may start several ranks (uncertain if the number is unknown); otherwise None."""
    value, claims = ranks_started(job, scope) if launch is not None else (Unresolved("no launch"), ())
    rank_counts = numbers(value)
    if rank_counts and max(rank_counts) <= 1:
        return None
    return _Match(claims[:1] if rank_counts else (), certain=bool(rank_counts) and min(rank_counts) > 1, named=False)


def _match_beyond_request(job: Job, scope: Scope, launch: Launch | None) -> _Match | None:
    """Return a match if CUDA_VISIBLE_DEVICES has an index beyond the requested GPUs, which are numbered from 0."""
    visible = job.setting("env.CUDA_VISIBLE_DEVICES", scope)
    requested = [claim for claim in job.setting("gpus_per_node", scope) if claim.strength is Strength.SCHEDULER]
    if not visible or not requested or why_unresolved((*visible, *requested), launch) is not None:
        return None
    count = max(numbers(requested[0].value), default=0)
    lists = [text.split(",") for text in texts(visible[0].value)]
    is_beyond = all(any(is_whole_number(part) and int(part) >= count for part in parts) for parts in lists)
    return _Match((visible[0], requested[0])) if count and lists and is_beyond else None


def _names_distribution(job: Job, name: str) -> bool:
    """Return whether the files name a distribution, in any release."""
    names_ = (text for claim in job.about("package") for text in (*texts(claim.value), claim.spelling.strip("\"'")))
    return any(re.match(rf"{name}(?![\w-])", text) is not None for text in names_)


def _match_package(job: Job, name: str, sign: str, required: str) -> _Match | None:
    version = pinned(job, "paddle" if name == "paddlepaddle" else name)
    if not version:
        raise _UnknownTermError(f"the release of {name} is not pinned")
    if sign in ("<=", "=="):
        is_met = _OPERATORS[sign](cut(version, required), release(required).release)
    else:
        is_met = _OPERATORS[sign](release(version), release(required))
    if not is_met:
        return None
    names = (name, f"{name}-gpu")
    claims = [
        c for c in job.about("package") if any(text.startswith(f"{n}==") for n in names for text in texts(c.value))
    ]
    return _Match(tuple(claims[:1]))


def _match_quantity(
    job: Job, quantity: str, sign: str, required: str, scope: Scope, launch: Launch | None
) -> _Match | None:
    claims = job.setting(quantity, scope)
    if not claims:
        return None
    unresolved = why_unresolved(claims, launch)
    if unresolved is not None:
        raise _UnknownTermError(f"{quoted(unresolved[0])} is unknown: {unresolved[1]}")
    are_met = [all(_is_met(item, sign, required) for item in claim.alternatives) for claim in claims]
    return _Match(claims[:1]) if all(are_met) else None


def _is_met(item: Plain, sign: str, required: str) -> bool:
    if sign == "matches":
        return re.search(required, str(item)) is not None
    if required in _BOOLEANS:
        return _OPERATORS[sign](str(item).lower() in ("true", "1"), _BOOLEANS[required])
    try:
        return _OPERATORS[sign](float(str(item)), float(required))
    except ValueError:
        return sign == "==" and str(item) == required


def _combination_finding(row: _Combination, subject: str, first: _Match, others: list[_Match]) -> Verdict:
    first_claim = first.claims[0]
    spans = {first_claim.span}
    other_claims: list[Claim] = []
    for claim in (*first_claim.because, *(claim for met in others for claim in met.claims)):
        if claim.span not in spans:
            spans.add(claim.span)
            other_claims.append(claim)
    features = [met.claims[0] for met in (first, *others) if met.claims and met.claims[0].quantity == _FEATURE]
    # Features in different files may concern different models, unless both files give the same name.
    is_one_model = first.text != "" or len({claim.span.path for claim in features}) <= 1
    is_certain = row.severity == "error" and is_one_model and first.certain and all(met.certain for met in others)
    named_claims = [claim for met in others if met.named for claim in met.claims if claim in other_claims]
    with_text = f", with {placed(named_claims[0])}," if named_claims and not first_claim.because else ""
    return failed(
        subject,
        f"{quoted(first_claim)}{with_text} {row.why}.",
        at=first_claim,
        also=tuple((claim, "with this") for claim in other_claims),
        remedy=row.remedy,
        severity=None if is_certain else Severity.WARNING,
    )

"""Settings that a framework rejects at startup, judged by tables of what each framework accepts."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Plain
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight.plugins.claim_text import placed, quoted, why_unresolved
from preflight.sources.conditions import UnknownValue, holds
from preflight.sources.tables import Row, load_table
from preflight_rules.settings.frameworks import framework, reads
from preflight_rules.settings.given import ANY, AUTO, CALL, Given, given, with_settings
from preflight_rules.settings.kinds import Setting, refused
from preflight_rules.settings.tables import (
    Refusal,
    in_range,
    index,
    may_have,
    oldest,
    pinned,
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

    Known limits: Types and bounds are those of the release that the table names; what only newer releases reject is a
    warning unless the job's files pin one of them. Where autotuning is enabled, a list holds the values that it tries,
    and they are not judged.
    """
    seen: set[tuple[str, int, int]] = set()
    for name in with_settings(job):
        for place in given(job, name) if not reads(name, "object") else ():
            table, version = settings(name), pinned(job, name)
            for key, claim in place.keys.items():
                setting = row_of(table, key) or _parsed(place, key, claim)
                if (
                    claim.source == "arguments"
                    and place.certain
                    and any(
                        isinstance(item, str) and item.startswith("--") and item != claim.spelling
                        for item in claim.alternatives
                    )
                ):
                    yield _without_value(place, claim)
                    continue
                at = (claim.span.path, claim.span.line, claim.span.column)
                if setting is None or not setting.kind or at in seen:
                    continue
                seen.add(at)
                yield _judged(place, setting, claim, version)


#: How the parser of TrainingArguments reads a word of the command line, by the type of the field.
_PARSED = {"int": "whole", "float": "decimal", "bool": "strtobool"}
#: What it takes for `log_level` and `log_level_replica`, which the class does not compare.
_LEVELS = ("detail", "debug", "info", "warning", "error", "critical", "passive")


def _parsed(place: Given, key: str, claim: Claim) -> Setting | None:
    """What the parser of TrainingArguments takes for an option; None for anything else."""
    row = _arguments().get(key) if place.framework == "transformers" and claim.source == "arguments" else None
    if row is None or not place.certain or row.takes not in ("1", "?"):
        return None
    kind = _PARSED.get(row.kind.removesuffix(" | None"), "given")
    if key.startswith("log_level"):
        return Setting(key, kind, choices=_LEVELS)
    return Setting(key, kind) if kind != "given" or row.takes == "1" else None


def _without_value(place: Given, claim: Claim) -> Verdict:
    """For an option that another one follows where its value belongs."""
    return failed(
        place.subject,
        f"{quoted(claim)}: another option follows where a value is expected, and the parser stops with `expected one"
        " argument`.",
        at=claim,
        remedy="Give the option its value, or remove it.",
    )


def _judged(place: Given, setting: Setting, claim: Claim, version: str) -> Verdict:
    unresolved = why_unresolved((claim,), place.launch)
    if unresolved is not None:
        return unknown(place.subject, f"{quoted(claim)} is unknown: {unresolved[1]}", at=claim)
    applies = in_range(version, setting.since, setting.until)
    expected = [_refused(setting, item, version) for item in claim.alternatives if item != AUTO]
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
        f"{quoted(claim)} is rejected: {known.title} expects {expected[0]} for {setting.key}, and fails at startup"
        + (f" (since {setting.since})." if setting.since else "."),
        at=claim,
        remedy=f"Write {expected[0]}, or remove the key.",
        severity=Severity.WARNING if applies is None else None,
    )


def _refused(setting: Setting, item: Plain, version: str) -> str:
    """What is expected instead of a value, in words; empty if the release takes it."""
    if isinstance(item, bool) and setting.bool_until:
        return "a whole number" if version and in_range(version, "", setting.bool_until) is False else ""
    return refused(setting, item)


def _is_tuned(place: Given, claim: Claim) -> bool:
    """Whether the value lists what DeepSpeed's autotuning tries, one after the other.

    Raises UnknownValue if that depends on a value that is not known.
    """
    if place.framework != "deepspeed" or not all(isinstance(item, tuple) for item in claim.alternatives):
        return False
    return bool(place.value("autotuning.enabled"))


def _is_read(place: Given, setting: Setting) -> bool:
    """Whether the framework reads the setting. Raises UnknownValue if that depends on a value that is not known."""
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
    dstack stop while they read their settings, as a table with the source of each row and the releases that it holds
    for. For PaddlePaddle, its launcher, PaddleNLP, PaddleFormers, PaddleFleetX and PaddleRec also those under which
    ranks wait or a setting is lost; where the job continues all the same, the finding is a warning.

    Why it matters: The framework stops in every rank with an exception, after the nodes were allocated.

    Example: `load_best_model_at_end=True` with `eval_strategy="no"`, or `"elasticity": {...}` for DeepSpeed 0.19.8.

    Fix: The finding names the change for its condition.

    Known limits: What a script sets after it has created the object is not seen. A condition that holds only for some
    releases is a warning unless the job's files pin a release.
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
                verdict = _together(place, row, certain=applies is True) if applies is not False else None
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
                    place.subject, f"the job pins {version}, and what releases before {first} refuse is not known"
                )
            elif fine:
                yield passed(place.subject)


def _together(place: Given, row: Refusal, *, certain: bool) -> Verdict | None:
    """The verdict of one condition; None if it does not hold, or concerns keys that are not given."""
    claims = place.others(row.at[0], row.known) if row.known else []
    claims = claims or [claim for key in row.at if (claim := place.claim(key)) is not None]
    # What a file lacks that no launch names, the program that reads it may add.
    alone = ANY in row.at and place.launch is None and reads(place.framework, "from-programs")
    if not claims or alone or (row.pinned and not certain):
        return None
    try:
        if not holds(row.when, place.value):
            return None
    except UnknownValue as error:
        if not _holds_in_call(place, row):
            return None
        return unknown(place.subject, f"{error} is unknown, and {row.why}", at=claims[0])
    first, *rest = claims
    rest = [claim for claim in rest if claim.span != first.span]
    others = "".join(f" and {placed(claim)}" for claim in rest[:2])
    range_text = "" if certain else f" ({_range(row)})"
    return failed(
        place.subject,
        f"{quoted(first)}{others}: {row.why}{range_text}.",
        at=first,
        also=tuple((claim, "with this") for claim in rest),
        remedy=row.remedy,
        severity=None if certain and place.certain and not row.severity else Severity.WARNING,
    )


def _holds_in_call(place: Given, row: Refusal) -> bool:
    """Whether a condition may hold in a call of which only the branch is open."""
    try:
        return holds(row.when, place.value_in_call)
    except UnknownValue:
        return True


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
    parses for TrainingArguments alone, are its fields in the release that the job's files pin, or in any that is known.

    Why it matters: Python stops at the call ("unexpected keyword argument"), and the parser at the name ("Some keys are
    not used"), in every rank.

    Example: `TrainingArguments(evaluation_strategy="steps")` with transformers 5, where it is called eval_strategy.

    Fix: Write the argument as that release spells it, or remove it.

    Known limits: Without a pinned release, a name that some release has is accepted, and one that resembles none is a
    warning. Classes derived from TrainingArguments have fields of their own, and are not judged.
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
        reason = f"{quoted(claim)}: transformers {version} is older than what is known"
        return unknown(place.subject, reason, at=claim)
    nearest = _RENAMED.get(key) or names.nearest(
        claim,
        "TrainingArguments",
        key,
        lambda: (name for name, other in _arguments().items() if not other.until),
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


#: Arguments that have another name since transformers 5, or that another takes the place of.
_RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "warmup_ratio": "warmup_steps",
}


@functools.cache
def _arguments() -> dict[str, Row]:
    """The rows by field; the negation that the parser adds (`--no_tf32`) is one, too."""
    rows = load_table("training_arguments").rows
    negated = {spelling[2:]: row for row in rows for spelling in row.spellings if "-" not in spelling[2:]}
    return {row.dest: row for row in rows} | negated

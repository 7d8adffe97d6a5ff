"""Settings that a framework or an orchestrator does not have, by the tables of what they accept."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import WHOLE_JOB, Claim, Job, Strength
from preflight.plugins.authoring import Verdict, passed, rule, unknown
from preflight_rules.helpers import quoted
from preflight_rules.settings.frameworks import Keys, framework, reads, with_all_keys
from preflight_rules.settings.given import CALL, PARSER, Given, given
from preflight_rules.settings.tables import canonical, in_range, newest, pinned, release, row_of, settings
from preflight_rules.settings.unknown_names import NearestNames, unknown_name


@rule(
    "CFG007",
    "framework-setting-unknown",
    severity=Severity.ERROR,
    profile="gate",
    otherwise="no settings of a framework that stops at an unknown one",
    evidence=(
        (
            "paddle/distributed/fleet/base/distributed_strategy.py of 2.6.2 and 3.3.1 (__setattr__, check_configs_key)",
            "https://github.com/PaddlePaddle/Paddle/blob/v2.6.2/python/paddle/distributed/fleet/base/distributed_strategy.py",
        ),
        "the parser of Megatron-LM core_v0.16.1",
        "openrlhf/cli/train_ppo_ray.py of 0.11.2",
        "verl/trainer/config of 0.9.1",
        "torchtitan's JobConfig at four releases from 0.1.0 to 0.2.2",
        "the schemas of SkyPilot 0.14.1 and dstack 0.22.5",
    ),
)
def framework_setting_unknown(job: Job) -> Iterator[Verdict]:
    """A framework is given a setting that it does not have, and stops.

    What it checks: The attributes of a `fleet.DistributedStrategy` and the keys of its `..._configs`, the options of a
    program of Megatron-LM and of OpenRLHF's `train_ppo_ray`, the keys that a line sets for verl's `main_ppo`, and the
    keys of torchtitan's TOML and of a task of SkyPilot or dstack are those of the release that the job's files pin, or
    of any that is known.

    Why it matters: The framework stops in every rank while it reads its settings: "use_amp is not a attribute of
    DistributedStrategy".

    Example: `strategy.use_amp = True`, or `strategy.amp_configs = {"dtype": "float16"}`.

    Fix: Write the name that the finding gives, or remove the setting.

    Known limits: Without a pinned release, a name that is like no other is a warning: a newer release may have it.
    Programs add options to those of Megatron-LM, so these are unknown unless the job pins the release that was read;
    the same holds for OpenRLHF and verl. Keys of verl are judged with its default configuration only, not with
    `model_engine=megatron`; those of torchtitan only without a module that adds keys. Of a script that makes several
    strategies, none is judged.
    """
    seen: set[tuple[str, int, int]] = set()
    names = NearestNames()
    for name in with_all_keys():
        known, version = _keys_of(name), pinned(job, name)
        for place in given(job, name):
            fine = True
            extending = _extending(job, place, known)
            if extending is not None:
                yield unknown(place.subject, f"{quoted(extending)} may add keys to {known.title}", at=extending)
                continue
            for key, claim in place.keys.items():
                verdict = None if key in (CALL, PARSER) else _judged(place, known, key, claim, version, names)
                if verdict is None:
                    continue
                fine = False
                at = (claim.span.path, claim.span.line, claim.span.column)
                if at not in seen:
                    seen.add(at)
                    yield verdict
            if fine:
                yield passed(place.subject)


def _keys_of(name: str) -> Keys:
    row = framework(name)
    assert row is not None and row.keys is not None
    return row.keys


def _extending(job: Job, place: Given, known: Keys) -> Claim | None:
    """The setting that names a module with further keys, in the file or on the line that starts the program."""
    scope = place.launch.scope if place.launch is not None else WHOLE_JOB
    found = dict(job.settings(place.framework, scope)) if known.extended_by else {}
    claims = (found[name] for name in known.extended_by if name in found)
    return next((claim for claim in claims if claim.alternatives != ("",)), None)


def _judged(place: Given, known: Keys, key: str, claim: Claim, version: str, names: NearestNames) -> Verdict | None:
    table = settings(place.framework)
    if reads(place.framework, "composed"):
        if not _is_set(place, claim):
            return None
        # The first part that is missing is at fault: `actor.fsdp.size` where there is no `actor.fsdp`.
        while "." in key and row_of(table, key.rpartition(".")[0]) is None:
            key = key.rpartition(".")[0]
    section, name = _parts(known, key)
    above = row_of(table, section) if section else None
    if section and (above is None or not above.closed):
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
    last = newest(place.framework)
    # The table is of one release: others, older ones as well, have other options.
    own = not version or release(version).release[:2] != release(last).release[:2]
    if known.extended and setting is None and own:
        reason = f"{quoted(claim)} is not an option of {known.title} that is known; the program may add it"
        return unknown(place.subject, reason, at=claim)
    owner = section or known.title
    nearest = known.usual.get(key) or names.nearest(
        claim, owner, name, lambda: _siblings(place.framework, known, key, version)
    )
    return unknown_name(
        place,
        claim,
        name=name,
        owner=owner,
        release=f"release {version}" if version else f"any release up to {last}",
        nearest=nearest,
        sure=bool(nearest or setting is not None or (version and in_range(version, "", last))),
        unless_sure=Severity.WARNING,
        stopped=known.stopped,
    )


def _parts(known: Keys, key: str) -> tuple[str, str]:
    """The section of a key, and the name that it has there."""
    section, _, name = ("", "", key) if known.flat else key.rpartition(".")
    return section, name


def _is_set(place: Given, claim: Claim) -> bool:
    """Whether a word of the line sets a key of the default configuration, and neither adds it nor chooses a group."""
    word = claim.spelling.lstrip("'\"")
    default = "model_engine" not in place.keys and place.complete
    return default and claim.strength is Strength.FLAG and not word.startswith(("+", "~", "hydra")) and "@" not in word


def _siblings(name: str, known: Keys, key: str, version: str) -> Iterator[str]:
    """The names that the section of a key has in a release."""
    section = canonical(_parts(known, key)[0])
    for other, row in settings(name).items():
        above, last = _parts(known, other)
        if above == section and other != key and in_range(version, row.added, row.gone) is not False:
            yield last

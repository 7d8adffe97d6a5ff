"""Settings that a framework or an orchestrator does not have, by the tables of what they accept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from preflight.model.findings import Severity
from preflight.model.job import WHOLE_JOB, Claim, Job, Strength
from preflight.plugins.authoring import Verdict, passed, rule, unknown
from preflight_rules.helpers import quoted
from preflight_rules.settings.given import CALL, COMPOSED, PARSER, Given, given
from preflight_rules.settings.tables import canonical, in_range, newest, pinned, release, row_of, settings
from preflight_rules.settings.unknown_names import NearestNames, unknown_name


class Names(NamedTuple):
    """A framework whose table has every key.

    Args:
        title: what has the keys, as a message gives it.
        extended: whether programs add options of their own, so that a job has to pin the release of the table.
        extended_by: keys that name a module of the job's own, which adds keys.
        flat: whether options have dots in their names, which separate no sections.
        stopped: what happens at an unknown key.
        dashed: the options that have an underscore, where all others have dashes alone; None where it is not known.
        usual: for keys of earlier releases and of other frameworks, what is meant.
    """

    title: str
    extended: bool = False
    extended_by: tuple[str, ...] = ()
    flat: bool = False
    stopped: str = "every rank stops"
    dashed: frozenset[str] | None = None
    usual: dict[str, str] = {}


_COMPLETE = {
    "paddle": Names("DistributedStrategy"),
    "megatron": Names(
        "Megatron-LM",
        extended=True,
        # The old names of two options, which are still taken.
        dashed=frozenset(("--override-opt_param-scheduler", "--use-checkpoint-opt_param-scheduler")),
    ),
    "openrlhf": Names("OpenRLHF", extended=True, flat=True),
    "verl": Names("verl", extended=True),
    "torchtitan": Names(
        "torchtitan",
        extended_by=("job.custom_config_module", "experimental.custom_args_module", "module"),
        usual={
            "training.batch_size": "local_batch_size",
            "training.compile": "compile.enable",
            "training.seed": "debug.seed",
            "training.deterministic": "debug.deterministic",
            "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
            "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
            "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
            "experimental.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
            "experimental.context_parallel_degree": "parallelism.context_parallel_degree",
            "checkpoint.enable_checkpoint": "enable",
            "float8": "quantize.linear.float8",
        },
    ),
    "dstack": Names(
        "dstack's task",
        stopped="dstack refuses the task",
        usual={
            "num_nodes": "nodes",
            "envs": "env",
            "command": "commands",
            "run": "commands",
            "gpu": "resources.gpu",
            "accelerators": "resources.gpu",
            "resources.accelerators": "gpu",
            "resources.mem": "memory",
            "replicas": "nodes",
        },
    ),
    "skypilot": Names(
        "SkyPilot's task",
        stopped="SkyPilot refuses the task",
        usual={
            "nodes": "num_nodes",
            "env": "envs",
            "command": "run",
            "commands": "run",
            "accelerators": "resources.accelerators",
            "resources.gpus": "accelerators",
            "resources.gpu": "accelerators",
            "num_gpus": "resources.accelerators",
            "image": "resources.image_id",
            "resources.spot": "use_spot",
            "resources.num_nodes": "num_nodes at the top",
        },
    ),
}


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
    for framework, known in _COMPLETE.items():
        version = pinned(job, framework)
        for place in given(job, framework):
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


def _extending(job: Job, place: Given, known: Names) -> Claim | None:
    """The setting that names a module with further keys, in the file or on the line that starts the program."""
    scope = place.launch.scope if place.launch is not None else WHOLE_JOB
    found = dict(job.settings(place.framework, scope)) if known.extended_by else {}
    claims = (found[name] for name in known.extended_by if name in found)
    return next((claim for claim in claims if claim.alternatives != ("",)), None)


def _judged(place: Given, known: Names, key: str, claim: Claim, version: str, names: NearestNames) -> Verdict | None:
    table = settings(place.framework)
    if place.framework in COMPOSED:
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


def _parts(known: Names, key: str) -> tuple[str, str]:
    """The section of a key, and the name that it has there."""
    section, _, name = ("", "", key) if known.flat else key.rpartition(".")
    return section, name


def _is_set(place: Given, claim: Claim) -> bool:
    """Whether a word of the line sets a key of the default configuration, and neither adds it nor chooses a group."""
    word = claim.spelling.lstrip("'\"")
    default = "model_engine" not in place.keys and place.complete
    return default and claim.strength is Strength.FLAG and not word.startswith(("+", "~", "hydra")) and "@" not in word


def _siblings(framework: str, known: Names, key: str, version: str) -> Iterator[str]:
    """The names that the section of a key has in a release."""
    section = canonical(_parts(known, key)[0])
    for other, row in settings(framework).items():
        above, name = _parts(known, other)
        if above == section and other != key and in_range(version, row.added, row.gone) is not False:
            yield name

"""The settings of one framework that one place in a job gives: a file, a call, or a command line."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from preflight.model.job import WHOLE_JOB, Claim, Job, Known, Launch, Scope, Span, Strength
from preflight.model.job.value import ENVIRONMENT_PREFIX, SECTION, SETTING_PREFIX, numbers, texts
from preflight.plugins.claim_text import definitely_holds, why_unresolved
from preflight.plugins.questions import subjects
from preflight.sources.conditions import GIVEN, Section, Several, UnknownValue
from preflight.sources.python.called_settings import FACTS, ITEMS, MAKER
from preflight.sources.python.called_settings import SOURCE as CALLED
from preflight_rules.launches import ranks_started
from preflight_rules.settings.tables import (
    ENVIRONMENT,
    SBATCH,
    alias_names,
    framework,
    from_checkpoint,
    full_name,
    reads,
    row_of,
    settings,
)

#: A value that a trainer fills in or DeepSpeed leaves out.
AUTO = "auto"
#: Names in parentheses stand for the place itself, not for a key.
CALL, PARSER = "(call)", "(parser)"
#: The class that a script calls to make the settings.
CLASS = "config_class"
#: Key in the table of refusals that blames the place as a whole, for a missing setting.
ANY = "(any)"
#: Prefix of a quantity that an option of the launch line sets.
ON_LINE = "line."
#: Prefix of a quantity in a condition: any other claim of the job (`job.env.TRAINING_ROLE`).
OF_JOB = "job."
#: Prefix of an argument whose name has another meaning in a condition: `own.ranks` beside `ranks`.
OWN = "own."
#: The option of Megatron-LM that takes unset options from a checkpoint.
_CHECKPOINT_OPTION = "use_checkpoint_args"
#: The place of settings that are options of the launch line, which may take them from arrays of several scripts.
_LINE_PLACE = "(line)"
#: The number of ranks of the launch, in a condition.
RANKS = "ranks"
#: The names of numbers of ranks, in a condition.
_RANK_COUNTS = (RANKS, f"{OF_JOB}processes_per_node")
#: The launcher in a condition: `python` for a plain line; empty without a launch.
LAUNCHER = "launcher"
#: The branch of the launch line in a condition; empty outside any branch.
BRANCH = "branch"


@dataclass(frozen=True, slots=True)
class PlaceSettings:
    """All settings of one place.

    Args:
        job: the job of the place.
        framework: the framework that the settings belong to.
        subject: the place, for the report.
        keys: the claim about each key.
        launch: the launch that the settings belong to, if any.
        inner: the settings of a file that a setting names, by the prefix that conditions give its keys.
        certain: whether the framework certainly reads the settings.
        parser: the parser that reads the settings, if known.
        complete: whether a missing key is certainly not set elsewhere.
    """

    job: Job
    framework: str
    subject: str
    keys: dict[str, Claim]
    launch: Launch | None = None
    inner: dict[str, PlaceSettings] = field(default_factory=dict)
    complete: bool = True
    certain: bool = True
    parser: Claim | None = None

    def claim(self, key: str) -> Claim | None:
        """Return the claim about a key, which may be in a file that another key names; None if the key is not set."""
        if key.startswith(OF_JOB):
            return next(iter(self._job_claims(key.removeprefix(OF_JOB))), None)
        if key == PARSER:
            return self.parser
        if key == ANY:
            return next(iter(self.keys.values())) if self.is_named else None
        key = key.removeprefix(OWN)
        prefix, _, inner_key = key.partition(".")
        if prefix in self.inner:
            return self.inner[prefix].claim(inner_key)
        return self.keys.get(key)

    def others(self, section: str, known_keys: Sequence[str]) -> list[Claim]:
        """Return the claims of the keys directly in a section (`config.*`) that are not among the known keys.

        A known key that begins with `^` is a pattern.
        """
        prefix = section.removesuffix("*")
        keys_in_section = {
            key.removeprefix(prefix): claim for key, claim in self.keys.items() if key.startswith(prefix)
        }
        patterns = [re.compile(pattern) for pattern in known_keys if pattern.startswith("^")]
        return [
            claim
            for key, claim in keys_in_section.items()
            if (key.isidentifier() or (patterns and "." not in key))
            and key not in known_keys
            and key not in FACTS
            and not any(form.fullmatch(key) for form in patterns)
        ]

    def value(self, key: str) -> Any:
        """Return the value of a key; None if it is not given. Raises UnknownValue if it is unknown."""
        if key.startswith(GIVEN):
            return self._is_given(key.removeprefix(GIVEN))
        if key.startswith(ON_LINE):
            return self._option_value(key.removeprefix(ON_LINE))
        if key.startswith(OF_JOB):
            return self._common_value(self._job_claims(key.removeprefix(OF_JOB)))
        if key in self.inner:
            return Section()
        prefix, _, rest = key.partition(".")
        if prefix in self.inner:
            # A value that the trainer fills in does not count as a setting of the file.
            claim = self.inner[prefix].claim(rest)
            return None if claim is not None and claim.alternatives == (AUTO,) else self.inner[prefix].value(rest)
        if key == RANKS:
            return self._rank_count()
        if key == LAUNCHER:
            return self._launcher()
        if key == BRANCH:
            return self.launch.condition if self.launch is not None else ""
        claim = self.claim(key)
        if claim is None:
            self._check_sections(key)
            if not self.complete or (
                self.keys.get(_CHECKPOINT_OPTION) is not None and key in from_checkpoint(self.framework)
            ):
                raise UnknownValue(f"{key} may be set elsewhere")
            if _are_of_another_release(self.framework, tuple(self.keys)):
                raise UnknownValue(f"{key} may have a different name in the release used")
            return None
        value = self._common_value((claim,))
        is_filled = any(other.startswith(f"{key}.") for other in self.keys)
        return Section(filled=is_filled) if isinstance(value, Section) else value

    def value_in_call(self, key: str) -> Any:
        """Return the value of a key, assuming that the branch of the call is taken.

        Raises UnknownValue if the value is unknown.
        """
        claim, call = self.keys.get(key), self.keys.get(CALL)
        if claim is None or call is None or claim.condition != call.condition:
            return self.value(key)
        return self._common_value((replace(claim, condition=""),))

    def value_of_several_ranks(self, key: str) -> Any:
        """Return the value of a key, assuming that a launcher starts several ranks.

        Raises UnknownValue if the value is unknown.
        """
        try:
            value = self.value(key)
        except UnknownValue:
            if key not in _RANK_COUNTS or self._launcher() in ("", "python"):
                raise
            value = None
        if key in _RANK_COUNTS and value is None and self._launcher() not in ("", "python"):
            return Several("the number of ranks")
        return value

    def value_on_one_node(self, key: str) -> Any:
        """Return the value of a key, assuming that deepspeed, without a host list, starts the ranks of one node.

        Raises UnknownValue if the value is unknown.
        """
        if key == RANKS and self._launcher() == "deepspeed" and self.launch is not None:
            starts_here = self.job.value("starts_here", self.launch.scope) == Known(True)
            counts = numbers(self.job.value("processes_per_node", self.launch.scope)) if starts_here else ()
            if len(counts) == 1:
                return counts[0]
        return self.value(key)

    def _is_given(self, key: str) -> bool:
        """Return whether a key is given. Raises UnknownValue if only a branch or an unknown section gives it."""
        claim = self.claim(key)
        if claim is None:
            self._check_sections(key)
            return False
        if key.startswith(OF_JOB):
            claims = self._job_claims(key.removeprefix(OF_JOB))
            if not any(definitely_holds(each, self.launch) for each in claims):
                raise UnknownValue(f"whether the branch of `{claim.spelling}` is taken")
            return True
        # An argument None of a call counts as left out.
        if claim.source == CALLED and not claim.alternatives and not self._is_made(key):
            raise UnknownValue(f"`{claim.spelling}`")
        return claim.source != CALLED or claim.alternatives != (None,)

    def _is_made(self, key: str) -> bool:
        """Return whether a call's argument is certainly an object created in the call, or a list."""
        return f"{key}.{MAKER}" in self.keys or f"{key}.{ITEMS}" in self.keys

    def _check_sections(self, key: str) -> None:
        """Raise UnknownValue if a section that would contain the key has an unknown value."""
        while "." in key:
            key = key.rpartition(".")[0]
            section = self.keys.get(key)
            if section is not None and not section.alternatives and section.source != CALLED:
                raise UnknownValue(f"`{section.spelling}`")

    def _common_value(self, claims: Sequence[Claim]) -> Any:
        """Return the value that all claims share; None without claims. Raises UnknownValue if they differ or are
        unresolved.
        """
        if why_unresolved(claims, self.launch) is not None:
            raise UnknownValue(f"`{claims[0].spelling}`")
        values = {item for claim in claims for item in claim.alternatives}
        if len(values) > 1 or (values == {AUTO} and self.framework == "deepspeed"):
            raise UnknownValue(f"`{claims[0].spelling}`")
        value = next(iter(values), None)
        return Section() if value == SECTION else value

    def _job_claims(self, quantity: str) -> tuple[Claim, ...]:
        if self.launch is not None:
            claims = self.job.value_claims(quantity, self.launch.scope)
            path = self.launch.span.path
            if not quantity.startswith(ENVIRONMENT_PREFIX) or any(
                each.span.path != path for each in self.keys.values()
            ):
                return claims
            # A launcher does not see what the program sets for itself.
            return tuple(each for each in claims if each.span.path == path or not each.span.path.endswith(".py"))
        return self.job.value_claims(quantity, WHOLE_JOB) or tuple(self.job.about(quantity))

    @property
    def is_named(self) -> bool:
        """Return whether the settings are complete, or a launch names their place."""
        is_whole = self.launch is None or reads(self.framework, "file") or reads(self.framework, "object")
        return is_whole or any(claim.scope.launch for claim in self.keys.values())

    def _option_value(self, quantity: str) -> Any:
        """Return the value that a launch option sets for a quantity; None if no option sets it.

        Raises UnknownValue if the value or the launch is unknown.
        """
        if self.launch is None:
            raise UnknownValue("the launch line")
        claims = [c for c in self.job.about(quantity, self.launch.scope) if c.strength is Strength.FLAG]
        return self._common_value(claims[-1:])

    @property
    def _is_plain(self) -> bool:
        """Return whether plain python starts the program, and no other command starts a process of the job."""
        programs = {claim.value for claim in self.job.about("plain_program")}
        return self.launch is None and len(programs) == 1 and not self.job.about("starts_processes")

    def _launcher(self) -> str:
        """Return the launcher of the ranks; empty if unknown. Raises UnknownValue if it differs between launches."""
        if self.launch is None:
            return "python" if self._is_plain else ""
        is_for_job = not any(claim.scope.launch for claim in self.keys.values())
        if is_for_job and len({launch.launcher for launch in self.job.launches}) > 1:
            raise UnknownValue("the launch that reads these settings")
        if self.launch.launcher == "python" and any(map(self.job.about, _WORKER_STARTERS)):
            raise UnknownValue("whether this runs in processes that the program starts")
        return self.launch.launcher

    def _rank_count(self) -> int:
        if self._is_plain:
            return 1
        rank_counts = numbers(ranks_started(self.job, self.launch.scope)[0]) if self.launch is not None else ()
        if len(rank_counts) != 1:
            raise UnknownValue("the number of ranks")
        return rank_counts[0]


#: Quantities of a program that starts the processes of its ranks.
_WORKER_STARTERS = ("starts_processes", f"{SETTING_PREFIX}ray_trainer.{CALL}")
#: Least number of settings without a row that show another release; fewer may be mistakes or the program's own.
_MIN_UNKNOWN = 5


@functools.lru_cache(maxsize=256)
def _are_of_another_release(name: str, keys: tuple[str, ...]) -> bool:
    """Return whether the framework's table lacks most of these keys, as after a release that renamed them."""
    row = framework(name)
    if row is None or row.keys is None:
        return False
    named_keys = [key for key in keys if key not in (CALL, PARSER)]
    unknown_keys = [key for key in named_keys if row_of(settings(name), key) is None]
    return len(unknown_keys) >= _MIN_UNKNOWN and 2 * len(unknown_keys) > len(named_keys)


def frameworks_of(job: Job) -> list[str]:
    """Return the frameworks that the job has settings for, by name."""
    names = {claim.quantity.split(".", 2)[1] for claim in job.claims if claim.quantity.startswith(SETTING_PREFIX)}
    if any(claim.quantity.startswith(ENVIRONMENT_PREFIX) for claim in job.claims):
        names.add(ENVIRONMENT)
    if job.about("batch_directive"):
        names.add(SBATCH)
    names.update([other for name in names for other in alias_names(name)])
    return sorted(name for name in names if framework(name) is not None)


def place_settings(job: Job, name: str) -> Iterator[PlaceSettings]:
    """Yield a framework's settings, once per launch and place, and an object's settings once for each of its parts."""
    if reads(name, "object"):
        yield from _objects(job, name)
        return
    if name == SBATCH:
        yield from _headers(job)
        return
    framework_row = framework(name)
    source_name = (framework_row.named if framework_row is not None else "") or name
    for subject, scope, launch in subjects(job):
        # LLaMA-Factory and TRL pass these keys on to the trainer.
        forwarded_paths = {
            claim.span.path for maker in ("llamafactory", "trl") for _, claim in job.settings(maker, scope)
        }
        is_paddle = name == "transformers" and _reads_paddle_arguments(job, scope, launch)
        by_place: dict[str, dict[str, Claim]] = {}
        parser: Claim | None = None
        for claim in job.about(f"{SETTING_PREFIX}{name}.{PARSER}", scope):
            parser = claim
        for key, claim in _variables(job, scope) if name == ENVIRONMENT else job.settings(source_name, scope):
            if key == PARSER:
                continue
            keys = by_place.setdefault(_section_path(name, claim, launch), {})
            full_key = full_name(name, key)
            # The launch line takes precedence over a file.
            if (
                name == "verl"
                or full_key not in keys
                or not (reads(name, "composed") or reads(name, "overridden"))
                or claim.strength >= keys[full_key].strength
            ):
                keys[full_key] = claim
        for path, keys in by_place.items():
            if not path and parser is None:
                # A program whose parser is not known may give these names another meaning.
                continue
            may_be_paddle = name == "paddlenlp" and _may_read_paddle(job, keys, launch)
            if reads(name, "parsed") and not may_be_paddle and not _reads_paddle(name, keys, parser, launch):
                continue
            if name == "transformers" and is_paddle:
                continue
            yield PlaceSettings(
                job,
                name,
                subject if path in ("", "(composed)", _LINE_PLACE) else path,
                keys,
                launch,
                inner=_deepspeed_settings(job, name, keys, scope) or _batch_header(job, name, keys),
                complete=_is_complete(name, keys),
                certain=(CALL not in keys or _is_of_script(keys))
                and (parser is not None or not may_be_paddle)
                and (
                    name != "transformers"
                    or CALL in keys
                    or parser is not None
                    or _parses_trainer_arguments(launch)
                    or path in forwarded_paths
                ),
                parser=parser,
            )


#: Prefixes in a condition for the object of a part, and for the pod of a container.
_WHOLE, _POD = "whole", "pod"


def _objects(job: Job, framework: str) -> Iterator[PlaceSettings]:
    """Yield the settings of each object or part of a given kind, with the settings of the owner in `inner`."""
    places = _places(job, framework)
    owner_keys = {key: tuple(map(_place_key, place.keys[CALL].because[0].because)) for key, place in places.items()}
    owners: dict[_PlaceKey, PlaceSettings] = {}
    for name in dict.fromkeys(owner[0].split(".")[1] for marks in owner_keys.values() for owner in marks):
        owners |= _places(job, name)
    for key, place in places.items():
        yield replace(
            place, inner={name: owners[owner] for name, owner in zip((_WHOLE, _POD), owner_keys[key], strict=False)}
        )


#: The identity of a place: the quantity, span and spelling of its claim.
_PlaceKey = tuple[str, Span, str]


def _places(job: Job, framework: str) -> dict[_PlaceKey, PlaceSettings]:
    keys_by_place: dict[_PlaceKey, dict[str, Claim]] = {}
    for key, claim in job.settings(framework):
        keys_by_place.setdefault(_place_key(claim.because[0]), {})[key] = claim
    return {
        place_key: PlaceSettings(
            job,
            framework,
            place_key[1].path,
            keys,
            complete=keys[CALL].alternatives == (True,),
            certain=_is_of_script(keys),
        )
        for place_key, keys in keys_by_place.items()
    }


def _is_of_script(keys: dict[str, Claim]) -> bool:
    """Return whether a call is in the script itself. A module's function may also be called elsewhere."""
    return keys[CALL].source != CALLED or keys[CALL].strength is Strength.FLAG


def _place_key(place: Claim) -> _PlaceKey:
    return place.quantity, place.span, place.spelling


def _headers(job: Job) -> Iterator[PlaceSettings]:
    """Yield the options of each batch header by their long names; an option without a value is true."""
    headers: dict[str, dict[str, Claim]] = {}
    for claim in job.about("batch_directive"):
        header = headers.setdefault(claim.span.path, {})
        name_and_value = next(iter(claim.alternatives), None)
        name, value = name_and_value if isinstance(name_and_value, tuple) and len(name_and_value) == 2 else (None, None)
        match = _OPTION.match(claim.spelling)
        name = str(name if name is not None else match[1] if match is not None else "").replace("-", "_")
        if not name:
            continue
        option = replace(claim, value=Known(True if value is None else value)) if name_and_value is not None else claim
        if name in header:
            header.setdefault(f"{name}.again", header[name])
        header[name] = option
    for path, keys in headers.items():
        yield PlaceSettings(job, SBATCH, path, keys)


_OPTION = re.compile(r"--([\w-]{1,40})")


def _is_complete(framework: str, keys: dict[str, Claim]) -> bool:
    """Return whether a missing key is certainly not set elsewhere."""
    if framework == "accelerate":
        # Without a file on the line, Accelerate reads a file in the user's cache.
        return any(claim.strength is Strength.CONFIG for claim in keys.values())
    return not reads(framework, "recipes") and (CALL not in keys or keys[CALL].alternatives == (True,))


def _variables(job: Job, scope: Scope) -> Iterator[tuple[str, Claim]]:
    """Return the name and claim of each variable that the files set exactly once, except those that only a controller
    sets.
    """
    claims_by_name: dict[str, list[Claim]] = {}
    for claim in job.environment(scope):
        name = claim.quantity.removeprefix(ENVIRONMENT_PREFIX)
        if name in claim.span.snippet:
            claims_by_name.setdefault(name, []).append(claim)
    return ((name, claims[0]) for name, claims in claims_by_name.items() if len(claims) == 1)


def _deepspeed_settings(job: Job, framework: str, keys: dict[str, Claim], scope: Scope) -> dict[str, PlaceSettings]:
    """Return the settings in the DeepSpeed configuration file that the trainer names.

    For Accelerate, settings that the command line overrides are left out.
    """
    if framework == "accelerate":
        config_claims = {
            key: claim for key, claim in job.settings(framework, scope) if claim.strength is Strength.CONFIG
        }
        return {"file": PlaceSettings(job, framework, "", config_claims)} if config_claims else {}
    claim = keys.get("deepspeed")
    own_engine = bool(job.about("setting.deepspeed_initialize.function", scope))
    if framework not in ("transformers", "llamafactory") or claim is None or own_engine:
        return {}
    names = [name.rpartition("/")[2] for name in texts(claim.value)]
    claims_by_key: dict[str, Claim] = {}
    for key, other in job.settings("deepspeed", scope):
        if other.span.path.rpartition("/")[2] in names:
            claims_by_key[key] = other
    return {"ds": PlaceSettings(job, "deepspeed", names[0], claims_by_key)} if claims_by_key else {}


def _batch_header(job: Job, framework: str, keys: dict[str, Claim]) -> dict[str, PlaceSettings]:
    """Return the options of a script's batch header, for the steps and launchers in the script."""
    if not reads(framework, "header"):
        return {}
    path = next(iter(keys.values())).span.path
    header = next((header for header in _headers(job) if header.subject == path), None)
    return {SBATCH: header} if header is not None else {}


def _section_path(name: str, claim: Claim, launch: Launch | None) -> str:
    """Return the section that a setting belongs to; empty for an argument of a program."""
    if reads(name, "composed") or (
        reads(name, "overridden") and launch is not None and claim.scope.launch == launch.id
    ):
        # A composed configuration is one place, whichever files its keys are in.
        return "(composed)"
    if claim.source == "arguments":
        return ""
    if reads(name, "line") and launch is not None and claim.scope.launch == launch.id:
        return _LINE_PLACE
    if claim.source == CALLED and claim.because:
        # Each call is its own place.
        call = claim.because[0].span
        return f"{call.path}:{call.line}:{call.column}"
    return claim.span.path


#: Paddle's trainers, whose arguments have the names of those of transformers.
_PADDLE_TRAINERS = ("paddlenlp", "paddleformers")


def _is_program_of(name: str, launch: Launch | None) -> bool:
    """Return whether the launcher is the framework's own program."""
    row = framework(name)
    return launch is not None and row is not None and bool(row.program) and launch.launcher == row.program


def _reads_paddle(name: str, keys: dict[str, Claim], parser: Claim | None, launch: Launch | None) -> bool:
    """Return whether Paddle's trainer certainly reads these arguments as its own."""
    return (name == "paddlenlp" and CALL in keys) or parser is not None or _is_program_of(name, launch)


#: Arguments that only Paddle's trainers have.
_PADDLE_ARGUMENTS = frozenset(
    ("tensor_parallel_degree", "pipeline_parallel_degree", "sharding_parallel_degree", "sep_parallel_degree")
)


def _may_read_paddle(job: Job, keys: dict[str, Claim], launch: Launch | None) -> bool:
    """Return whether Paddle's launcher starts a program outside the job's files with arguments of its trainer."""
    starts_unread_program = (
        launch is not None and launch.launcher == "paddle" and all(f.path != launch.program for f in job.files)
    )
    return starts_unread_program and not _PADDLE_ARGUMENTS.isdisjoint(keys)


def _reads_paddle_arguments(job: Job, scope: Scope, launch: Launch | None) -> bool:
    """Return whether a trainer of Paddle, instead of transformers, reads the arguments."""
    if any(_is_program_of(name, launch) for name in _PADDLE_TRAINERS):
        return True
    return any(job.about(f"{SETTING_PREFIX}{name}.{PARSER}", scope) for name in _PADDLE_TRAINERS)


def _parses_trainer_arguments(launch: Launch | None) -> bool:
    """Return whether the launcher's own program parses the trainer's arguments."""
    return launch is not None and launch.launcher in ("llamafactory-cli", "trl")


def compares_with_deepspeed(job: Job, launch: Launch | None) -> bool:
    """Return whether the trainer's arguments and DeepSpeed configuration are both known; CFG002 then compares them."""
    return any(
        place.launch is launch and place.inner and (CALL in place.keys or place.parser is not None)
        for place in place_settings(job, "transformers")
    )

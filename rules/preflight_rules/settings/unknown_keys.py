"""Keys that a framework's parser does not have, for parsers that stop at such a key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, passed, rule, unknown
from preflight.sources.tables import Generated, load_table
from preflight_rules.helpers import quoted
from preflight_rules.settings.given import CLASS, Given, given
from preflight_rules.settings.tables import may_have, pinned, release
from preflight_rules.settings.unknown_names import NearestNames, unknown_name


class Parser(NamedTuple):
    """A parser that stops at a key which it does not have.

    Args:
        title: its name in a message.
        names: of the tables of what it takes, its own first.
        switches: variables that let it take other keys.
        others: keys of another parser that such a variable selects; a file with one of them is not judged.
        usual: for keys of other frameworks, and for common mistakes, what is meant.
        fixes_others: whether a release of its distribution limits those of the other tables from above.
    """

    title: str
    names: tuple[str, ...]
    switches: tuple[str, ...]
    others: frozenset[str]
    usual: dict[str, str]
    fixes_others: bool = False

    @property
    def tables(self) -> tuple[Generated, ...]:
        """What it takes, its own table first."""
        return tuple(load_table(name) for name in self.names)


#: Of keys that later releases of Lightning dropped, and of other trainers.
_USUAL_OF_LIGHTNING = {
    "amp_backend": "precision",
    "checkpoint_callback": "enable_checkpointing",
    "epochs": "max_epochs",
    "gpus": "devices",
    "gradient_accumulation_steps": "accumulate_grad_batches",
    "ipus": "devices",
    "num_gpus": "devices",
    "num_processes": "devices",
    "replace_sampler_ddp": "use_distributed_sampler",
    "tpu_cores": "devices",
}
_PARSERS = {
    "llamafactory": Parser(
        "LLaMA-Factory",
        ("llamafactory_arguments", "training_arguments", "seq2seq_training_arguments"),
        ("ALLOW_EXTRA_ARGS", "USE_MCA", "USE_V1"),
        frozenset(
            ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"),
        ),
        {
            "batch_size": "per_device_train_batch_size",
            "epochs": "num_train_epochs",
            "evaluation_strategy": "eval_strategy",
            "lora_modules": "lora_target",
            "lora_r": "lora_rank",
            "lora_target_modules": "lora_target",
            "max_length": "cutoff_len",
            "max_seq_length": "cutoff_len",
            "micro_batch_size": "per_device_train_batch_size",
            "num_epochs": "num_train_epochs",
            "per_device_batch_size": "per_device_train_batch_size",
        },
        # Its own requirements limit transformers.
        fixes_others=True,
    ),
    "lightning": Parser("Lightning's Trainer", ("lightning_trainer",), (), frozenset(), _USUAL_OF_LIGHTNING),
    "lightning_cli": Parser("Lightning's Trainer", ("lightning_trainer",), (), frozenset(), _USUAL_OF_LIGHTNING),
    "lightning_fabric": Parser("Lightning's Fabric", ("lightning_fabric",), (), frozenset(), _USUAL_OF_LIGHTNING),
}
_USUAL_OF_TRL = {
    "batch_size": "per_device_train_batch_size",
    "evaluation_strategy": "eval_strategy",
    "max_seq_length": "max_length",
    "num_epochs": "num_train_epochs",
}
#: TRL has a class for each trainer.
_CLASSES = {
    name: Parser(f"TRL's {name}", (table, "training_arguments"), (), frozenset(), _USUAL_OF_TRL)
    for name, table in (
        ("SFTConfig", "trl_sft_config"),
        ("DPOConfig", "trl_dpo_config"),
        ("GRPOConfig", "trl_grpo_config"),
        ("RLOOConfig", "trl_rloo_config"),
        ("KTOConfig", "trl_kto_config"),
        ("RewardConfig", "trl_reward_config"),
    )
}
_OFF = frozenset(("0", "n", "no", "false", "off", ""))


@rule(
    "CFG004",
    "setting-unknown",
    severity=Severity.ERROR,
    profile="gate",
    otherwise="no configuration of a parser that stops at unknown keys",
    evidence=(
        (
            "hparams/parser.py of LLaMA-Factory and its arguments at seven releases from 0.7.1 to 0.9.5",
            "https://github.com/hiyouga/LLaMA-Factory/blob/v0.9.3/src/llamafactory/hparams/parser.py",
        ),
        "TRL's configurations at up to seven releases from 0.12.2 to 1.16.0",
        "Lightning's arguments at seven releases from 1.5.10 to 2.6.6",
    ),
)
def setting_unknown(job: Job) -> Iterator[Verdict]:
    """A configuration has a key that its framework does not know and stops at.

    What it checks: Every key of a file that LLaMA-Factory parses, every argument of a configuration of TRL that a
    script makes, and every argument of Lightning's `Trainer` or `Fabric`, in a script or for LightningCLI, is one of
    the framework or of Hugging Face's trainer, in the releases that the job's files pin, or in any that is known.

    Why it matters: The parser stops in every rank ("Some keys are not used by the HfArgumentParser"), and so does
    Python ("unexpected keyword argument").

    Example: `lora_r: 8` for LLaMA-Factory, where it is called lora_rank; `SFTConfig(max_seq_length=2048)` for TRL 0.24,
    where it is called max_length.

    Fix: Write the key as that release spells it, or remove it.

    Known limits: Without a pinned release, a key that some release has passes, and one that is like no other is
    unknown: a newer release may have it. Nothing is judged where a variable lets the parser take other keys
    (`ALLOW_EXTRA_ARGS`, `USE_MCA`), where the file has keys of Megatron's parser, or where a script makes several
    configurations of TRL.
    """
    seen: set[tuple[str, int, int]] = set()
    names = NearestNames()
    for framework in (*_PARSERS, "trl"):
        for place in given(job, framework):
            parser = _PARSERS.get(framework) or _CLASSES.get(str(place.keys[CLASS].alternatives[0]))
            if parser is None:
                continue
            if _takes_more(job, place, parser):
                yield unknown(place.subject, f"a variable or a key may let {parser.title} accept other keys")
                continue
            verdicts = tuple(_unknown_keys(job, place, parser, names))
            for verdict in verdicts:
                at = verdict.locations[0]
                if (at.path, at.line, at.column) not in seen:
                    seen.add((at.path, at.line, at.column))
                    yield verdict
            if not verdicts:
                yield passed(place.subject)


def _takes_more(job: Job, place: Given, parser: Parser) -> bool:
    """Whether a variable is set, or may be set, that lets the parser take other keys."""
    if parser.others & place.keys.keys():
        return True
    scope = place.launch.scope if place.launch is not None else None
    for name in parser.switches:
        claims = job.about(f"env.{name}", scope) if scope is not None else job.about(f"env.{name}")
        if any({text.lower() for text in texts(claim.value)} - _OFF or not texts(claim.value) for claim in claims):
            return True
    return False


def _unknown_keys(job: Job, place: Given, parser: Parser, names: NearestNames) -> Iterator[Verdict]:
    versions = {table.distribution: pinned(job, table.distribution) for table in parser.tables}
    for key, claim in place.keys.items():
        if "." not in key and key.isidentifier() and key != CLASS:
            verdict = _judged(place, parser, key, claim, versions, names)
            if verdict is not None:
                yield verdict


def _judged(
    place: Given, parser: Parser, key: str, claim: Claim, versions: dict[str, str], names: NearestNames
) -> Verdict | None:
    found = [(table, row) for table in parser.tables for row in table.rows if row.dest == key]
    if any(may_have(table, row, versions[table.distribution]) for table, row in found):
        return None
    own = parser.tables[0]
    version = versions[own.distribution]
    if version and release(version) < release(own.versions[0]) and not found:
        reason = f"{quoted(claim)}: {own.distribution} {version} is older than what is known"
        return unknown(place.subject, reason, at=claim)
    nearest = parser.usual.get(key) or names.nearest(claim, parser.title, key, lambda: _names(parser, versions))
    is_known = all(
        versions[table.distribution] and release(versions[table.distribution]) <= release(table.newest)
        for table in (parser.tables[:1] if parser.fixes_others else parser.tables)
    )
    return unknown_name(
        place,
        claim,
        name=key,
        owner=parser.title,
        release=f"{own.distribution} {version}" if version else f"any release up to {own.newest}",
        nearest=nearest,
        sure=bool(nearest or found or is_known),
        unless_sure=None,
    )


def _names(parser: Parser, versions: dict[str, str]) -> Iterator[str]:
    """The names that a parser takes in these releases."""
    for table in parser.tables:
        for row in table.rows:
            if may_have(table, row, versions[table.distribution]):
                yield row.dest

"""The configuration file of a framework that a command line names, and the settings of it that the line overrides.

`--job.config_file llama.toml --parallelism.tensor_parallel_degree=2` (torchtitan), `--config-file tiny.yaml`
(nanotron), `train.yaml model.n_layers=2` (Composer), `-c gpt.yaml -o Distributed.mp_degree=2` (PaddleFleetX). The file
is recognised by its content, not by the option before it; its claims arrive in the scope of the launch.

Under srun or torchrun, Lightning compares these settings with the started processes and stops when they differ
(SLURMEnvironment.validate_settings and TorchElasticEnvironment.validate_settings, lightning 2.x). Without either it
starts the processes of its node itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from preflight._util.budget import truncate
from preflight.model.job import (
    Claim,
    Known,
    Plain,
    Reference,
    Relation,
    Unresolved,
    Value,
    as_int,
    is_whole_number,
    lift,
)
from preflight.model.job.quantities import SETTING_PREFIX
from preflight.model.job.value import known_number
from preflight.sources.base import LaunchLine, SourceFile, Tree, Word
from preflight.sources.configs.accelerate_config import AccelerateSource
from preflight.sources.configs.deepspeed import DeepSpeedSource
from preflight.sources.configs.frameworks.framework_files import Framework, framework_of, source_of
from preflight.sources.configs.model_config import ROLE as MODEL_ROLE
from preflight.sources.configs.model_config import config_of
from preflight.sources.configs.trainer_config import TrainerConfigSource
from preflight.sources.configs.training_settings import FrameworkConfigSource, TrainingSettingsSource
from preflight.sources.launchers.claim_builder import ClaimBuilder
from preflight.sources.launchers.option_parser import (
    GivenOption,
    concatenate,
    join_spans,
    known_prefix,
    relative,
    scan,
    table,
    text_of,
    texts,
)
from preflight.sources.launchers.python_program import is_python

#: The role in which a launch refers to such a file.
ROLE = "configuration"
#: torchtitan's own options, which are not settings of the configuration.
_REGISTRY = table({"module": "--module", "config": "--config"}, abbreviations=False, interleaved=True)
_FILE = "config_registry.py"
#: Frameworks that state the settings of their files themselves.
_WITH_SETTINGS = ("torchtitan",)
_SUFFIXES = (".toml", ".yaml", ".yml", ".json")
#: Arguments of a program that are searched for files; more words than this are data.
_MAX_WORDS = 400


def framework_claims(
    line: LaunchLine, words: Sequence[Word], tree: Tree
) -> tuple[tuple[Claim, ...], tuple[Reference, ...]]:
    """The settings that a program's arguments override, and references to the configuration files they name.

    Args:
        line: the launch line.
        words: the program and its arguments.
        tree: where files are looked up.
    """
    words = truncate(words, _MAX_WORDS, "arguments of a program")
    frameworks: list[Framework] = []
    references: list[Reference] = []
    for word, target, found in _files(line, words[1:], tree):
        frameworks.extend([found] if found is not None else [])
        references.append(Reference(target, ROLE, word.span, line.scope))
    own = framework_of(text_of(words[0]) or "") if words and not frameworks else None
    framework = own or (frameworks[0] if frameworks else None)
    if framework is None:
        return (), tuple(references)
    references.extend(_find_registered(line, words[1:], tree, framework))
    builder = ClaimBuilder(framework.name, line.scope, line.command.condition)
    given = find_overrides(words[1:])
    for key in framework.keys:
        if key.path in given:
            builder.add_setting(key.quantity, given[key.path], key.read, relation=key.relation)
    if framework.registries:
        # A function of the module makes the configuration, whose keys no released table has.
        module = scan(words[1:], _REGISTRY).last("module")
        builder.add_setting(f"{SETTING_PREFIX}{framework.name}.module", module, lambda value: value)
    for path in framework.extended_by:
        builder.add_setting(f"{SETTING_PREFIX}{framework.name}.{path}", given.get(path), lambda value: value)
    for path, option in given.items() if framework.settings or framework.name in _WITH_SETTINGS else ():
        builder.add_setting(f"{SETTING_PREFIX}{framework.name}.{path}", option, lambda value: lift(_plain, value))
    return tuple(builder.claims), tuple(references)


def _plain(item: Plain) -> Plain:
    """What a text of the line is in YAML: a number, true or false, or the text."""
    text = str(item)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text)
    except ValueError:
        return item


def model_references(line: LaunchLine, claims: Iterable[Claim], tree: Tree) -> Iterator[Reference]:
    """The `config.json` of each model that a line names as a folder of the tree."""
    for claim in claims:
        for text in texts(claim.value) if claim.quantity == "model_name" else ():
            target = config_of(text, tree, relative(text, line, tree))
            if target is not None:
                yield Reference(target, MODEL_ROLE, claim.span, line.scope)


def _find_registered(line: LaunchLine, words: Sequence[Word], tree: Tree, framework: Framework) -> Iterator[Reference]:
    """The function that `--module llama3 --config llama3_8b` names (torchtitan/config/manager.py, 0.3)."""
    scanned = scan(words, _REGISTRY)
    module, config = scanned.last("module"), scanned.last("config")
    name, function = (str(v.value) if isinstance(v, Known) else "" for v in _values(module, config))
    if not name or not function.isidentifier() or module is None or config is None:
        return
    flat = name.replace(".", "/")
    for candidate in (
        *(f"{folder}/{flat}/{_FILE}" for folder in framework.registries),
        f"{flat}/{_FILE}",
        f"{flat}.py",
    ):
        target = relative(candidate, line, tree)
        if target is not None and isinstance(tree.read(target), SourceFile):
            yield Reference(target, f"recipe {function}", config.span, line.scope)
            return


def _values(*options: GivenOption | None) -> Iterator[Value]:
    for option in options:
        yield option.value if option is not None else Unresolved("not given")


def _files(line: LaunchLine, words: Sequence[Word], tree: Tree) -> Iterator[tuple[Word, str, Framework | None]]:
    """Every word that names a configuration, with the file and its framework; None for settings of no known one."""
    for word in words:
        for text in texts(word.value):
            path = text.rpartition("=")[2] if text.startswith("-") else text
            target = relative(path, line, tree) if path.lower().endswith(_SUFFIXES) else None
            file = tree.read(target) if target is not None else None
            if target is None or not isinstance(file, SourceFile):
                continue
            source = source_of(file)
            if source is not None:
                yield word, target, source.framework
            elif _is_settings(file):
                yield word, target, None


#: Kinds of files that have readers of their own wherever a line names them.
_OTHER_KINDS = (AccelerateSource(), DeepSpeedSource(), FrameworkConfigSource(), TrainerConfigSource())


def _is_settings(file: SourceFile) -> bool:
    """Whether a file has the settings of a training of no known framework, and is of no other kind."""
    if not TrainingSettingsSource().recognises(file):
        return False
    return not any(source.recognises(file) for source in _OTHER_KINDS)


_KEY = re.compile(r"(?P<sign>\+\+|\+|--)?(?P<key>[A-Za-z_][\w-]{0,80}(?:\.[\w-]{1,80}){0,8})(?P<equals>=)?")
#: Sizes that other frameworks also have.
_SIZES = {
    "model.tensor_model_parallel_size": "tensor_parallel_size",
    "model.pipeline_model_parallel_size": "pipeline_parallel_size",
    "model.context_parallel_size": "context_parallel_size",
    "model.expert_model_parallel_size": "expert_parallel_size",
    "model.micro_batch_size": "micro_batch_size_per_gpu",
    "model.global_batch_size": "train_batch_size",
    "model.data.num_workers": "dataloader_workers",
    "trainer.accumulate_grad_batches": "gradient_accumulation_steps",
}
#: The batch size of a rank in the configurations of Paddle's suites: `-o Train.loader.batch_size_per_card=32`.
_BATCH_SIZE = re.compile(
    r"(?:\w+\.)*(?:global|(?:data_?loader\.)?train(?:_?reader|_?dataset)?|runner)\.(?:\w+\.)*(?:train_)?batch_?size(?:_per_card)?",
    re.IGNORECASE,
)
_DEVICES = ("trainer.devices", "trainer.gpus")
_TASK_STARTERS = ("srun", "mpirun", "horovodrun", "jsrun", "aprun")


def state_overrides(builder: ClaimBuilder, line: LaunchLine, words: Sequence[Word]) -> None:
    """State the nodes, processes and batch sizes that the overrides of a program set."""
    found = find_overrides(words)
    for key, quantity in _SIZES.items():
        builder.add_setting(quantity, found.get(key), as_int)
    batches = [given for key, given in found.items() if _BATCH_SIZE.fullmatch(key)]
    builder.add_setting("given_batch_size", batches[0] if len(batches) == 1 else None, as_int)
    nodes = found.get("trainer.num_nodes")
    builder.add_setting("nodes", nodes, as_int, relation=Relation.REQUIRES)
    devices = next((found[key] for key in _DEVICES if key in found), None)
    alone = is_python(line.words) and not any(wrapper in _TASK_STARTERS for wrapper in line.wrappers)
    relation = Relation.SETS if alone else Relation.REQUIRES
    builder.add_setting("processes_per_node", devices, _device_count, relation=relation)


def starts_ranks(words: Sequence[Word]) -> bool:
    """Whether these arguments make Lightning start several processes by itself."""
    found = find_overrides(words)
    counts = [found[key] for key in (*_DEVICES, "trainer.num_nodes") if key in found]
    for given in counts:
        value = as_int(given.value) if given.dest == "trainer.num_nodes" else _device_count(given.value)
        if (known_number(value) or 0) > 1:
            return True
    return False


def find_overrides(words: Sequence[Word]) -> dict[str, GivenOption]:
    """The settings by dotted key, with underscores for hyphens; the last of several counts.

    `a.b=2`, `++a.b=2`, `--a.b=2` and `--a.b 2` set `a.b`. `--a.b` followed by another option is a switch. A key without
    a dot counts only in the form `key=2`.
    """
    found: dict[str, GivenOption] = {}
    for index, word in enumerate(words):
        text = known_prefix(word)
        match = _KEY.match(text)
        if match is None or not (match["equals"] or match["sign"] == "--"):
            continue
        key = match["key"].replace("-", "_")
        if match["equals"]:
            if "." in key or match["sign"] != "--":
                found[key] = GivenOption(key, _value_after(word, match.end()), word.span, word.spelling)
        elif "." in key and match.end() == len(text):
            value = words[index + 1] if index + 1 < len(words) else None
            if value is None or known_prefix(value).startswith("--"):
                found[key] = GivenOption(key, Known(True), word.span, word.spelling)
                continue
            found[key] = GivenOption(
                key, value.value, join_spans(word.span, value.span), f"{word.spelling} {value.spelling}"
            )
    return found


def _value_after(word: Word, start: int) -> Value:
    if not isinstance(word.value, Unresolved):
        return lift(lambda item: str(item)[start:], word.value)
    first = word.parts[0] if word.parts else None
    if not isinstance(first, Known) or len(str(first.value)) < start:
        return word.value
    rest = str(first.value)[start:]
    return (
        concatenate([*([Known(rest)] if rest else []), *word.parts[1:]]) if rest or len(word.parts) > 1 else Known("")
    )


def _device_count(value: Value) -> Value:
    def count(item: Plain) -> Plain:
        text = str(item).strip("'\"")
        listed = re.fullmatch(r"\[([\d,\s]*)\]", text)
        if listed is not None:
            return len([part for part in listed[1].split(",") if part.strip()])
        if "," in text:
            return len([part for part in text.split(",") if part.strip()])
        if not is_whole_number(text):
            raise ValueError(f"{text}: as many processes as the node has devices")
        return int(text)

    return lift(count, value)

"""Jobs that a script or notebook submits to a cloud service: estimators of SageMaker, `command(...)` of Azure ML.

The service starts the command on every instance or for every rank, with variables that make it one. Only a job with a
distribution has ranks; without one every instance runs a program of its own.

Sources: sagemaker 2.254 (estimator.py, fw_utils.py: validate_distribution), sagemaker-training 5.1
(torch_distributed.py, mpi.py, smdataparallel.py, params.py), azure-ai-ml 1.28 (entities/_job/distribution.py). GPUs of
instances: table of accelerated computing instances of Amazon EC2, November 2025.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from preflight.model.job import Claim, Known, Plain, Unresolved, Value, as_int, lift
from preflight.model.job.value import Symbol
from preflight.sources.base import SourceFile
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.python.started_commands import StartedCommand, TextBuilder
from preflight.sources.shell.shell_document import FileText, Hole, Lit, Place, Text
from preflight.sources.shell.words import replace_spans

_RELEVANT = re.compile(r"\binstance_count\b")
#: The estimators of frameworks; their script runs in the folder `source_dir`.
_ESTIMATORS = ("PyTorch", "TensorFlow", "HuggingFace", "MXNet", "Estimator")
_TORCH: Mapping[str, Symbol] = {
    "MASTER_ADDR": Symbol.FIRST_ALLOCATED_HOST,
    "RANK": Symbol.PROCESS_RANK,
    "LOCAL_RANK": Symbol.LOCAL_RANK,
    "NODE_RANK": Symbol.NODE_RANK,
}
_MPI: Mapping[str, Symbol] = {
    "OMPI_COMM_WORLD_SIZE": Symbol.ALLOCATED_HOST_COUNT,
    "OMPI_COMM_WORLD_RANK": Symbol.PROCESS_RANK,
}
_TENSORFLOW: Mapping[str, Symbol] = {"TF_CONFIG": Symbol.PROCESS_RANK}
#: By the key of a distribution, in the order in which sagemaker-training tries them.
_DISTRIBUTIONS: Mapping[str, Mapping[str, Symbol]] = {
    "torch_distributed": _TORCH,
    "pytorchddp": _TORCH,
    "mpi": _MPI,
    "smdistributed": _TORCH,
    "multi_worker_mirrored_strategy": _TENSORFLOW,
    "parameter_server": _TENSORFLOW,
}
_AZURE: Mapping[str, Mapping[str, Symbol]] = {"pytorch": _TORCH, "mpi": _MPI, "tensorflow": _TENSORFLOW}
#: GPUs of one instance, by the family and size; other sizes of these families have one.
_GPUS = {
    **dict.fromkeys(("p2.8xlarge", "p3.16xlarge", "p3dn.24xlarge", "p4d.24xlarge", "p4de.24xlarge"), 8),
    **dict.fromkeys(("p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge", "g4dn.metal"), 8),
    **dict.fromkeys(("g5.48xlarge", "g6.48xlarge", "g6e.48xlarge"), 8),
    **dict.fromkeys(("p3.8xlarge", "g4dn.12xlarge"), 4),
    **dict.fromkeys((f"{family}.{size}xlarge" for family in ("g5", "g6", "g6e") for size in (12, 24)), 4),
    "p2.16xlarge": 16,
}
_ONE_GPU = ("p2", "p3", "g4dn", "g5", "g6", "g6e")
_MAX_PARAMETERS = 200
_INPUT = re.compile(r"\$\{\{\s*(?:inputs\.(\w+)|[\w.]{1,100})\s*\}\}")


class SubmittedJob(NamedTuple):
    """The command that the service starts, and claims about the number of its copies."""

    start: StartedCommand
    claims: tuple[Claim, ...]


def submitted_jobs(module: Module) -> Iterator[SubmittedJob]:
    """Yield the distributed jobs that a script makes, in source order."""
    if _RELEVANT.search(module.file.text) is None:
        return
    file = FileText(module.file.path, module.file.text)
    calls = module.named(*_ESTIMATORS, "command")
    for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        builder = TextBuilder(module, file, {}, call)
        name = last(module.called(call))
        found = _azure(builder, call) if name == "command" else _sagemaker(builder, call)
        if found is not None:
            yield found


def _sagemaker(builder: TextBuilder, call: ast.Call) -> SubmittedJob | None:
    """Return `PyTorch(entry_point="train.py", instance_count=2, distribution={"torch_distributed": {"enabled":
    True}})`.
    """
    module = builder.module
    entry, given = argument(call, "entry_point"), argument(call, "distribution")
    count, kind = argument(call, "instance_count"), argument(call, "instance_type")
    distribution = module.definition(value_of(given)) if given is not None else None
    if entry is None or count is None or given is None or not isinstance(distribution, ast.Dict):
        return None
    enabled = {key: value for key, value in _members(distribution) if _is_enabled(module, value)}
    name = next((name for name in _DISTRIBUTIONS if name in enabled), None)
    if name is None:
        return None
    instances = as_int(module.fold(value_of(count)))
    claims = [module.claim("nodes", instances, count, source="sagemaker")]
    processes = _gpus(module, kind) if kind is not None else Unresolved("the GPUs of the instance")
    at: ast.keyword | ast.expr | None = kind
    if kind is not None:
        claims.append(module.claim("gpus_per_node", processes, kind, source="sagemaker"))
    if name == "mpi":
        own = dict(_members(enabled[name])).get("processes_per_host")
        processes, at = (as_int(module.fold(own)), own) if own is not None else (Known(1), given)
    elif name in ("multi_worker_mirrored_strategy", "parameter_server"):
        processes, at = Known(1), given
    # A parameter server runs beside the workers.
    if at is not None and name != "parameter_server":
        claims.append(module.claim("processes_per_node", processes, at, source="sagemaker"))
    words = [_lit(builder, call, "python"), _script(builder, value_of(entry), argument(call, "source_dir"))]
    parameters = argument(call, "hyperparameters")
    words += _options(builder, value_of(parameters)) if parameters is not None else []
    environment = _environment(builder, call, _DISTRIBUTIONS[name], instances, processes)
    return SubmittedJob(StartedCommand(tuple(words), (), environment, builder.place(call)), tuple(claims))


def _azure(builder: TextBuilder, call: ast.Call) -> SubmittedJob | None:
    """Return `command(command="python train.py", instance_count=2, distribution={"type": "PyTorch", ...})`."""
    module = builder.module
    line, count, given = (argument(call, name) for name in ("command", "instance_count", "distribution"))
    if line is None or given is None:
        return None
    kind, per_instance = _azure_distribution(module, module.definition(value_of(given)))
    if kind not in _AZURE:
        return None
    instances = as_int(module.fold(value_of(count))) if count is not None else Known(1)
    claims = [module.claim("nodes", instances, count if count is not None else given, source="azure-ml")]
    processes = as_int(module.fold(per_instance)) if per_instance is not None else Known(1)
    if per_instance is not None:
        spelling = f"process_count_per_instance={module.text(per_instance)}"
        claims.append(module.claim("processes_per_node", processes, per_instance, spelling=spelling, source="azure-ml"))
    inputs = argument(call, "inputs")
    code = _with_inputs(builder, builder.text(value_of(line)), value_of(inputs) if inputs is not None else None)
    folder = argument(call, "code")
    if folder is not None and isinstance(path := module.fold(value_of(folder)), Known) and ":" not in str(path.value):
        there = posixpath.join(posixpath.dirname(module.file.path), str(path.value))
        code = (*_lit(builder, folder, f"cd {posixpath.normpath(there)}\n"), *code)
    environment = _environment(builder, call, _AZURE[kind], instances, processes)
    return SubmittedJob(StartedCommand((), code, environment, builder.place(call)), tuple(claims))


def _with_inputs(builder: TextBuilder, code: Text, inputs: ast.expr | None) -> Text:
    """Return the command with its inputs in place of `${{inputs.NAME}}`, which is unknown where the call does not give
    it.
    """
    given = dict(_members(builder.module.definition(inputs))) if inputs is not None else {}

    def input_of(found: Lit) -> Text:
        match = _INPUT.fullmatch(found.text)
        value = given.get(match[1] or "") if match is not None else None
        if value is not None and isinstance(builder.module.fold(value), Known):
            return builder.text(value)
        return (Hole(f"{found.text[:60]} is filled in later", found.place, found.text[:60]),)

    return replace_spans(code, lambda text: (match.span() for match in _INPUT.finditer(text)), input_of)


def _azure_distribution(module: Module, node: ast.expr) -> tuple[str, ast.expr | None]:
    """Return the type of a distribution, and the processes of an instance: a dictionary, or
    `PyTorchDistribution(...)`.
    """
    if isinstance(node, ast.Dict):
        members = dict(_members(node))
        kind = module.fold(members["type"]) if "type" in members else None
        return (str(kind.value).lower() if isinstance(kind, Known) else ""), members.get("process_count_per_instance")
    if isinstance(node, ast.Call):
        given = argument(node, "process_count_per_instance")
        kind_name = last(module.called(node)).removesuffix("Distribution").lower()
        return kind_name, value_of(given) if given is not None else None
    return "", None


def _members(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value, value


def _is_enabled(module: Module, node: ast.expr) -> bool:
    """Return whether a part of a distribution is effective; those of smdistributed have parts of their own."""
    parts = dict(_members(module.definition(node)))
    if "enabled" in parts:
        return module.fold(parts["enabled"]) != Known(False)
    return any(_is_enabled(module, part) for part in parts.values())


def _gpus(module: Module, given: ast.keyword | ast.expr) -> Value:
    """Return the GPUs of an instance such as `ml.p4d.24xlarge`."""
    return lift(_gpus_of, module.fold(value_of(given)))


def _gpus_of(item: Plain) -> Plain:
    name = str(item).removeprefix("ml.")
    if name not in _GPUS and name.partition(".")[0] not in _ONE_GPU:
        raise ValueError(f"the GPUs of `{name}`")
    return _GPUS.get(name, 1)


def _lit(builder: TextBuilder, node: ast.AST, text: str) -> Text:
    return (Lit(text, builder.place(node), False),)


def _script(builder: TextBuilder, entry: ast.expr, source: ast.keyword | ast.expr | None) -> Text:
    """Return the script in the folder of the job, relative to the folder of this file."""
    name = builder.module.fold(entry)
    folder = _folder(builder.module, value_of(source)) if source is not None else "."
    if not isinstance(name, Known) or folder is None or "://" in folder:
        return builder.text(entry)
    path = posixpath.normpath(posixpath.join(posixpath.dirname(builder.module.file.path), folder, str(name.value)))
    # The folder in which the file is started counts, which may be the root.
    files, plain = builder.module.files, str(name.value)
    if not isinstance(files.read(path), SourceFile) and isinstance(files.read(plain), SourceFile):
        path = plain
    return _lit(builder, entry, path)


def _folder(module: Module, node: ast.expr) -> str | None:
    """Return a folder as text; `os.getcwd()` of a script that submits is its own folder."""
    node = module.definition(node)
    if isinstance(node, ast.Call) and module.called(node) == "os.getcwd":
        return "."
    if isinstance(node, ast.Call) and module.called(node) == "os.path.join":
        parts = [_folder(module, item) for item in node.args]
        return None if None in parts else posixpath.join("", *(part for part in parts if part is not None))
    value = module.fold(node)
    return value.value if isinstance(value, Known) and isinstance(value.value, str) else None


def _options(builder: TextBuilder, node: ast.expr) -> list[Text]:
    """Return `{"lr": 1e-4}` as the words `--lr 1e-4`; those that are added later are unknown."""
    table = builder.module.definition(node)
    if not isinstance(table, ast.Dict):
        return [builder.hole(node, many=True)]
    words: list[Text] = []
    for key, value in list(zip(table.keys, table.values, strict=True))[:_MAX_PARAMETERS]:
        if isinstance(key, ast.Constant):
            words += [_lit(builder, key, f"--{key.value!s}"), builder.text(value)]
        else:
            words.append(builder.hole(value, many=True))
    if isinstance(node, ast.Name):
        words.append(builder.hole(node, many=True))
    return words


def _environment(
    builder: TextBuilder, call: ast.Call, variables: Mapping[str, Symbol], instances: Value, processes: Value
) -> dict[str, Text]:
    place = builder.place(call.func)
    found: dict[str, Text] = {name: (Hole(symbol.value, place, f"${name}"),) for name, symbol in variables.items()}
    if variables is _TORCH:
        world = lift(_product, instances, processes)
        found["WORLD_SIZE"] = (
            _lit(builder, call.func, str(world.value)) if isinstance(world, Known) else (_unknown(world, place),)
        )
    return found


def _product(one: Plain, other: Plain) -> Plain:
    return int(str(one)) * int(str(other))


def _unknown(value: Value, place: Place) -> Hole:
    return Hole(value.why if isinstance(value, Unresolved) else "one of several numbers", place, "$WORLD_SIZE")

"""The kinds of files that start or configure a distributed job, recognised by regular expressions on their text.

This module shares nothing with preflight's readers, so that it also counts files that they do not know. A pattern may
be wrong about a single file; it is only used for counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import yaml


@dataclass(frozen=True)
class Hit:
    """One kind found in one file. `starts`: the file holds a command or manifest that starts ranks, at `lines`."""

    kind: str
    starts: bool
    lines: tuple[int, ...] = ()


_SHELL = frozenset((".sh", ".bash", ".sbatch", ".slurm", ".pbs", ".lsf", ".job", ".qsub", ".submit", ".zsh", ".cmd"))
_TEMPLATE = frozenset((".tpl", ".tmpl", ".template", ".j2", ".jinja", ".jinja2", ".gotmpl"))
_TESTS = re.compile(
    r"(^|/)(tests?|testing|testdata|test[-_][^/]*|[^/]*[-_]tests?|e2e|ci|\.github|\.gitlab|fixtures)/", re.I
)

#: Separators that end the previous command; only the text after the last one belongs to the launcher's command.
_SEPARATOR = re.compile(r"[;&|({`]|\$\(|(?:^|\s)(?:then|do|else|\!)\s")
#: Commands that mention a launcher but do not run it.
_TALKS = re.compile(
    r"^\s*(?:echo|printf|pip3?|uv pip|apt(?:-get)?|conda|which|type|command -v|p?kill|killall|pgrep|grep|ls|cat|rm|cp"
    r"|if|\[+|log\w*|die|error|git|cd|sed|mkdir|#|:|//|--?\w+=|-\s+name:)(?:\s|$)",
    re.I,
)
#: Lines that are not commands: `#SBATCH` and similar comments, prose, keys of a mapping.
_PROSE = re.compile(r"^\s*(?:[A-Z][a-z]+\s+[a-z]+\s+[a-z]+|\*|<)")

#: The patterns of kinds, from `coverage_kinds.yaml`.
_PATTERNS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_LAUNCHERS = {kind: re.compile(text) for kind, text in _PATTERNS["commands"].items()}
_ANY_LAUNCHER = re.compile("|".join(_PATTERNS["commands"].values()))
#: Programs that start ranks themselves, unless a launcher starts them.
_PROGRAMS = frozenset(
    (
        "verl",
        "rllm",
        "openrlhf",
        "SkyRL",
        "python -m of the repository",
        "AReaL",
        "NeMo RL",
        "EasyRec",
        "xtuner",
        "axolotl",
    )
)
#: These prepare or submit; ranks start elsewhere.
_SUBMIT = frozenset(("sbatch", "kubectl", "helm", "xpk", "sky", "dstack", "det", "neuron"))

_OPERATOR_KINDS = frozenset(
    (
        *("PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "PaddleJob", "JAXJob", "MXJob", "HorovodJob", "ElasticJob"),
        *("TrainJob", "TrainingRuntime", "ClusterTrainingRuntime", "JobSet", "LeaderWorkerSet", "AppWrapper"),
        *("RayJob", "RayCluster", "RayService", "HyperPodPyTorchJob", "VolcanoJob", "SlinkyJob", "Workflow"),
        *("JobFlow", "JobTemplate", "CronJob", "Slurm", "NodeSet", "ReplicatedJob"),
    )
)
_K8S_KIND = re.compile(r"^\s*(?:-\s+)?kind:\s*[\"']?(\w+)", re.M)
_K8S_API = re.compile(r"^\s*(?:-\s+)?apiVersion:\s*[\"']?([\w./{} -]+)", re.M)
_GPU = re.compile(
    r"(?:nvidia|amd|habana)\.(?:com|ai)/(?:gpu|mig|gaudi)|google\.com/tpu|aws\.amazon\.com/neuron|huawei\.com/Ascend"
)


_PARALLEL_KEYS = re.compile(
    r"^[ \t]*[\"']?(?:\w{0,40}?(?:tensor|pipeline|context|expert|data|sequence|model)[-_](?:model[-_])?parallel\w*"
    r"|num_nodes|nnodes"
    r"|n_?gpus_per_node|gpus_per_node|n_?procs?_per_node|nproc_per_node|num_gpus|world_size|num_machines|zero_stage"
    r"|fsdp\w*|dp_(?:shard|replicate|size)|(?:tp|pp|cp|ep)_size|grad(?:ient)?_accum\w*|train_batch_size|global_batch_size"
    r"|micro_batch_size|per_device_train_batch_size)[\"']?\s*[:=]",
    re.M | re.I,
)
_MAIN = re.compile(r"^if __name__ ==", re.M)
#: An estimator or command with a distribution, which starts ranks; without one it starts a single program.
_SUBMITTED = re.compile(
    r"(?:\b(?:PyTorch|TensorFlow|HuggingFace|Estimator)|(?<![\w.])command)\([^()]*(?:\([^()]*(?:\([^()]*\)[^()]*)*\)[^()]*)*"
    r"\bdistribution\s*=\s*(?!None)"
)
_DOCUMENTS = re.compile(r"(\"\"\"|\'\'\').*?\1", re.S)
#: srun that is told to start one task only, or starts a tool that is no rank.
_ONE_TASK = re.compile(
    r"(?<![\w/#-])srun\b[^|;&]*?\s"
    r"(?:-n\s*1|--ntasks[= ]1|(?:hostname|nvidia-smi|rocm-smi|mkdir|rm|cp|ls|lscpu|env))(?=\s|$)"
)
_HOSTFILE = re.compile(r"^[\w.-]+\s+(?:slots|:|gpu)[ =:]?\d+", re.M)


def kinds_of(path: str, text: str) -> Iterator[Hit]:
    """Each kind of the file. Files of tests and of continuous integration are not jobs and have no kind."""
    pure = PurePosixPath(path)
    suffix, name = pure.suffix.lower(), pure.name
    if _TESTS.search(path) or re.match(r"(?:test_.*|conftest|.*_test)\.py$", name):
        return
    if suffix in _TEMPLATE:
        yield from _manifests(path, text, "template of a ")
        yield from _commands(text, "in a template")
    elif suffix in _SHELL or (not suffix and re.match(r"#!.*\b(?:ba|z|k)?sh\b", text)):
        yield from _commands(text, "in shell")
    elif name.startswith(("Makefile", "GNUmakefile")) or suffix == ".mk":
        yield from _commands(text, "in a Makefile")
    elif name.startswith("Dockerfile") or suffix == ".dockerfile":
        yield from _commands(text, "in a Dockerfile")
    elif suffix == ".ipynb":
        code = _cells(text)
        yield from _commands(code, "in a notebook")
        if _SUBMITTED.search(code):
            yield Hit("SageMaker or Azure ML job in a notebook", starts=True)
    elif suffix in (".yaml", ".yml"):
        yield from _yaml(path, text)
    elif suffix == ".toml":
        found = list(_first("toml", text))
        yield from found
        if not found and _PARALLEL_KEYS.search(text):
            yield Hit("dist config TOML", starts=False)
    elif suffix in (".json", ".jsonnet"):
        yield from _first("json", text)
    elif suffix == ".py":
        yield from _python(text)
    elif suffix == ".config" and re.search(r"^train_config\s*:?\s*\{", text, re.M):
        yield Hit("EasyRec pipeline config", starts=False)
    elif re.search(r"host_?file|machinefile|(?:^|[._-])hosts?(?:$|\.)", name) and _HOSTFILE.search(text):
        yield Hit("hostfile", starts=False)
    elif suffix in (".conf", ".cfg", ".ini", ".gin") and _PARALLEL_KEYS.search(text):
        yield Hit(f"other configuration ({suffix})", starts=False)


def _commands(text: str, where: str) -> Iterator[Hit]:
    """Each launcher that a script calls, with the lines on which it does; comments and messages do not count."""
    if not _ANY_LAUNCHER.search(text):
        return
    found: dict[str, list[int]] = {}
    for number, line in _logical_lines(text):
        if _ANY_LAUNCHER.search(line) and not line.lstrip().startswith("#"):
            starters: list[str] = []
            for kind, pattern in _LAUNCHERS.items():
                match = pattern.search(line)
                if match is None or not _runs(line[: match.start()]) or (kind in _PROGRAMS and starters):
                    continue
                if kind == "srun" and _ONE_TASK.search(line):
                    continue
                starters.append(kind)
                found.setdefault(kind, []).append(number + line.count("\n", 0, match.start()))
    if "swift" in found and "NPROC_PER_NODE" not in text:
        del found["swift"]  # One process.
    for kind, lines in found.items():
        yield Hit(f"{kind} {where}", kind not in _SUBMIT, tuple(lines))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Logical lines, with continuation lines joined, and the number of the first line of each."""
    held, first = "", 1
    for number, line in enumerate(text.split("\n"), start=1):
        first = first if held else number
        held += line
        if held.endswith("\\") and not held.lstrip().startswith("#"):
            held += "\n"
            continue
        yield first, held
        held = ""
    if held:
        yield first, held


def _runs(before: str) -> bool:
    """Whether a launcher that follows `before` is run, or stored in a variable to be run."""
    own = _SEPARATOR.split(before)[-1]
    return not (_TALKS.search(own) or _TALKS.search(before) or _PROSE.search(own))


def _cells(text: str) -> str:
    try:
        cells = json.loads(text).get("cells", [])
        return "\n".join("".join(cell.get("source", "")) for cell in cells if cell.get("cell_type") == "code")
    except (ValueError, AttributeError, TypeError):
        return ""


def _yaml(path: str, text: str) -> Iterator[Hit]:
    before = "Helm template with a " if "{{" in text and re.search(r"(^|/)templates/", path) else ""
    manifests = list(_manifests(path, text, before))
    if manifests:
        yield from manifests
        return
    if _K8S_API.search(text) and _K8S_KIND.search(text):
        return
    found = list(_first("yaml", text))
    if (
        found
        and found[0].kind in ("Compose YAML", "GitHub workflow", "Hydra defaults")
        and not (any(pattern.search(text) for pattern in _LAUNCHERS.values()) or _PARALLEL_KEYS.search(text))
    ):
        return
    if found:
        yield from found
    elif any(hit.starts for hit in _commands(text, "")):
        yield Hit("other YAML with a launcher", starts=True)
    elif PurePosixPath(path).name.startswith("values") and _GPU.search(text):
        yield Hit("Helm values", starts=False)
    elif _PARALLEL_KEYS.search(text):
        yield Hit("other YAML with sizes or degrees", starts=False)


def _manifests(path: str, text: str, before: str) -> Iterator[Hit]:
    if not _K8S_API.search(text) or "kind: CustomResourceDefinition" in text:
        return
    kinds = set(_K8S_KIND.findall(text))
    for kind in sorted(kinds & _OPERATOR_KINDS):
        template = kind in (
            "TrainingRuntime",
            "ClusterTrainingRuntime",
            "RayCluster",
            "Slurm",
            "NodeSet",
            "JobTemplate",
        )
        if kind not in ("CronJob", "Workflow") or _GPU.search(text):
            yield Hit(f"{before}{kind}", starts=not template)
    if "Job" in kinds and re.search(r"batch\.volcano\.sh", text):
        yield Hit(f"{before}Volcano Job", starts=True)
    elif "Job" in kinds and (_GPU.search(text) or _LAUNCHERS["torchrun"].search(text)):
        yield Hit(f"{before}Kubernetes Job with GPUs", starts=True)
    if kinds & {"Pod", "StatefulSet", "Deployment", "DaemonSet"} and _GPU.search(text):
        trains = any(
            _LAUNCHERS[kind].search(text)
            for kind in ("torchrun", "mpirun", "deepspeed", "accelerate launch", "ray start")
        )
        if trains:
            yield Hit(f"{before}Pod or set of Pods with GPUs and a launcher", starts=True)


def _first(suffix: str, text: str, *, program: bool = True) -> Iterator[Hit]:
    """The first kind of files with this suffix whose patterns all match; that of a submission if it is no `program`."""
    for row in _PATTERNS[suffix]:
        if all(re.search(pattern, text, re.M) for pattern in row["all"]) and (
            program or row["kind"].startswith("Python that submits")
        ):
            yield Hit(row["kind"], row.get("starts", False))
            return


def _python(text: str) -> Iterator[Hit]:
    """At most one kind, and only if the file is a program or submits one."""
    text = re.sub(r"^[ \t]*#.*$", "", _DOCUMENTS.sub("", text), flags=re.M)
    yield from _first("python", text, program=_MAIN.search(text) is not None)

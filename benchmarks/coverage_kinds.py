"""The kinds of files that start or configure a distributed job, recognised by regular expressions on their text.

This module shares nothing with preflight's readers, so that it also counts files that they do not know. A pattern may
be wrong about a single file; it is only used for counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath


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

#: Launchers by the command that starts them. The first group is the command's position.
_COMMANDS = {
    "torchrun": r"(?<![\w-])torchrun(?=[ \\\n\"'])|-m\s+torch\.distributed\.(?:run|launch)\b",
    "deepspeed": r"(?<![\w-])deepspeed(?=\s+(?:-|[\w./$\"{]+(?:\.py|\s|\\)))(?!\s*(?:==|>=|install))",
    "accelerate launch": r"(?<![\w-])accelerate\s+launch\b|-m\s+accelerate\.commands\.launch\b",
    "paddle.distributed.launch": r"-m\s+paddle\.distributed\.launch\b|(?<![\w/-])fleetrun\b",
    "horovodrun": r"horovodrun\b",
    "mpirun": r"(?<![\w/-])(?:mpirun|mpiexec|mpiexec\.hydra|aprun|jsrun)(?=\s+[-\"'$\\\w])",
    "srun": r"(?<![\w/#-])srun(?=\s+[-\"'$\\\w])",
    "flux run": r"flux\s+(?:run|submit|batch)\b",
    "sbatch": r"(?<![\w/-])(?:sbatch|qsub|bsub)(?=\s+[-\"'$<\w])",
    "ray start": r"(?<![\w.-])ray\s+start\b",
    "ray job submit": r"ray\s+job\s+submit\b",
    "torchx": r"torchx\s+run\b",
    "colossalai run": r"colossalai\s+run\b",
    "composer": r"(?<![\w./-])composer\s+(?:-|[\w./$]+\.py)",
    "fabric run": r"(?:fabric|lightning)\s+run\b",
    "msrun": r"(?<![\w./-])msrun\b|msrun_launcher\.sh",
    "llamafactory-cli": r"llamafactory-cli\s+train\b",
    "swift": r"(?<![\w./-])(?:swift|megatron)\s+(?:sft|pt|rlhf|rollout)\b|swift/cli/(?:sft|pt|rlhf)",
    "axolotl": r"axolotl\s+(?:train|preprocess)\b|-m\s+axolotl\.cli\.train",
    "tune run": r"(?<![\w./-])tune\s+run\b",
    "litgpt": r"litgpt\s+(?:finetune\w*|pretrain)\b",
    "xtuner": r"xtuner\s+train\b|-m\s+xtuner\.\S+train",
    "erniekit": r"erniekit\s+train\b|paddleformers-cli\s+train\b",
    "verl": r"-m\s+(?:verl|recipe)\.[\w.]*main\w*|-m\s+verl\.trainer\.\w+(?<!merger)",
    "rllm": r"-m\s+rllm\.[\w.]+",
    "openrlhf": r"-m\s+openrlhf\.cli\.\w+",
    "SkyRL": r"-m\s+skyrl\w*\.[\w.]+",
    "python -m of the repository": (
        r"-m\s+(?:examples|recipes?|training|train|projects|integrations)\.[\w.]*(?:main|train|run)\w*"
    ),
    "AReaL": r"-m\s+(?:areal|realhf)\.[\w.]+",
    "NeMo RL": r"examples/run_\w+\.py",
    "prime-rl": r"uv\s+run\s+(?:rl|trainer|sft|orchestrator|inference)\b",
    "nemo run": r"nemo\s+llm\b|nemo-run\b|nemorun\b|(?<![\w-])automodel\s+\w+",
    "graphstorm": r"-m\s+graphstorm\.run\.\w+",
    "EasyRec": r"-m\s+easy_rec\.python\.train_eval|-m\s+tzrec\.train_eval",
    "xla_dist": r"torch_xla\.distributed\.xla_dist\b",
    "bpslaunch": r"bpslaunch\b|dmlc-submit|(?:tracker|tools)/(?:dmlc_)?(?:launch|local|ssh)\.py",
    "neuron": r"neuron_parallel_compile\b",
    "sky": r"(?<![\w./-])sky\s+(?:launch|exec|jobs\s+launch)\b",
    "dstack": r"(?<![\w./-])dstack\s+apply\b",
    "kubectl": r"(?<![\w./-])kubectl\s+(?:apply|create)\s+-f|envsubst\s*<",
    "helm": r"(?<![\w./-])helm\s+(?:install|upgrade|template)\b",
    "xpk": r"xpk(?:\.py)?\s+workload\s+create\b",
    "ezpz": r"ezpz[- ]launch\b",
    "mlx.launch": r"mlx\.launch\b",
    "pdsh": r"(?<![\w./-])(?:pdsh|pssh|parallel-ssh|clush)\s+-",
    "det": r"(?<![\w./-])det\s+(?:experiment|e)\s+create\b",
    "container, then a launcher": (
        r"(?:docker|podman|apptainer|singularity|enroot)\s+(?:run|exec|start)\b"
        r".*(?:torchrun|deepspeed|accelerate launch|mpirun)"
    ),
}
_LAUNCHERS = {kind: re.compile(text) for kind, text in _COMMANDS.items()}
_ANY_LAUNCHER = re.compile("|".join(text for text in _COMMANDS.values()))
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


def _all(*patterns: str) -> Callable[[str], bool]:
    compiled = [re.compile(pattern, re.M) for pattern in patterns]
    return lambda text: all(pattern.search(text) for pattern in compiled)


#: Kinds of YAML configuration; a file has the first kind whose patterns all match.
_YAML: tuple[tuple[str, bool, Callable[[str], bool]], ...] = (
    ("accelerate YAML", False, _all(r"^distributed_type:", r"^(?:num_processes|machine_rank|num_machines):")),
    ("SkyPilot YAML", True, _all(r"^(?:resources|num_nodes):", r"^run:\s*\|")),
    ("dstack YAML", True, _all(r"^type:\s*(?:task|fleet)", r"^(?:commands|nodes|resources):")),
    ("Beaker YAML", True, _all(r"^version:\s*v2", r"^tasks:")),
    ("MosaicML platform YAML", True, _all(r"^(?:compute|gpu_num|gpus):", r"^command:\s*\|")),
    ("Determined YAML", True, _all(r"^entrypoint:", r"slots_per_trial:|searcher:")),
    ("Ray cluster YAML", False, _all(r"^cluster_name:", r"^available_node_types:|^head_node")),
    ("Azure ML YAML", True, _all(r"azureml", r"^\s*distribution:", r"^\s*type:\s*(?i:pytorch|mpi|tensorflow)")),
    ("ParallelCluster YAML", False, _all(r"^Scheduling:", r"SlurmQueues:")),
    ("Compose YAML", True, _all(r"^services:", r"(?:image|build):")),
    ("GitHub workflow", False, _all(r"^on:", r"^jobs:", r"runs-on:")),
    (
        "verl Hydra YAML",
        False,
        _all(
            r"^(?:actor_rollout_ref|trainer|worker|algorithm):", r"n_gpus_per_node:|hybrid_engine:|ppo_m\w+_batch_size"
        ),
    ),
    (
        "NeMo RL YAML",
        False,
        _all(r"^(?:grpo|dpo|sft|rm|policy|distillation):", r"gpus_per_node:|megatron_cfg:|dtensor_cfg:|^defaults:"),
    ),
    ("SkyRL YAML", False, _all(r"^(?:trainer|generator):", r"^\s+(?:placement|policy|inference_engine|colocate_all):")),
    (
        "AReaL YAML",
        False,
        _all(r"allocation_mode:|^cluster:|n_gpus_per_node:", r"^(?:experiment_name|rollout|gconfig|actor):"),
    ),
    ("ROLL YAML", False, _all(r"^(?:actor_train|actor_infer|num_gpus_per_node):", r"device_mapping:|strategy_args:")),
    ("rLLM YAML", False, _all(r"^rllm:")),
    (
        "NeMo Automodel YAML",
        False,
        _all(r"^(?:model|step_scheduler|recipe):", r"^(?:distributed|dist_env|fsdp|step_scheduler):", r"_target_:"),
    ),
    (
        "Megatron Bridge or Primus YAML",
        False,
        _all(r"(?:tensor_model_parallel_size|pipeline_model_parallel_size):", r"modules:|work_group:|^train:|^model:"),
    ),
    ("NeMo YAML", False, _all(r"^trainer:", r"^\s+(?:devices|num_nodes):")),
    ("HyperPod recipe YAML", False, _all(r"^run:", r"results_dir:|model_type:", r"^trainer:")),
    ("nanotron YAML", False, _all(r"^parallelism:", r"^\s+(?:dp|tp|pp):")),
    ("llm-foundry YAML", False, _all(r"^(?:global_train_batch_size|device_train_microbatch_size|max_duration):")),
    ("axolotl YAML", False, _all(r"^base_model:", r"^(?:micro_batch_size|sequence_len|datasets|adapter):")),
    ("LLaMA-Factory YAML", False, _all(r"^model_name_or_path:", r"^(?:stage|finetuning_type|template|do_train):")),
    ("torchtune YAML", False, _all(r"_component_:")),
    (
        "TRL or trainer arguments YAML",
        False,
        _all(
            r"^(?:model_name_or_path|output_dir):",
            r"^(?:per_device_train_batch_size|gradient_accumulation_steps|learning_rate):",
        ),
    ),
    ("gpt-neox YAML", False, _all(r"[\"']?(?:pipe-parallel-size|pipe_parallel_size|model-parallel-size)[\"']?:")),
    (
        "VeOmni YAML",
        False,
        _all(r"^train:", r"(?:ulysses|data|expert|tensor)_parallel_\w+:|micro_batch_size:", r"^(?:model|data):"),
    ),
    (
        "MindFormers YAML",
        False,
        _all(r"^(?:parallel_config|parallel):", r"^(?:runner_config|trainer|context|use_parallel):"),
    ),
    (
        "Paddle LLM YAML",
        False,
        _all(
            r"(?:tensor|pipeline)(?:_model)?_parallel_(?:degree|size):|sharding(?:_parallel)?_(?:degree|size)?:|^fleet",
            r"(?:per_device_train_batch_size|max_steps|finetuning|stage|amp_):?",
        ),
    ),
    ("PaddleClas or PaddleX YAML", False, _all(r"^Global:", r"^(?:DataLoader|Optimizer|Arch|Train):")),
    (
        "PaddleRec YAML",
        False,
        _all(
            r"^(?:runner|hyper_parameters|phase):",
            r"(?:train_batch_size|train_data_dir|use_gpu|sync_mode|print_interval)",
        ),
    ),
    ("PaddleDetection YAML", False, _all(r"^(?:_BASE_|TrainReader|LearningRate|snapshot_epoch):")),
    ("detectron2 YAML", False, _all(r"^SOLVER:|^_BASE_:", r"^(?:MODEL|SOLVER|DATASETS|DATALOADER):")),
    ("DINO YAML", False, _all(r"^(?:student|teacher|dino):")),
    ("lingua YAML", False, _all(r"^distributed:", r"(?:fsdp_type|dp_shard|dp_replicate|tp_size|model_dtype):")),
    ("GraphStorm YAML", False, _all(r"^gsf:")),
    ("MaxText YAML", False, _all(r"(?:ici|dcn)_\w+_parallelism:")),
    ("WeNet YAML", False, _all(r"^(?:encoder|encoder_conf|dataset_conf):", r"^(?:accum_grad|max_epoch|optim):")),
    (
        "timm YAML",
        False,
        _all(
            r"^(?:model|sched|opt|aa|amp):",
            r"^(?:epochs|batch_size|lr):",
            r"^(?:reprob|mixup|smoothing|warmup_lr|model_ema):",
        ),
    ),
    ("Hydra defaults", False, _all(r"^defaults:\s*$", r"^\s*- ")),
)
_PARALLEL_KEYS = re.compile(
    r"^[ \t]*[\"']?(?:\w{0,40}?(?:tensor|pipeline|context|expert|data|sequence|model)[-_](?:model[-_])?parallel\w*"
    r"|num_nodes|nnodes"
    r"|n_?gpus_per_node|gpus_per_node|n_?procs?_per_node|nproc_per_node|num_gpus|world_size|num_machines|zero_stage"
    r"|fsdp\w*|dp_(?:shard|replicate|size)|(?:tp|pp|cp|ep)_size|grad(?:ient)?_accum\w*|train_batch_size|global_batch_size"
    r"|micro_batch_size|per_device_train_batch_size)[\"']?\s*[:=]",
    re.M | re.I,
)
_TOML: tuple[tuple[str, bool, Callable[[str], bool]], ...] = (
    (
        "torchtitan TOML",
        False,
        _all(r"^\[(?:parallelism|training)\]", r"^\[(?:job|model|metrics|profiling|optimizer)\]"),
    ),
    ("prime-rl TOML", False, _all(r"^\[(?:trainer|orchestrator|inference|deployment|ckpt|weight_broadcast)")),
    ("dist config TOML", False, lambda text: _PARALLEL_KEYS.search(text) is not None),
)
_JSON: tuple[tuple[str, bool, Callable[[str], bool]], ...] = (
    ("DeepSpeed JSON", False, _all(r"\"(?:zero_optimization|train_micro_batch_size_per_gpu|train_batch_size)\"")),
    ("FSDP JSON", False, _all(r"\"(?:fsdp_transformer_layer_cls_to_wrap|fsdp|xla_fsdp)\w*\"")),
    (
        "Paddle LLM JSON",
        False,
        _all(
            r"\"(?:tensor|pipeline|sharding)_parallel_\w+\"|\"sharding\"",
            r"\"(?:per_device_train_batch_size|max_steps|output_dir)\"",
        ),
    ),
    ("trainer arguments JSON", False, _all(r"\"(?:per_device_train_batch_size|gradient_accumulation_steps)\"")),
    (
        "Kubernetes or SageMaker JSON",
        True,
        _all(r"\"(?:InstanceCount|apiVersion)\"", r"\"ResourceConfig\"|\"kind\":\s*\"\w*Job\""),
    ),
)
_PYTHON: tuple[tuple[str, bool, Callable[[str], bool]], ...] = (
    (
        "Python that spawns ranks",
        True,
        _all(r"\b(?:mp|multiprocessing)\.spawn\(|(?<!\w)spawn\(\s*\w+,\s*(?:args|nprocs)|start_processes\("),
    ),
    ("Python that calls detectron2's launch", True, _all(r"import .*\blaunch\b", r"^\s+launch\(\s*$|^\s+launch\(\w+")),
    (
        "Python that runs a launcher",
        True,
        _all(
            r"(?:subprocess\.|os\.system|Popen|run_cmd|exec_cmd|U\.exec_command|execute_train|sh\()",
            r"[\"'](?:[^\"'\n]*\s)?(?:torchrun|deepspeed|accelerate|mpirun|srun|torch\.distributed\.(?:run|launch)"
            r"|ray job submit)\b",
        ),
    ),
    ("Python that submits (submitit)", True, _all(r"submitit\.(?:Auto|Slurm)?Executor|submitit\.AutoExecutor")),
    (
        "Python that submits (NeMo Run)",
        True,
        # A local executor without arguments is one process.
        _all(r"run\.(?:SlurmExecutor|Experiment|LocalExecutor)\((?!\s*\))"),
    ),
    (
        "Python that submits (SageMaker)",
        True,
        _all(r"instance_count\s*=", r"(?:Estimator|PyTorch|ModelTrainer|Compute)\(", r"\bdistribut(?:ion|ed)\s*="),
    ),
    ("Python that submits (Modal)", True, _all(r"modal\.(?:App|Stub)\(", r"gpu\s*=")),
    (
        "Python that submits (torchx, sky, Kubeflow)",
        True,
        _all(r"specs\.AppDef\(|sky\.(?:Task|launch)\(|TrainerClient\(\)|TrainingClient\(\)"),
    ),
    (
        "Python with Ray actors or trainers",
        True,
        _all(r"\bray\.(?:init|remote|train)\b", r"\bScalingConfig\(|\bplacement_group\("),
    ),
    (
        "Python with a Lightning Trainer",
        True,
        _all(r"(?:\bL\.|pl\.|lightning)", r"(?:Trainer|Fabric)\(", r"(?:devices|num_nodes|strategy)\s*="),
    ),
    ("Python with a TensorFlow strategy", False, _all(r"(?:MultiWorkerMirrored|ParameterServer)Strategy\(")),
    ("Python with jax.distributed", False, _all(r"jax\.distributed\.initialize\(")),
    ("Python with Horovod", False, _all(r"import horovod|from horovod", r"hvd\.init\(")),
    (
        "Python with Paddle's fleet",
        False,
        _all(r"\bfleet\.init\(|paddle\.distributed\.spawn|dist\.spawn\(|init_parallel_env\("),
    ),
    ("Python with MindSpore", False, _all(r"mindspore", r"set_auto_parallel_context|\binit\(")),
    (
        "Python with a process group",
        False,
        _all(r"init_process_group\(|deepspeed\.init_distributed\(|init_distributed\w*\(\)"),
    ),
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
        yield from _first(_TOML, text)
    elif suffix in (".json", ".jsonnet"):
        yield from _first(_JSON, text)
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
    found = list(_first(_YAML, text))
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


def _first(table: tuple[tuple[str, bool, Callable[[str], bool]], ...], text: str) -> Iterator[Hit]:
    for kind, starts, fits in table:
        if fits(text):
            yield Hit(kind, starts)
            return


def _python(text: str) -> Iterator[Hit]:
    """At most one kind, and only if the file is a program or submits one."""
    text = re.sub(r"^[ \t]*#.*$", "", _DOCUMENTS.sub("", text), flags=re.M)
    for kind, starts, fits in _PYTHON:
        if fits(text) and (_MAIN.search(text) or kind.startswith("Python that submits")):
            yield Hit(kind, starts)
            return

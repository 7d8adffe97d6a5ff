"""The jobs of a table of constraints: each is a few lines in a short form, and becomes the files of a real job.

The forms are functions of this module: `line` is a launch script, `strategy` the settings of a fleet strategy, and so
on. In all of them `launch` at the beginning of a command stands for `python -m paddle.distributed.launch`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from typing import Any

from preflight.sources.configs.hugging_face import converted
from tests.constraints import cluster_forms, huggingface_forms, megatron_forms, program_forms, recipe_forms

Files = dict[str, str]

_LAUNCH = re.compile(r"^((?:ssh \S+ )?(?:[A-Z_a-z]+=\S+ )*)launch ", re.MULTILINE)
_COLLECTIVE = "launch --devices 0,1,2,3 train.py"
_SERVERS = "launch --server_num 1 --trainer_num 2 train.py"
_OF_SERVERS = re.compile(r"--(?:server|worker|trainer|heter|coordinator)|run_mode[ =]ps")
_TRAIN = "import paddle.distributed as dist\n\ndist.init_parallel_env()\n"
_FLEET = "import paddle\nfrom paddle.distributed import fleet\n\n"
_STATIC = f"{_FLEET}paddle.enable_static()\n"
_MINIMIZE = "opt = fleet.distributed_optimizer(opt, s)\nopt.minimize(loss)\n"
_PARSER = (
    "from paddlenlp.trainer import PdArgumentParser, Trainer, TrainingArguments\n\n"
    "parser = PdArgumentParser((TrainingArguments,))\n"
    "(training_args,) = parser.parse_args_into_dataclasses()\n"
    "trainer = Trainer(model=model, args=training_args)\ntrainer.train()\n"
)
_CARDS = "0,1,2,3,4,5,6,7"


def build(row: dict[str, Any], which: str) -> Files:
    """The files of the job `wrong`, `right` or `open` of a row; `run_open` alone starts the wrong one."""
    run = row.get(f"run_{which}", row.get("run", ""))
    pins = row.get("pin_right", row.get("pin", "")) if which == "right" else row.get("pin", "")
    files = _FORMS[row["form"]](row["wrong"] if which not in row else row[which], run)
    if pins:
        files["requirements.txt"] = "\n".join(pins.split(";")) + "\n"
    return files


def script(commands: str) -> str:
    """The text of a launch script."""
    return "#!/bin/bash\n" + _LAUNCH.sub(r"\1python -m paddle.distributed.launch ", commands + "\n")


def line(text: str, _run: str) -> Files:
    """A launch script; a program `train.py` lies beside it."""
    program = f"{_FLEET}fleet.init()\n" if _OF_SERVERS.search(text) else _TRAIN
    files = {"run.sh": script(text), "train.py": program}
    return {**files, "cfg.yaml": _arguments(["bf16=true"])} if "cfg.yaml" in text else files


def variables(text: str, _run: str) -> Files:
    """A launch script that exports variables."""
    run = "torchrun --nnodes=4 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=node0:29500 train.py"
    return torch_lines(f"export {text}\n{run}", "")


def torch_lines(text: str, _run: str) -> Files:
    """A launch script, and a program of torch."""
    backend = "mpi" if "mpirun" in text else "nccl"
    train = f"import torch.distributed as dist\n\ndist.init_process_group({backend!r})\n"
    return {"run.sh": f"#!/bin/bash\n{text}\n", "train.py": train}


def installs(text: str, _run: str) -> Files:
    """What a launch script gives pip to install, before it starts eight ranks."""
    return torch_lines(f"pip install {text}\ntorchrun --nproc-per-node=8 train.py", "")


def tuner(text: str, _run: str) -> Files:
    """The file of the launcher's tuner."""
    run = script("launch --auto_tuner_json tuner.json --devices 0,1 train.py")
    return {"run.sh": run, "tuner.json": f"{text}\n", "train.py": _TRAIN}


def program(text: str, run: str) -> Files:
    """A program, and the line that starts it."""
    return {"run.sh": script(run or "launch --devices 0,1 train.py"), "train.py": f"{text}\n"}


def strategy(text: str, run: str) -> Files:
    """Statements about the strategy `s` of a program that is run on four cards."""
    body = f"{_FLEET}s = fleet.DistributedStrategy()\n{text}\nfleet.init(is_collective=True, strategy=s)\n"
    return program(body, run or _COLLECTIVE)


def pipeline(text: str, run: str) -> Files:
    """Statements about the strategy `s` and the layers of a pipeline."""
    imported = "from paddle.distributed.fleet.meta_parallel import PipelineLayer\n"
    body = f"{imported}{_FLEET}s = fleet.DistributedStrategy()\n{text}\nfleet.init(is_collective=True, strategy=s)\n"
    return program(f"{body}model = fleet.distributed_model(layers)\n", run or _COLLECTIVE)


def static(text: str, run: str) -> Files:
    """Statements about the strategy `s`, and perhaps the optimizer `opt`, of a static program on four cards."""
    optimizer = "" if re.search(r"^opt =", text, re.MULTILINE) else "opt = paddle.optimizer.Momentum(0.1)\n"
    body = f"{_STATIC}fleet.init(is_collective=True)\ns = fleet.DistributedStrategy()\n{text}\n{optimizer}{_MINIMIZE}"
    return program(body, run or _COLLECTIVE)


def servers(text: str, run: str) -> Files:
    """The same with parameter servers."""
    optimizer = "" if re.search(r"^opt =", text, re.MULTILINE) else "opt = paddle.optimizer.Adam(0.1)\n"
    body = f"{_STATIC}fleet.init(is_collective=False)\ns = fleet.DistributedStrategy()\n{text}\n{optimizer}{_MINIMIZE}"
    return program(body, run or _SERVERS)


def workers(text: str, run: str) -> Files:
    """The calls of a program with parameter servers, from minimize on."""
    body = (
        f"{_STATIC}fleet.init(is_collective=False)\nexe = paddle.static.Executor()\ns = fleet.DistributedStrategy()\n"
    )
    made = "opt = fleet.distributed_optimizer(paddle.optimizer.Adam(0.1), s)\n"
    return program(f"{body}{made}{text}\nexe.train_from_dataset(program, dataset)\n", run or _SERVERS)


def role(text: str, _run: str) -> Files:
    """The variables with which a program with parameter servers is started by hand."""
    body = f"{_STATIC}fleet.init(fleet.PaddleCloudRoleMaker(is_collective=False))\n"
    return program(body, f"{text} python train.py")


def collective(text: str, _run: str) -> Files:
    """A launch script of a collective program with fleet."""
    return program(f"{_FLEET}fleet.init(is_collective=True)", text)


def spawned(text: str, _run: str) -> Files:
    """A program that starts its processes itself."""
    function = "def train():\n    dist.init_parallel_env()\n\n\n"
    body = f"import paddle.distributed as dist\n\n\n{function}if __name__ == '__main__':\n    {text}"
    return program(body, "python train.py")


def fluid(text: str, run: str) -> Files:
    """Statements about the configuration `config` of a transpiler."""
    head = "import paddle.fluid as fluid\n\nconfig = fluid.DistributeTranspilerConfig()\n"
    return _of_fluid(head + text, run)


def fluid_roles(text: str, run: str) -> Files:
    """Statements about role makers of Fluid."""
    package = "paddle.fluid.incubate.fleet"
    head = (
        f"from {package}.base import role_maker\nfrom {package}.parameter_server.distribute_transpiler import fleet\n\n"
    )
    return _of_fluid(head + text, run)


def fluid_collective(text: str, run: str) -> Files:
    """Statements about the strategy `s` of Fluid's collective fleet, and perhaps the optimizer `opt`."""
    optimizer = "" if re.search(r"^opt =", text, re.MULTILINE) else "opt = fluid.optimizer.SGD(0.1)\n"
    head = (
        "import paddle.fluid as fluid\n"
        "from paddle.fluid.incubate.fleet.base import role_maker\n"
        "from paddle.fluid.incubate.fleet.collective import DistributedStrategy, fleet\n\n"
        "fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))\ns = DistributedStrategy()\n"
    )
    launch = "launch --cluster_node_ips=10.0.0.1,10.0.0.2 --node_ip=10.0.0.1 --selected_gpus=0,1 train.py"
    return _of_fluid(f"{head}{text}\n{optimizer}{_MINIMIZE}", run or launch)


def _of_fluid(text: str, run: str) -> Files:
    return program(text, run or "python train.py") | {"requirements.txt": "paddlepaddle-gpu==1.8.5\n"}


def paddlenlp(text: str, run: str) -> Files:
    """Arguments of a program that parses PaddleNLP's TrainingArguments."""
    given = "".join(f" --{word.partition('=')[0]} {_quoted(word.partition('=')[2])}" for word in _words(text))
    started = (run or f"launch --devices {_CARDS} run_finetune.py").replace(
        "run_finetune.py", f"run_finetune.py --output_dir out{given}"
    )
    return {"run.sh": script(started), "run_finetune.py": _PARSER}


def paddlenlp_file(text: str, _run: str) -> Files:
    """The same arguments in a JSON file."""
    started = f"launch --devices {_CARDS} run_finetune.py cfg.json"
    parser = _PARSER.replace("parse_args_into_dataclasses", "parse_json_file_and_cmd_lines")
    given = {"output_dir": "out", "learning_rate": 1e-5, "per_device_train_batch_size": 1, **_converted(text)}
    return {"run.sh": script(started), "run_finetune.py": parser, "cfg.json": json.dumps(given, indent=2)}


def paddlenlp_call(text: str, _run: str) -> Files:
    """The same arguments of a call."""
    given = "".join(f", {name}={value!r}" for name, value in _converted(text).items())
    head = "from paddlenlp.trainer import Trainer, TrainingArguments\n\n"
    body = f'args = TrainingArguments(output_dir="out"{given})\ntrainer = Trainer(model=model, args=args)\n'
    return program(f"{head}{body}trainer.train()", f"launch --devices {_CARDS} train.py")


def _converted(text: str) -> dict[str, Any]:
    pairs = (word.split("=", 1) for word in _words(text))
    return {name: converted(name, value) for name, value in pairs}


def paddleformers(text: str, run: str) -> Files:
    """Keys of the file that paddleformers-cli trains with, on eight cards."""
    started = run or "paddleformers-cli train cfg.yaml"
    cards = f"export CUDA_VISIBLE_DEVICES={_CARDS}\n"
    return {"run.sh": script(cards + started), "cfg.yaml": _arguments(_words(text))}


def _arguments(words: list[str]) -> str:
    given = ["output_dir=out", "model_name_or_path=m", "learning_rate=1.0e-05", *words]
    if not any(word.startswith("per_device_train_batch_size") for word in words):
        given.append("per_device_train_batch_size=1")
    return "".join(": ".join(word.split("=", 1)) + "\n" for word in given)


def fleetx(text: str, run: str) -> Files:
    """Keys of a configuration of PaddleFleetX, for eight cards."""
    given = text if "Global.local_batch_size" in text or "global_batch" in text else f"{text} Global.local_batch_size=8"
    started = run or f"launch --devices {_CARDS} ./tools/train.py -c cfg.yaml"
    return {"run.sh": script(started), "cfg.yaml": huggingface_forms.sections(_words(given)), "tools/train.py": _TRAIN}


def paddlerec(text: str, run: str) -> Files:
    """Keys of a configuration of PaddleRec."""
    started = run or "fleetrun --server_num 1 --worker_num 2 tools/static_ps_trainer.py -m config.yaml"
    found = re.search(r"(\S+\.py)", started)
    name = found[1] if found else "train.py"
    words = [
        "runner.train_data_dir=data",
        "runner.infer_load_path=out",
        "runner.train_batch_size=32",
        "runner.epochs=3",
        *_words(text),
    ]
    return {
        "run.sh": script(started),
        "config.yaml": huggingface_forms.sections(words),
        name: "import paddle\nfrom paddle.distributed import fleet\n",
    }


def detection(text: str, run: str) -> Files:
    """Keys of a configuration of PaddleDetection."""
    words = ["epoch=12", *_words(text), "LearningRate.base_lr=0.01"]
    return {"run.sh": script(run), "config.yml": huggingface_forms.sections(words), "tools/train.py": _TRAIN}


def cluster_train(text: str, run: str) -> Files:
    """The conf.py of cluster_train, and the line that starts it."""
    started = run or "python paddle.py --job_dispatch_package=/p --config=net.py"
    return {"conf.py": f"{text}\n", "run.sh": script(started), "net.py": _SPARSE, "paddle.py": "import conf\n"}


_SPARSE = (
    "from paddle.trainer_config_helpers import *\n\n"
    "emb = embedding_layer(input=data_layer('w', 1000), size=8, param_attr=ParamAttr(sparse_update=True))\n"
)


def pods(text: str, _run: str) -> Files:
    """A PaddleJob of the Paddle operator: `ROLE:REPLICAS:flags`, and keys of its spec."""
    spec, roles = "", ""
    for word in text.split():
        name, _, rest = word.partition(":")
        if "=" in word:
            spec += "  {}: {}\n".format(*word.split("=", 1))
        elif not rest:
            spec += f"  {name}: 1\n"
        else:
            replicas, *flags = rest.split(":")
            roles += f"  {name}:\n    replicas: {replicas}\n    template:\n" + _pod(flags, 6)
    head = "apiVersion: batch.paddlepaddle.org/v1\nkind: PaddleJob\nmetadata:\n  name: job\nspec:\n"
    return {"job.yaml": f"{head}{spec}{roles}"}


def training_pods(text: str, _run: str) -> Files:
    """A PaddleJob of the training operator: `TYPE:REPLICAS:words`."""
    roles = ""
    for word in text.split():
        kind, replicas, *flags = word.split(":")
        roles += f"    {kind}:\n      replicas: {replicas}\n      restartPolicy: OnFailure\n      template:\n"
        roles += _pod(flags, 8)
    head = "apiVersion: kubeflow.org/v1\nkind: PaddleJob\nmetadata:\n  name: job\nspec:\n  paddleReplicaSpecs:\n"
    return {"job.yaml": f"{head}{roles}"}


def _pod(flags: list[str], depth: int) -> str:
    options = "".join(f"{flag}, " for flag in flags if flag.startswith("--"))
    name = next((flag.partition("=")[2] for flag in flags if flag.startswith("name=")), "paddle")
    lines = ["spec:", "  containers:"]
    if "sidecar" in flags:
        lines += ["  - name: istio-proxy", "    image: istio/proxyv2:1.20"]
    lines += [f"  - name: {name}", "    image: paddlepaddle/paddle:2.6.2"]
    lines.append(f"    command: [python, -m, paddle.distributed.launch, {options}train.py]")
    if "etcd" in flags:
        lines += ["    env:", "    - name: PADDLE_ELASTIC_SERVER", "      value: 10.0.0.9:2379"]
    if "gpu" in flags:
        lines += ["    resources:", "      limits:", "        nvidia.com/gpu: 2"]
    if "noshm" not in flags:
        lines += ["    volumeMounts:", "    - name: shm", "      mountPath: /dev/shm"]
        lines += ["  volumes:", "  - name: shm", "    emptyDir:", "      medium: Memory"]
    return "".join(f"{' ' * depth}{item}\n" for item in lines)


def _words(text: str) -> list[str]:
    return shlex.split(text)


def _quoted(text: str) -> str:
    return f'"{text}"' if " " in text or text.startswith("$") else text


_FORMS: dict[str, Callable[[str, str], Files]] = (
    {
        form.__name__: form
        for form in (
            *(line, tuner, program, strategy, pipeline, static, servers, workers, role, collective, spawned),
            *(
                fluid,
                fluid_roles,
                fluid_collective,
                paddlenlp,
                paddlenlp_file,
                paddlenlp_call,
                paddleformers,
                fleetx,
                paddlerec,
                detection,
            ),
            *(cluster_train, pods, training_pods, variables, torch_lines, installs),
        )
    }
    | huggingface_forms.FORMS
    | cluster_forms.FORMS
    | megatron_forms.FORMS
    | program_forms.FORMS
    | recipe_forms.FORMS
)

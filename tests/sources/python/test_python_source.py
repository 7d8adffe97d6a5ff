"""Training scripts: claims and their exact locations."""

from __future__ import annotations

import ast
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.model.job import Claim, Known, NoteKind, OneOf, Relation, Scope, Strength, Unresolved, Value, span_of
from preflight.model.job.value import is_known
from preflight.sources.base import Reading, SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.python import PythonSource
from preflight.sources.python.module import Positions

LAUNCH = Scope(launch="run.sh:7")


def _file(text: str, path: str = "train.py") -> SourceFile:
    return SourceFile(path, text, "", len(text))


def _read(text: str) -> Reading:
    reading = PythonSource().read(
        _file(textwrap.dedent(text)), MemoryTree({"conf/ds.json": "{}"}), scope=LAUNCH, role="script"
    )
    assert all(is_known(claim.quantity) for claim in reading.claims)
    assert all(claim.scope == LAUNCH for claim in reading.claims)
    return reading


def _of(reading: Reading, quantity: str) -> list[Claim]:
    return [claim for claim in reading.claims if claim.quantity == quantity]


def _only_claim(text: str, quantity: str) -> Claim:
    (claim,) = _of(_read(text), quantity)
    return claim


def _value(text: str, quantity: str) -> Value:
    return _only_claim(text, quantity).value


def test_the_script_names_itself() -> None:
    claim = _only_claim("pass\n", "script")
    assert claim.value == Known("train.py") and claim.strength is Strength.DEFAULT


# Process groups.


def test_a_process_group_in_full() -> None:
    text = """\
    import datetime
    import torch.distributed as dist

    dist.init_process_group(
        backend="nccl",
        init_method="tcp://10.0.0.1:29500",
        timeout=datetime.timedelta(minutes=5, seconds=30),
        world_size=16,
        rank=args.rank,
    )
    """
    reading = _read(text)
    (backend,) = _of(reading, "backend")
    assert backend.value == Known("nccl") and backend.spelling == 'backend="nccl"'
    assert (backend.span.line, backend.span.column, backend.span.end_column) == (5, 13, 19)
    (timeout,) = _of(reading, "process_group_timeout_s")
    assert timeout.value == Known(330)
    (address,), (port,) = _of(reading, "master_addr"), _of(reading, "master_port")
    assert address.value == Known("10.0.0.1") and port.value == Known(29500)
    (world,) = _of(reading, "world_size")
    assert world.value == Known(16) and world.relation is Relation.REQUIRES
    assert not _of(reading, "rank")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('import torch.distributed as dist\ndist.init_process_group("NCCL")', Known("nccl")),
        ('from torch.distributed import init_process_group as start\nstart("gloo")', Known("gloo")),
        ('import torch\nB = "nccl"\ntorch.distributed.init_process_group(B)', Known("nccl")),
        ('def f():\n    b = "nccl"\n    init_process_group(backend=b)', Known("nccl")),
        ('init_process_group("nccl" if cuda else "gloo")', OneOf(("nccl", "gloo"))),
        ('import deepspeed\ndeepspeed.init_distributed(dist_backend="nccl")', Known("nccl")),
    ],
)
def test_backends(text: str, value: Value) -> None:
    assert _value(text, "backend") == value


@pytest.mark.parametrize(
    "text",
    [
        "def f(b):\n    init_process_group(b)",
        "for b in x:\n    init_process_group(b)",
        "init_process_group(args.backend)",
        "b = 'nccl'\ndef f():\n    global b\n    b = g()\ninit_process_group(b)",
        "def f():\n    b = 'nccl'\n    def g():\n        nonlocal b\n        b = h()\n    init_process_group(b)",
        "b = b + b\ninit_process_group(b)",
        "import b\ninit_process_group(b)",
    ],
)
def test_expressions_that_are_not_constant_are_unresolved(text: str) -> None:
    assert isinstance(_value(text, "backend"), Unresolved)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("timedelta(seconds=1800)", 1800),
        ("timedelta(0, 60)", 60),
        ("timedelta(hours=HOURS)", 7200),
        ("datetime.timedelta(milliseconds=1500)", 2),
        ("LIMIT", 600),
        ("timedelta(minutes=2 * 30)", 3600),
    ],
)
def test_timeouts(written: str, seconds: int) -> None:
    text = f"HOURS = 2\nLIMIT = timedelta(minutes=10)\ninit_process_group('nccl', timeout={written})\n"
    assert _value(text, "process_group_timeout_s") == Known(seconds)


def test_an_external_timeout_is_unresolved() -> None:
    value = _value("init_process_group('nccl', timeout=timedelta(seconds=args.timeout))", "process_group_timeout_s")
    assert value == Unresolved("`args.timeout`: known only at run time")


def test_a_group_of_one_at_a_drawn_address_says_nothing_of_the_job() -> None:
    own = 'init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)'
    assert not _of(_read(own), "world_size")
    assert _of(_read(own.replace("{free_port()}", "29500")), "world_size")


def test_minus_one_means_the_environment() -> None:
    assert not _of(_read("init_process_group('nccl', world_size=-1, rank=-1)"), "world_size")


@pytest.mark.parametrize("method", ["env://", "file:///tmp/x", "tcp://-bad host:1"])
def test_calls_without_an_address(method: str) -> None:
    assert not _of(_read(f"init_process_group('nccl', init_method='{method}')"), "master_addr")


def test_an_address_composed_at_run_time() -> None:
    assert isinstance(_value("init_process_group(init_method=f'tcp://{ip}:{port}')", "master_addr"), Unresolved)
    text = "P = 23456\ninit_process_group(init_method=f'tcp://localhost:{P}')"
    assert _value(text, "master_port") == Known(23456)


@pytest.mark.parametrize(
    ("text", "quantity"),
    [
        ("from torch.nn.parallel import DistributedDataParallel as DDP\nm = DDP(m)", "uses_ddp"),
        ("import torch.nn as nn\nm = nn.parallel.DistributedDataParallel(m)", "uses_ddp"),
        ("import paddle\nm = paddle.DataParallel(m)", "uses_ddp"),
        ("from paddle.distributed import fleet\nm = fleet.distributed_model(m)", "uses_ddp"),
        ("from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nm = FSDP(m)", "uses_fsdp"),
    ],
)
def test_wrappers(text: str, quantity: str) -> None:
    assert _value(text, quantity) == Known(True)


def test_data_parallel_in_one_process_is_not_ddp() -> None:
    assert not _of(_read("import torch.nn as nn\nm = nn.DataParallel(m)"), "uses_ddp")


# Samplers, loaders, epochs, data.

LOADING = """\
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

if args.distributed:
    sampler = DistributedSampler(dataset, shuffle=False)
else:
    sampler = None
self.val = DistributedSampler(val)
loader = DataLoader(dataset, batch_size=32, shuffle=True, sampler=sampler, num_workers=4, drop_last=True)
for epoch in range(args.epochs):
    loader.sampler.set_epoch(epoch)
"""


def test_samplers_and_loaders() -> None:
    reading = _read(LOADING)
    first, second = _of(reading, "distributed_sampler")
    assert (first.value, second.value) == (Known("sampler"), Known("self.val"))
    assert first.condition == "args.distributed" and second.condition == ""
    given, default = _of(reading, "sampler_shuffle")
    assert given.value == Known(False) and given.strength is Strength.FLAG
    assert [claim.span for claim in given.because] == [first.span]
    assert default.value == Known(True) and default.strength is Strength.DEFAULT and default.because == (second,)
    (loader,) = _of(reading, "dataloader")
    assert loader.value == Known("loader")
    for quantity, value in (
        ("dataloader_shuffle", True),
        ("dataloader_sampler", "sampler"),
        ("dataloader_workers", 4),
        ("dataloader_drop_last", True),
        ("dataloader_batch_size", 32),
    ):
        (claim,) = _of(reading, quantity)
        assert claim.value == Known(value) and claim.because == (loader,)
    (shuffle,) = _of(reading, "dataloader_shuffle")
    assert (shuffle.span.line, shuffle.span.column, shuffle.spelling) == (9, 53, "shuffle=True")
    (epoch,) = _of(reading, "set_epoch_called")
    assert epoch.spelling == "loader.sampler.set_epoch(epoch)" and epoch.span.line == 11
    (loop,) = _of(reading, "loop_over_epochs")
    assert loop.span.line == 10 and loop.spelling == "for epoch in range(args.epochs)"


def test_paddle_samplers_do_not_shuffle_by_default() -> None:
    text = "import paddle\ns = paddle.io.DistributedBatchSampler(d, 32)"
    assert _value(text, "sampler_shuffle") == Known(False)


@pytest.mark.parametrize("loop", ["for epoch in range(1)", "for i in range(9)", "for epoch in range(0, 1)"])
def test_other_loops_are_not_epochs(loop: str) -> None:
    assert not _of(_read(f"{loop}:\n    pass"), "loop_over_epochs")


def test_data_files() -> None:
    reading = _read(
        """\
        import os
        import numpy as np
        from glob import glob
        ROOT = "data"
        x = np.load(os.path.join(ROOT, "x.npy"))
        y = glob("data/part-*")
        z = np.load(args.z)
        load_dataset("json", data_files=["a.jsonl", "b.jsonl"])
        """
    )
    assert [claim.value for claim in _of(reading, "data_path")] == [Known("data/x.npy"), Known("data/part-*")]
    assert [claim.value for claim in _of(reading, "shard_list")] == [Known(("a.jsonl", "b.jsonl"))]


# Options.


def test_option_defaults() -> None:
    reading = _read(
        """\
        parser.add_argument("--micro-batch-size", type=int, default="4")
        parser.add_argument("-b", "--batch-size", type=int, default=32)
        parser.add_argument("--local_rank", "--local-rank", type=int, default=-1)
        parser.add_argument("--data-path", default=None)
        parser.add_argument("--dist-backend", default="nccl")
        parser.add_argument("--master_port", default=get())
        parser.add_argument("--num-workers", default="4")
        """
    )
    (micro,) = _of(reading, "micro_batch_size_per_gpu")
    assert micro.value == Known(4) and micro.strength is Strength.DEFAULT
    assert micro.spelling == '--micro-batch-size="4"' and (micro.span.line, micro.span.column) == (1, 61)
    assert [claim.spelling for claim in _of(reading, "argument_default")] == [
        '--micro-batch-size="4"',
        "--batch-size=32",
        "--local_rank=-1",
        '--dist-backend="nccl"',
        '--num-workers="4"',
    ]
    assert [claim.value for claim in _of(reading, "dataloader_workers")] == [Known(4)]
    assert [claim.value for claim in _of(reading, "local_rank_argument")] == [
        Known("--local_rank"),
        Known("--local-rank"),
    ]
    assert not _of(reading, "data_path") and not _of(reading, "master_port")
    assert [claim.value for claim in _of(reading, "backend")] == [Known("nccl")]


# Environment.


def test_environment() -> None:
    reading = _read(
        """\
        import os
        os.environ["NCCL_SOCKET_IFNAME"] = "eth0"
        os.environ.setdefault("MASTER_PORT", "29500")
        os.environ["MASTER_ADDR"] = os.environ.get("MASTER_ADDR", "localhost")
        if "NCCL_DEBUG" not in os.environ:
            os.environ["NCCL_DEBUG"] = "INFO"
        os.environ.update({"A": "1"}, B="2")
        os.environ["RANK"] = str(rank)
        os.environ["N"] = 3
        """
    )
    found = {claim.quantity: claim for claim in reading.claims}
    assert found["env.NCCL_SOCKET_IFNAME"].value == Known("eth0")
    assert found["env.NCCL_SOCKET_IFNAME"].strength is Strength.FLAG
    assert (found["env.NCCL_SOCKET_IFNAME"].span.line, found["env.NCCL_SOCKET_IFNAME"].span.column) == (2, 36)
    assert found["env.MASTER_PORT"].strength is Strength.DEFAULT
    assert found["env.MASTER_ADDR"].value == Known("localhost")
    assert found["env.MASTER_ADDR"].strength is Strength.DEFAULT
    assert found["env.NCCL_DEBUG"].strength is Strength.DEFAULT and found["env.NCCL_DEBUG"].condition == ""
    assert found["env.A"].value == Known("1") and found["env.B"].value == Known("2")
    assert isinstance(found["env.RANK"].value, Unresolved)
    assert isinstance(found["env.N"].value, Unresolved)


def test_secrets_are_not_kept() -> None:
    reading = _read(
        'import os\nos.environ["HF_TOKEN"] = "hf_abcdef"\np.add_argument("--api-key", default="hf_abcdef")\n'
    )
    assert "hf_abcdef" not in repr(reading)


# Serial work.

GUARDED = """\
if rank == 0:
    snapshot_download("x")
    print("done")
dist.barrier()
"""
CONTEXT = """\
with accelerator.main_process_first():
    data = data.map(f, num_proc=4)
"""
HUGGING_FACE = """\
def load(args):
    if args.local_rank not in [-1, 0]:
        torch.distributed.barrier()
    features = tokenize(examples)
    if args.local_rank == 0:
        torch.distributed.barrier()
"""
IS_MAIN = """\
if is_main_process():
    load_dataset("x")
    torch.distributed.barrier()
else:
    torch.distributed.barrier()
"""


@pytest.mark.parametrize(
    ("text", "work", "line"),
    [
        (GUARDED, "snapshot_download", 2),
        (CONTEXT, "data.map", 2),
        (HUGGING_FACE, "tokenize", 4),
        (IS_MAIN, "load_dataset", 2),
    ],
)
def test_serial_work(text: str, work: str, line: int) -> None:
    claim = _only_claim(text, "serial_work")
    assert claim.value == Known(work) and claim.span.line == line


@pytest.mark.parametrize(
    "text",
    [
        "if rank == 0:\n    download()\n",
        "if rank == 0:\n    print(1)\ndist.barrier()\n",
        "if rank == 1:\n    download()\ndist.barrier()\n",
        "if rank == 0:\n    x = list(map(int, y))\n    re.compile(z)\ndist.barrier()\n",
    ],
)
def test_other_code_is_not_serial_work(text: str) -> None:
    assert not _of(_read(text), "serial_work")


# Paddle.


@pytest.mark.parametrize(
    ("text", "servers", "strength"),
    [
        ("from paddle.distributed import fleet\nfleet.init(is_collective=True)", False, Strength.FLAG),
        ("from paddle.distributed import fleet\nfleet.init()", True, Strength.DEFAULT),
        (
            "import paddle.distributed.fleet as fleet\nrole = r.PaddleCloudRoleMaker()\nfleet.init(role)",
            True,
            Strength.DEFAULT,
        ),
        (
            "from paddle.distributed import fleet\nrole = r.PaddleCloudRoleMaker(is_collective=True)\nfleet.init(role)",
            False,
            Strength.FLAG,
        ),
        (
            "from paddle.fluid.incubate.fleet.collective import fleet\nfleet.init(x())",
            False,
            Strength.DEFAULT,
        ),
        ("import paddle\npaddle.distributed.init_parallel_env()", False, Strength.FLAG),
    ],
)
def test_paddle_modes(text: str, servers: bool, strength: Strength) -> None:
    claim = _only_claim(text, "ps_mode")
    assert claim.value == Known(servers) and claim.strength is strength
    assert claim.relation is Relation.REQUIRES and claim.source == "paddle"


def test_the_legacy_transpiler() -> None:
    reading = _read(
        """\
        t = fluid.DistributeTranspiler()
        t.transpile(trainer_id, pservers="ps0:6174,ps1:6174", trainers=2, sync_mode=False)
        """
    )
    (mode,) = _of(reading, "ps_mode")
    assert mode.value == Known(True)
    (endpoints,) = _of(reading, "ps_server_endpoints")
    assert endpoints.value == Known(("ps0:6174", "ps1:6174")) and endpoints.span.line == 2
    (workers,) = _of(reading, "ps_workers")
    assert workers.value == Known(2)
    assert not _of(reading, "ps_index")


# The script's own modules.


def test_imports_of_own_files_are_references() -> None:
    files = MemoryTree(
        {
            "src/train.py": "",
            "src/utils/__init__.py": "",
            "src/utils/dist.py": "",
            "src/loop.py": "",
            "lib/data.py": "",
        }
    )
    text = (
        "import os, torch\nimport loop, missing\nfrom utils import dist, other\n"
        "from .utils.dist import x\nimport lib.data\n"
    )
    script = _file(text, "src/train.py")
    reading = PythonSource().read(script, files, scope=LAUNCH, role="script")
    assert [(found.target, found.role, found.span.line) for found in reading.references] == [
        ("src/loop.py", "module", 2),
        ("src/utils/dist.py", "module", 3),
        ("src/utils/__init__.py", "module", 3),
        ("lib/data.py", "module", 5),
    ]
    module = PythonSource().read(script, files, role="module")
    assert {found.role for found in module.references} == {"submodule"}
    assert not PythonSource().read(script, files, role="submodule").references


def test_an_imported_module_gives_only_a_few_claims() -> None:
    text = 'init_process_group("nccl", world_size=2)\ns.set_epoch(e)\nDataLoader(d)\np.add_argument("--a", default=1)\n'
    reading = PythonSource().read(_file(text, "utils.py"), MemoryTree({}), role="module")
    assert [claim.quantity for claim in reading.claims] == [
        "ranks_joined",
        "script_feature",
        "backend",
        "set_epoch_called",
    ]


@pytest.mark.parametrize(
    ("text", "quantity"),
    [
        ('import torch.distributed as d\nd.init_process_group("nccl")', "backend"),
        ("init_process_group(timeout=datetime.timedelta(hours=1))\nimport datetime", "process_group_timeout_s"),
        ('init_process_group("nccl", init_method="tcp://10.0.0.1:23456")', "master_addr"),
        ('p.add_argument("--master-port", type=int, default=29500)', "master_port"),
        ('p.add_argument("--dist_backend", default="gloo")', "backend"),
        ("from torch.nn.parallel import DistributedDataParallel as D\nm = D(m)", "uses_ddp"),
        ("from torch.distributed.fsdp import fully_shard as f\nf(m)", "uses_fsdp"),
        ("sampler.set_epoch(1)", "set_epoch_called"),
        ("from accelerate import Accelerator as A\nA()", "training_framework"),
    ],
)
def test_a_module_with_relevant_words_is_parsed(text: str, quantity: str) -> None:
    for role in ("module", "submodule"):
        reading = PythonSource().read(_file(text, "utils.py"), MemoryTree({}), role=role)
        assert quantity in {claim.quantity for claim in reading.claims}


def test_a_module_without_relevant_words_still_leads_to_its_imports() -> None:
    files = MemoryTree({"a.py": "", "b.py": "", "utils.py": ""})
    text = "import a\ndef f():\n    if x:\n        from b import c\n    return [g(i) for i in c]\n"
    reading = PythonSource().read(_file(text, "utils.py"), files, role="module")
    assert [found.target for found in reading.references] == ["a.py", "b.py"]
    assert reading.claims == ()


# Other libraries.


def test_none_of_several_deepspeed_dicts_is_in_force() -> None:
    reading = _read(
        """
        import deepspeed
        def small():
            config = {"train_batch_size": 1, "fp16": {"enabled": True}}
            deepspeed.initialize(model=m, config=config)
        def large():
            config = {"train_micro_batch_size_per_gpu": 7, "gradient_accumulation_steps": 6}
            deepspeed.initialize(model=m, config=config)
        """
    )
    found = {claim.quantity: claim.value for claim in reading.claims if claim.source == "deepspeed"}
    assert {"train_batch_size", "micro_batch_size_per_gpu", "gradient_accumulation_steps"} <= set(found)
    assert all(isinstance(value, Unresolved) for value in found.values())


def test_deepspeed_references_and_dicts() -> None:
    reading = _read(
        """\
        import deepspeed
        deepspeed.initialize(model=m, config="conf/ds.json")
        CONFIG = {"train_batch_size": 64, "zero_optimization": {"stage": 3}, "fp16": {"enabled": "auto"}}
        deepspeed.initialize(model=m, config=CONFIG)
        """
    )
    (reference,) = reading.references
    assert (reference.target, reference.role, reference.scope) == ("conf/ds.json", "config", LAUNCH)
    assert (reference.span.line, reference.span.column) == (2, 38)
    (batch,) = _of(reading, "train_batch_size")
    assert batch.value == Known(64) and batch.source == "deepspeed" and batch.spelling == '"train_batch_size": 64'
    assert (batch.span.line, batch.span.column) == (3, 31)
    (stage,) = _of(reading, "zero_stage")
    assert stage.value == Known(3)
    assert isinstance(_of(reading, "fp16_enabled")[0].value, Unresolved)


def test_training_arguments() -> None:
    reading = _read(
        """\
        from transformers import Trainer, TrainingArguments
        a = TrainingArguments(deepspeed="conf/ds.json", per_device_train_batch_size=8,
                              gradient_accumulation_steps=4, ddp_timeout=7200)
        Trainer(args=a)
        """
    )
    assert [reference.target for reference in reading.references] == ["conf/ds.json"]
    assert [claim.value for claim in _of(reading, "micro_batch_size_per_gpu")] == [Known(8)]
    assert [claim.value for claim in _of(reading, "gradient_accumulation_steps")] == [Known(4)]
    assert [claim.value for claim in _of(reading, "process_group_timeout_s")] == [Known(7200)]
    assert [claim.value for claim in _of(reading, "training_framework")] == [Known("transformers")]


def test_lightning_requires_its_nodes() -> None:
    reading = _read("import lightning as L\nL.Trainer(devices=8, num_nodes=4)\nL.Trainer(devices='auto')\n")
    (nodes,) = _of(reading, "nodes")
    assert nodes.value == Known(4) and nodes.relation is Relation.REQUIRES and nodes.source == "lightning"
    assert [claim.value for claim in _of(reading, "processes_per_node")] == [Known(8)]


# Locations.


def test_columns_count_characters() -> None:
    claim = _only_claim('größe = "ü"; init_process_group("nccl")\n', "backend")
    assert (claim.span.column, claim.span.end_column) == (33, 39)
    assert claim.span.snippet == 'größe = "ü"; init_process_group("nccl")'


def test_windows_line_endings() -> None:
    claim = _only_claim('# a\r\n# b\r\ninit_process_group("nccl")\r\n', "backend")
    assert (claim.span.line, claim.span.column) == (3, 20)
    assert claim.span.snippet == 'init_process_group("nccl")'


@given(st.text(alphabet="aé\n\r😀 ", max_size=30), st.data())
def test_spans_equal_those_of_span_of(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    assert Positions("a", text).between(start, end) == span_of("a", text, start, end)


# Files that are not Python 3.


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("import os\nprint 'hello'\n", 2, 1),
        ("x = (1,\n", 1, 5),
        ("def f():\n\tif x:\n        y\n", 3, 0),
        ("lr = {{ lr }}\nimport {{ x }}\n", 2, 8),
        ("é = 'a' 1\n", 1, 9),
        ("<<<<<<< HEAD\n", 1, 1),
    ],
)
def test_not_python_3(text: str, line: int, column: int) -> None:
    reading = PythonSource().read(_file(text), MemoryTree({}), role="script")
    (note,) = reading.notes
    assert reading.claims == () and note.kind is NoteKind.MALFORMED
    assert note.span.line == line
    assert not column or note.span.column == column
    assert "not Python 3" in note.message


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000,
        "-" * 200_000 + "1",
        "x = " + "+".join(["1"] * 50_000),
        "x = " + "a." * 20_000 + "b",
        "\n".join(f"{'elif' if i else 'if'} x == {i}:\n    pass" for i in range(5_000)),
        "\0",
        "'\udcff'",
    ],
)
def test_hostile_files_do_not_raise(text: str) -> None:
    reading = PythonSource().read(_file(text), MemoryTree({}))
    assert reading.notes or reading.claims


def test_a_script_that_is_too_long_is_not_parsed() -> None:
    (note,) = PythonSource().read(_file("f()\n" * 200_000), MemoryTree({}), role="script").notes
    assert note.kind is NoteKind.TOO_LARGE and "800000 characters" in note.message


def test_suppressions_are_read() -> None:
    (found,) = _read("init_process_group('nccl')  # preflight: ignore[TIM001] known\n").suppressions
    assert (found.line, found.names, found.reason) == (1, ("TIM001",), "known")


def test_growing_constants_stay_within_limits() -> None:
    lines = ["x0 = 1"] + [f"x{i + 1} = x{i} * x{i} + x{i} * x{i}" for i in range(200)]
    lines += ["y = 'a'", *("y = y + y" for _ in range(50)), "z = 9 ** 9 ** 9 ** 9", "init_process_group(y)"]
    assert isinstance(_value("\n".join(lines), "backend"), Unresolved)


def test_warnings_about_the_script_are_not_printed(recwarn: pytest.WarningsRecorder) -> None:
    _read("x = '\\d'\n")
    assert not recwarn.list


@given(st.text(max_size=200))
def test_any_text_is_read_without_an_error(text: str) -> None:
    reading = PythonSource().read(_file(text), MemoryTree({}))
    lines = text.count("\n") + 1
    assert all(1 <= item.span.line <= lines for item in (*reading.claims, *reading.notes))


def test_the_script_is_not_executed() -> None:
    _read("raise SystemExit('executed')\n")
    assert ast.parse("1")


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("a.py", "", True),
        ("run", "#!/usr/bin/env python3\n", True),
        ("run.sh", "#!/bin/bash\n", False),
        ("a", "", False),
    ],
)
def test_recognition(path: str, text: str, expected: bool) -> None:
    assert PythonSource().recognises(_file(text, path)) is expected


def test_a_skipped_file_is_read_completely_if_it_is_started() -> None:
    tree = MemoryTree({"go.py": "import sys\n\nprint(sys.argv)\nundefined(\n"})
    file = tree.read("go.py")
    assert isinstance(file, SourceFile)
    source = PythonSource()
    assert not source.read(file, tree).notes, "nothing in it is worth a parse where nothing starts it"
    alone = PythonSource().read(file, tree, role="script")
    assert source.read(file, tree, role="script") == alone

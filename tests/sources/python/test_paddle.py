"""Claims of Paddle scripts: the transpiler and its settings, sizes of parameters, programs, Fleet's strategy."""

from __future__ import annotations

import textwrap

import pytest

from preflight.model.job import Claim, Known, Plain, Strength, Unresolved
from preflight.model.job.value import is_known
from preflight.sources.base import Reading, SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.python import PythonSource

TOP = "import os\nimport paddle\nimport paddle.fluid as fluid\nimport paddle.distributed.fleet as fleet\n"


def _read(text: str, *, role: str = "script") -> Reading:
    text = TOP + textwrap.dedent(text)
    reading = PythonSource().read(SourceFile("train.py", text, "", len(text)), MemoryTree({}), role=role)
    assert all(is_known(claim.quantity) for claim in reading.claims)
    return reading


def _of(text: str, quantity: str) -> list[Claim]:
    return [claim for claim in _read(text).claims if claim.quantity == quantity]


def _known(text: str, quantity: str) -> list[Plain | None]:
    return [claim.value.value if isinstance(claim.value, Known) else None for claim in _of(text, quantity)]


CONFIG = "config = fluid.DistributeTranspilerConfig()\n"


def test_a_transpiler_without_configuration_serves_parameters_in_step() -> None:
    text = "t = fluid.DistributeTranspiler()\nt.transpile(0, pservers='a:1,b:1', trainers=2)\n"
    (mode,) = _of(text, "transpiler")
    assert (mode.value, mode.strength) == (Known("pserver"), Strength.DEFAULT)
    (update,) = _of(text, "ps_update_mode")
    assert (update.value, update.strength) == (Known("sync"), Strength.DEFAULT)


@pytest.mark.parametrize(
    ("arguments", "mode"),
    [
        ("0, None, 'a:1', 2, False", "async"),
        ("0, pservers='a:1', trainers=2, sync_mode=True", "sync"),
        ("trainer_id=0, pservers='a:1', trainers=2, sync_mode=not True", "async"),
    ],
)
def test_the_update_mode_by_position_and_by_name(arguments: str, mode: str) -> None:
    assert _known(f"t = fluid.DistributeTranspiler()\nt.transpile({arguments})\n", "ps_update_mode") == [mode]


def test_settings_of_a_configuration_belong_to_its_transpiler() -> None:
    text = (
        CONFIG
        + "config.slice_var_up = False\nconfig.min_block_size = 8192 * 10\nconfig.split_method = fluid.HashName\n"
        + "config.mode = 'nccl2'\nt = fluid.DistributeTranspiler(config=config)\n"
        + "t.transpile(0, trainers='a:1,b:1', current_endpoint='a:1')\n"
    )
    assert _known(text, "transpiler") == ["nccl2"]
    assert _known(text, "min_block_size") == [81920]
    assert _known(text, "split_method") == ["HashName"]
    (slice_var_up,) = _of(text, "slice_var_up")
    assert slice_var_up.because[0].quantity == "transpiler"
    assert not _of(text, "ps_update_mode")


def test_an_imported_configuration_leaves_the_mode_unresolved() -> None:
    (mode,) = _of("t = fluid.DistributeTranspiler(config=make())\nt.transpile(0, trainers=2)\n", "transpiler")
    assert isinstance(mode.value, Unresolved)


def test_a_configuration_given_to_fleet_counts_too() -> None:
    assert _known(CONFIG + "config.sync_mode = False\n", "ps_update_mode") == ["async"]
    assert _known(CONFIG + "config.geo_sgd_mode = True\nconfig.geo_sgd_need_push_nums = 400\n", "geo_steps") == [400]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("os.getenv('N')", True),
        ("os.environ['N']", True),
        ("os.environ.get('N', '1')", True),
        ("'2'", True),
        ("int(os.getenv('N'))", False),
        ("os.getenv('N', 1)", False),
        ("2", False),
        ("args.trainers", False),
    ],
)
def test_a_number_that_is_text(value: str, text: bool) -> None:
    found = _known(f"t = fluid.DistributeTranspiler()\nt.transpile(0, pservers=e, trainers={value})\n", "text_argument")
    assert found == (["trainers"] if text else [])


def test_other_transpile_calls_are_ignored() -> None:
    assert not _of("from qiskit import transpile\ntranspile(circuit, backend)\n", "transpiler")


def test_sizes_of_layers_that_follow_each_other() -> None:
    text = """\
    x = fluid.layers.data(name="x", shape=[13], dtype="float32")
    h = fluid.layers.fc(input=x, size=400, act="relu")
    y = fluid.layers.fc(fluid.layers.dropout(h, 0.5), 10, bias_attr=False)
    c = fluid.layers.conv2d(input=x, num_filters=4, filter_size=3)
    w = paddle.static.create_parameter([2 * 8, 4], "float32")
    v = paddle.create_parameter(shape=[args.rows, 4], dtype="float32")
    """
    assert _known(text, "parameter_shape") == [(13, 400), (400,), (400, 10), None, (16, 4), None]


def test_tables() -> None:
    text = """\
    rows = 1000 * 1000
    a = fluid.layers.embedding(x, [rows, 8], is_sparse=True, param_attr=fluid.ParamAttr(name="a"))
    b = fluid.embedding(input=x, size=[args.rows, 8], is_distributed=True)
    c = paddle.static.nn.sparse_embedding(input=x, size=[rows, 9])
    """
    assert _known(text, "embedding_shape") == [(1000000, 8), None, (1000000, 9)]
    assert _known(text, "embedding_sparse") == [True, True]
    assert _known(text, "embedding_distributed") == [True]
    assert _known(text, "embedding_parameter") == ["a"]


def test_the_optimizer_whose_minimize_is_called() -> None:
    text = "o = fluid.optimizer.AdamOptimizer(1e-3)\nother = fluid.optimizer.SGD(1)\no.minimize(loss)\n"
    assert _known(text, "optimizer") == ["Adam"]


@pytest.mark.parametrize(
    ("first", "second", "order"),
    [
        ("o.minimize(loss)", "t = main.clone(for_test=True)", "after"),
        ("t = main.clone(for_test=True)", "o.minimize(loss)", "before"),
        ("o.minimize(loss)", "t = main.clone(True)", "after"),
    ],
)
def test_the_order_of_clone_and_minimize(first: str, second: str, order: str) -> None:
    assert _known(f"{first}\n{second}\n", "test_program_cloned") == [order]


def test_the_order_is_not_judged_across_functions() -> None:
    text = "def a():\n    o.minimize(loss)\n\ndef b():\n    t = main.clone(for_test=True)\n"
    assert not _of(text, "test_program_cloned")


def test_whether_a_startup_program_is_run() -> None:
    start = "exe = fluid.Executor(place)\no.minimize(loss)\n"
    step = "exe.run(fluid.default_main_program(), feed=data, fetch_list=[loss])\n"
    assert _known(start + "exe.run(fluid.default_startup_program())\n" + step, "startup_program_run") == [True]
    assert _known(start + step, "startup_program_run") == [False]
    assert not _of(start + "exe.run(prog)\n" + step, "startup_program_run")


@pytest.mark.parametrize(
    ("test", "found"),
    [
        ("trainer_id != 3 and batch > 100", ["trainer_id"]),
        ("args.trainer_id == 0", ["trainer_id"]),
        ("fleet.worker_index() == 1", ["worker_index"]),
        ("batch > 100", []),
        ("index == 3", []),
    ],
)
def test_a_loop_that_some_ranks_leave(test: str, found: list[str]) -> None:
    assert _known(f"for batch in data():\n    if {test}:\n        break\n", "rank_dependent_steps") == found


def test_a_strategy() -> None:
    text = """\
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    strategy.a_sync_configs = {"k_steps": 100}
    strategy.hybrid_configs = {"dp_degree": -1, "mp_degree": 2, "pp_degree": 4}
    strategy.pipeline_configs = {"accumulate_steps": 8, "micro_batch_size": 4}
    strategy.dgc = True
    strategy.lamb = False
    """
    assert _known(text, "ps_update_mode") == ["geo"]
    assert _known(text, "fleet_hybrid") == [("data_parallel_size", "tensor_parallel_size", "pipeline_parallel_size")]
    assert _known(text, "tensor_parallel_size") == [2]
    assert not _of(text, "data_parallel_size")
    assert _known(text, "pipeline_micro_batches") == [8]
    assert _known(text, "fleet_switch") == ["dgc"]


@pytest.mark.parametrize(("flag", "mode"), [("False", "sync"), ("True", "async"), ("args.a", None)])
def test_the_update_mode_of_a_strategy(flag: str, mode: str | None) -> None:
    assert _known(f"s = fleet.DistributedStrategy()\ns.a_sync = {flag}\n", "ps_update_mode") == [mode]


def test_a_later_a_sync_resets_the_steps() -> None:
    text = "s = fleet.DistributedStrategy()\ns.a_sync_configs = {'k_steps': 100}\ns.a_sync = True\n"
    assert _known(text, "a_sync_configs_lost") == [100]
    assert _known(text, "ps_update_mode") == ["async"]
    assert not _of(text + "s.a_sync_configs = {'k_steps': 100}\n", "a_sync_configs_lost")


def test_a_strategy_made_in_each_branch_has_the_mode_of_its_branch() -> None:
    text = """\
    if mode == "sync":
        strategy = fleet.DistributedStrategy()
        strategy.a_sync = False
    elif mode == "async":
        strategy = fleet.DistributedStrategy()
        strategy.a_sync = True
    else:
        strategy = fleet.DistributedStrategy()
        strategy.a_sync = True
        strategy.a_sync_configs = {"k_steps": 200}
    """
    assert _known(text, "ps_update_mode")[-1] == "geo"
    assert not {"geo"} & set(_known(text, "ps_update_mode")[:2])
    assert not _of(text, "geo_steps_refused") and not _of(text, "a_sync_configs_lost")


def test_called_fleet_methods_are_claimed() -> None:
    text = "fleet.init()\nif fleet.is_server():\n    fleet.init_server()\n    fleet.run_server()\n"
    assert _known(text, "fleet_calls") == [("init", "init_server", "is_server", "run_server")]


def test_data_sets() -> None:
    stream = "d = paddle.distributed.QueueDataset()\nd.local_shuffle()\n"
    assert _known(stream, "stream_dataset_shuffled") == ["local_shuffle"]
    assert not _of(stream.replace("Queue", "InMemory"), "stream_dataset_shuffled")
    assert _known("d.set_filelist(os.listdir('data'))\n", "dataset_files_shared") == [False]
    shared = "d.set_filelist(fleet.util.get_file_shard(os.listdir('data')))\n"
    assert _known(shared, "dataset_files_shared") == [True]
    assert not _of("d.set_filelist(files)\n", "dataset_files_shared")


def test_python_2_gives_only_a_note() -> None:
    reading = _read("t = fluid.DistributeTranspiler()\nprint 'x'\n")
    assert not reading.claims
    assert reading.notes[0].span.line == 6


@pytest.mark.parametrize(
    "text",
    [
        "t.transpile(*args)\n",
        "t = fluid.DistributeTranspiler(*c)\nt.transpile(0, pservers=1, trainers=x[0])\n",
        "s = fleet.DistributedStrategy()\ns.hybrid_configs = {**a, 'mp_degree': 'x', 3: 4}\ns.a_sync = 7\n",
        "fluid.layers.embedding(size=[])\nfluid.layers.embedding(x, size=['a', -1])\nfluid.layers.fc(x)\n",
        "x = fluid.layers.relu(x)\nfluid.layers.fc(x, 3)\n",
        "main.clone(for_test=flag)\nd.set_filelist()\nd.set_filelist([])\nd.local_shuffle\n",
    ],
)
def test_unusual_calls_do_not_raise(text: str) -> None:
    assert _read(text) is not None


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import paddle.fluid as fluid", True),
        ("from paddle import fluid", True),
        ("from paddle.fluid.layers import fc", True),
        ("try:\n    import paddle.fluid\nexcept ImportError:\n    pass", False),
        ("import paddle", False),
    ],
)
def test_whether_fluid_is_needed(line: str, found: bool) -> None:
    reading = PythonSource().read(SourceFile("t.py", line + "\n", "", len(line)), MemoryTree({}), role="script")
    assert any(claim.quantity == "imports_fluid" for claim in reading.claims) is found


def test_whether_an_executor_is_closed() -> None:
    text = "t.transpile(0, pservers=e, trainers=2)\nexe = fluid.Executor(p)\nfor b in r():\n    exe.run(m, feed=b)\n"
    assert _known(text, "executor_closed") == [False]
    assert _known(text + "exe.close()\n", "executor_closed") == [True]
    assert not _of(text.replace("t.transpile(0, pservers=e, trainers=2)\n", ""), "executor_closed")


@pytest.mark.parametrize(
    "call", ["fleet.init()", "paddle.distributed.init_parallel_env()", "dygraph.prepare_context()"]
)
def test_how_the_processes_are_connected(call: str) -> None:
    assert _known(f"{call}\n", "parallel_environment") == [True]


@pytest.mark.parametrize(
    ("init", "found"),
    [
        ("fleet.init()", [True]),
        ("fleet.init(fleet.PaddleCloudRoleMaker())", [True]),
        ("role = fleet.UserDefinedRoleMaker(current_id=0)\nfleet.init(role)", []),
    ],
)
def test_the_origin_of_a_role(init: str, found: list[bool]) -> None:
    assert _known(f"{init}\n", "role_from_environment") == found


@pytest.mark.parametrize(("given", "alone"), [("", True), ("fleet", False), ("fleet=fleet", False)])
def test_global_shuffles_of_data_sets(given: str, alone: bool) -> None:
    text = f"d = fluid.DatasetFactory().create_dataset('InMemoryDataset')\nd.global_shuffle({given})\n"
    assert _known(text, "global_shuffle_alone") == [alone]

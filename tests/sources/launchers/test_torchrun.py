from __future__ import annotations

import pytest

from preflight.model.job import Known, OneOf, Relation, Strength
from preflight.sources.launchers.torch_launchers import _OPTIONS
from tests.sources.launchers.reading_lines import is_default, only, read, values, why


def test_both_spellings_and_both_forms_of_options_mean_the_same() -> None:
    one = read("torchrun --nnodes=2 --nproc-per-node=8 --node-rank=1 --master-addr=n1 --master-port=2950 t.py")
    two = read("torchrun --nnodes 2 --nproc_per_node 8 --node_rank 1 --master_addr n1 --master_port 2950 t.py")
    assert values(one) == values(two)
    assert values(one, source="torchrun") == {
        "nodes": 2,
        "processes_per_node": 8,
        "node_rank": 1,
        "rendezvous_backend": "static",
        "master_addr": "n1",
        "master_port": 2950,
        "chosen_value": "2950",
        "script": "t.py",
    }


def test_nodes_are_required_and_processes_set_at_the_options() -> None:
    reading = read("torchrun \\\n  --nnodes=4 \\\n  --nproc_per_node 8 t.py")
    nodes, processes = only(reading, "nodes"), only(reading, "processes_per_node")
    assert (nodes.relation, nodes.strength, nodes.spelling) == (
        Relation.REQUIRES,
        Strength.FLAG,
        "--nnodes=4",
    )
    assert (nodes.span.line, nodes.span.column, nodes.span.end_column) == (2, 3, 13)
    assert (processes.relation, processes.span.line, processes.spelling) == (
        Relation.SETS,
        3,
        "--nproc_per_node 8",
    )
    assert nodes.scope.launch == reading.launches[0].id == "run.sh:1"


def test_a_unique_prefix_of_an_option_counts_as_in_argparse() -> None:
    assert values(read("torchrun --nproc 4 --nno 2 --standal t.py"))["processes_per_node"] == 4
    # `--rdzv` could be four options; argparse rejects it, so nothing is claimed.
    assert "rendezvous_endpoint" not in values(read("torchrun --rdzv=a:1 t.py"))
    assert values(read("torchrun --rdzv_e=a:1 t.py"))["rendezvous_endpoint"] == "a:1"


def test_an_elastic_range_allows_several_counts() -> None:
    reading = read("torchrun --nnodes=2:4 --nproc_per_node=1 --rdzv_backend=c10d --rdzv_endpoint=n1 t.py")
    assert only(reading, "nodes").value == OneOf((2, 3, 4))
    assert only(reading, "min_nodes").value == Known(2)
    # c10d uses 29400 if the endpoint has no port.
    assert only(reading, "master_port").value == Known(29400)


@pytest.mark.parametrize("word", ["gpu", "auto", "cpu"])
def test_a_device_word_is_not_a_number(word: str) -> None:
    assert word in why(only(read(f"torchrun --nproc_per_node={word} t.py"), "processes_per_node"))


def test_defaults_of_several_nodes_are_stated_at_the_launchers_word() -> None:
    reading = read("export MASTER_ADDR=n1 MASTER_PORT=1234\ntorchrun --nnodes=2 --nproc_per_node=1 t.py")
    address, port = only(reading, "master_addr"), only(reading, "master_port")
    # torchrun does not read MASTER_ADDR.
    assert (address.value, port.value) == (Known("127.0.0.1"), Known(29500))
    assert is_default(address) and address.span.line == 2 and address.span.column == 1
    assert values(reading, environment=True)["env.MASTER_ADDR"] == "n1"


def test_one_node_without_a_port_has_no_fixed_endpoint() -> None:
    assert "master_port" not in values(read("torchrun --nproc_per_node=2 t.py"))
    assert "master_port" not in values(read("torchrun --standalone --nnodes=1 --nproc_per_node=2 t.py"))


def test_pet_variables_override_the_default_but_not_the_option() -> None:
    reading = read("export PET_NNODES=3 PET_MASTER_ADDR=n9\ntorchrun --master_addr=n1 t.py")
    assert only(reading, "nodes").value == Known(3)
    assert only(reading, "nodes").strength is Strength.ENVIRONMENT
    assert only(reading, "master_addr").value == Known("n1")


def test_a_port_after_an_unknown_host_is_known() -> None:
    reading = read("torchrun --nnodes=2 --rdzv_backend c10d --rdzv_endpoint=$HEAD:29511 t.py")
    assert only(reading, "master_port").value == Known(29511)
    assert "HEAD" in why(only(reading, "master_addr"))
    assert why(only(reading, "rendezvous_endpoint"))


def test_a_host_before_an_unknown_port_is_known() -> None:
    reading = read("torchrun --nnodes=2 --rdzv_endpoint=head01:$PORT t.py")
    assert only(reading, "master_addr").value == Known("head01")
    assert why(only(reading, "master_port"))


@pytest.mark.parametrize(
    ("endpoint", "host", "port"),
    [("n1:6000", "n1", 6000), ("[fd00::1]:6000", "fd00::1", 6000), ("10.0.0.1:6000", "10.0.0.1", 6000)],
)
def test_endpoints_are_split(endpoint: str, host: str, port: int) -> None:
    found = values(read(f"torchrun --nnodes=2 --rdzv_endpoint='{endpoint}' t.py"))
    assert (found["master_addr"], found["master_port"]) == (host, port)


@pytest.mark.parametrize("host", ["xxx.xxx.xxx.xxx", "'<ip of node 0>'", "MASTER_IP", "your-master", "master_addr"])
def test_a_placeholder_host_is_unknown(host: str) -> None:
    reading = read(f"torchrun --nnodes=2 --master_addr={host} --master_port=29500 t.py")
    assert "which must be replaced" in why(only(reading, "master_addr"))
    assert only(reading, "master_port").value == Known(29500)


@pytest.mark.parametrize("host", ["node0", "GPU1", "10.0.0.1", "master", "trainer_0", "x.example.org", "::1"])
def test_a_real_host_is_known(host: str) -> None:
    reading = read(f"torchrun --nnodes=2 --master_addr={host} --master_port=29500 t.py")
    assert only(reading, "master_addr").value == Known(host)


def test_no_default_where_unknown_words_may_hide_the_option() -> None:
    reading = read("torchrun $DISTRIBUTED_ARGS train.py --micro-batch-size 2")
    assert values(reading) == {"script": "train.py", "micro_batch_size_per_gpu": 2}
    assert reading.launches[0].program == "train.py"


def test_branches_give_alternatives() -> None:
    reading = read('if [ -z "$X" ]; then N=2; else N=4; fi\ntorchrun --nnodes=$N t.py')
    assert only(reading, "nodes").value == OneOf((2, 4))


def test_arguments_in_arrays_point_into_the_array() -> None:
    reading = read('ARGS=(\n  --nnodes 2\n  --nproc_per_node 4\n)\ntorchrun "${ARGS[@]}" t.py')
    assert only(reading, "nodes").span.line == 2
    assert only(reading, "processes_per_node").span.line == 3


def test_modules_and_programs_without_python() -> None:
    module = read("torchrun -m pkg.train --lr 1", pkg__train_dot_py="x = 1\n")
    assert module.launches[0].program == "pkg/train.py"
    assert module.launches[0].arguments == ("--lr", "1")
    bare = read("torchrun --no-python --nproc_per_node=2 python -u t.py --lr 1")
    assert (bare.launches[0].program, bare.launches[0].arguments) == ("t.py", ("--lr", "1"))


def test_the_old_module_is_distinguished_when_it_passes_local_rank() -> None:
    assert read("python -m torch.distributed.launch t.py").launches[0].launcher == "torch.distributed.launch"
    assert read("python -m torch.distributed.launch --use_env t.py").launches[0].launcher == "torchrun"
    assert read("python3.10 -u -m torch.distributed.run t.py").launches[0].launcher == "torchrun"


def test_one_torchrun_per_node_is_required_under_srun_only() -> None:
    required = only(read("srun torchrun --nproc_per_node=8 t.py"), "tasks_per_node")
    assert (required.value, required.relation) == (Known(1), Relation.REQUIRES)
    assert "tasks_per_node" not in values(read("torchrun --nproc_per_node=8 t.py"))
    assert "tasks_per_node" not in values(read("srun torchrun --nnodes=$SLURM_NTASKS --nproc_per_node=1 t.py"))


@pytest.mark.thorough
def test_the_table_holds_every_option_of_the_installed_torchrun() -> None:
    run = pytest.importorskip("torch.distributed.run")
    for action in run.get_args_parser()._actions:
        for spelling in action.option_strings:
            option = _OPTIONS.options[spelling]
            assert option.dest == action.dest
            assert bool(option.takes) is (action.nargs != 0), spelling

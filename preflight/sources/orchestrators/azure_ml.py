"""Jobs, components and pipelines of Azure Machine Learning: a command that starts on every instance or for every rank.

Sources: the schemas of command jobs, command components and pipeline jobs of the CLI v2 (commandJob.schema.json,
commandComponent.schema.json, pipelineJob.schema.json), and azure-ai-ml 1.28, azure/ai/ml/entities/_job/distribution.py.
The variables of ranks are those that its guide to distributed GPU training lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.job import Unresolved, as_int
from preflight.model.job.symbols import Symbol
from preflight.sources.formats.structured import Kind, Node, value_of
from preflight.sources.orchestrators.orchestrator import NODES, WORLD, Orchestrator, RanksPerNode
from preflight.sources.orchestrators.task_files import TaskFileSource

_VARIABLES: dict[str, dict[str, str | Symbol]] = {
    "pytorch": {
        "MASTER_ADDR": Symbol.FIRST_ALLOCATED_HOST,
        "MASTER_PORT": Symbol.RANDOM_NUMBER,
        "WORLD_SIZE": WORLD,
        "RANK": Symbol.PROCESS_RANK,
        "NODE_RANK": Symbol.NODE_RANK,
        "LOCAL_RANK": Symbol.LOCAL_RANK,
    },
    "mpi": {
        "OMPI_COMM_WORLD_SIZE": WORLD,
        "OMPI_COMM_WORLD_RANK": Symbol.PROCESS_RANK,
        "OMPI_COMM_WORLD_LOCAL_RANK": Symbol.LOCAL_RANK,
        "AZUREML_NODE_COUNT": NODES,
    },
    "tensorflow": {"TF_CONFIG": Symbol.PROCESS_RANK},
}


def _tasks(root: Node) -> Iterator[Node]:
    """The job itself, the trial of a sweep, or each job of a pipeline."""
    yield root
    jobs = root.at("jobs")
    for task in (root, *(member.node for member in (jobs.in_force if jobs is not None else ()))):
        if task is not root and task.kind is Kind.OBJECT:
            yield task
        trial = task.at("trial")
        if trial is not None and trial.kind is Kind.OBJECT:
            yield trial


def _ranks(root: Node) -> RanksPerNode | None:
    distribution = root.at("distribution")
    if distribution is None or distribution.kind is not Kind.OBJECT:
        return None
    kind = distribution.text("type").lower()
    if kind not in _VARIABLES:
        return None
    if kind == "tensorflow":
        # Workers are spread over the instances. Parameter servers make the job one of another kind.
        workers = distribution.member("worker_count") if distribution.at("parameter_server_count") is None else None
        count = as_int(value_of(workers.node)) if workers is not None else Unresolved(Symbol.LIBRARY_DEFAULT.value)
        return RanksPerNode(count, workers, _VARIABLES[kind], total=True)
    member = distribution.member("process_count_per_instance")
    count = as_int(value_of(member.node)) if member is not None else Unresolved(Symbol.LIBRARY_DEFAULT.value)
    return RanksPerNode(count, member, _VARIABLES[kind])


AZURE_ML = Orchestrator(
    name="azure-ml",
    signs=(
        re.compile(r"^[ \t]*command:", re.MULTILINE),
        re.compile(r"^[ \t]*(?:distribution|resources):", re.MULTILINE),
        re.compile(r"^[ \t]*(?:process_count_per_instance|worker_count):|\bazureml", re.MULTILINE),
    ),
    code="command",
    environment=("environment_variables",),
    nodes="resources.instance_count",
    accelerators=lambda _: None,
    variables={},
    others=(re.compile(r"^(?:apiVersion|run|on|entrypoint):", re.MULTILINE),),
    tasks=_tasks,
    folder="code",
    inputs="inputs",
    ranks=_ranks,
)
AZURE_ML_SOURCE = TaskFileSource(AZURE_ML)

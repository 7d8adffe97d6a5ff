"""Kubernetes manifests, one object or many, with or without template placeholders: each job with its roles, its
launches, and the objects that belong to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from preflight._util.budget import note_skipped, truncate
from preflight.model.job import (
    WHOLE_JOB,
    Claim,
    Known,
    Launch,
    Note,
    NoteKind,
    Places,
    Scope,
    Strength,
    Suppression,
    Unresolved,
    Value,
    as_int,
    lift,
)
from preflight.model.job.value import known_number
from preflight.sources.base import Command, Reading, SourceFile, Tree, suppressions
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims, places_of, value_of
from preflight.sources.formats.tree import TEMPLATE_SUFFIXES
from preflight.sources.kubernetes.admission import admission
from preflight.sources.kubernetes.inputs import is_kustomization
from preflight.sources.kubernetes.objects import (
    ASIDE_KINDS,
    BINDING_KINDS,
    GENERIC_KINDS,
    RAY_KINDS,
    TRAINING_KINDS,
    WRAPPER_KINDS,
    Role,
    Workload,
    objects,
    workload_of,
)
from preflight.sources.kubernetes.operators import (
    injected_variables,
    pods,
    state_object,
    state_paddle_job,
    with_runtime,
)
from preflight.sources.kubernetes.pods import (
    GPU_RESOURCE,
    Containers,
    containers_of,
    gpus_of,
    state_claims,
    state_labels,
    state_pods,
)
from preflight.sources.kubernetes.related_objects import (
    Piece,
    is_volcano_job,
    pieces_of,
    state_hosts,
    state_mounts,
    state_namespace,
    state_queue,
    state_related_object,
    state_services,
    state_volcano_hosts,
    state_volcano_policies,
    state_volume_claims,
)
from preflight.sources.launchers.launch_lines import read_commands
from preflight.sources.launchers.option_parser import is_python, python_program, text_of
from preflight.sources.secrets import secrets_of, secrets_of_files, without_secrets
from preflight.sources.shell.state import Slot
from preflight.sources.shell.words import literal
from preflight.sources.value_readers import sum_of

#: Kinds whose pods together are the nodes of one job, whatever their containers run.
_SINGLE_JOB_KINDS = frozenset(
    ("PyTorchJob", "PaddleJob", "MPIJob", "TrainJob", "JAXJob", "LeaderWorkerSet", "HyperPodPyTorchJob", "ElasticJob")
)
#: Kinds whose pods start ranks even if only the image determines how.
_IMAGE_LAUNCH_KINDS = (
    *("PyTorchJob", "PaddleJob", "JAXJob", "TrainJob", "TFJob", "XGBoostJob", "TrainingJob"),
    *("HyperPodPyTorchJob", "RayCluster", "RayJob"),
)
#: Kinds whose operator describes the job as one process in each pod (TF_CONFIG, NUM_PROCESSES, WORLD_SIZE).
_ONE_PROCESS_KINDS = frozenset(("JAXJob", "TFJob", "XGBoostJob"))
_TPU = re.compile(r"google\.com/tpu")
#: Kinds with trainers and parameter servers, both counted by the object.
_SERVER_KINDS = frozenset(("PaddleJob", "TrainingJob", "TFJob"))
#: Variables that must agree among the pods of a job, or that their operator sets.
_SHARED_VARIABLES = re.compile(
    r"(?:NCCL|GLOO|UCX|FI|OMPI|TORCH|RCCL|HOROVOD|PADDLE|PET)_|MASTER_|WORLD_SIZE$|RANK$|OMP_NUM_THREADS$"
)
#: Commands that do not end by themselves: a wait, a service.
_STAYS = re.compile(
    r"(?:.*/)?(?:sleep (?:inf|\d{4}|\d+[hd])|tail .*-[fF]|sshd|jupyter|tensorboard|vllm serve|ray start .*--block)"
    r"|.*(?:api_server|launch_server|tritonserver)"
)
_ENDLESS = re.compile(r"\b(?:while\s+(?:true|:|\[\s*1\s*\])|until\s+false)\s*(?:;|\n)\s*do\b")
#: The number of a pod within its role: Volcano, Indexed Jobs.
_POD_NUMBERS = ("VC_TASK_INDEX", "VK_TASK_INDEX", "JOB_COMPLETION_INDEX")
#: Pods of a role whose ranks are computed.
_MAX_PODS = 16
#: Objects of one file that are examined, and launches of one file that are read.
_MAX_OBJECTS = 500
_MAX_LAUNCHES = 100


#: Claims about a pod's requests that hold for each node of the launch.
_NODE_QUANTITIES = {"pod_gpus": "gpus_per_node", "pod_memory_mib": "memory_per_node_mib", "gpu_type": "gpu_type"}


class Manifest:
    """Reads one file of manifests."""

    def __init__(
        self,
        file: SourceFile,
        tree: Tree,
        roots: Sequence[Node],
        own_end: int | None = None,
        unsound: frozenset[int] = frozenset(),
    ) -> None:
        self.file = file
        #: Where documents begin that are read only in part, and by the start of each workload its id.
        self._unsound = unsound
        self._workloads: dict[int, str] = {}
        found = [item for root in roots for item in objects(root, file.text)]
        self.all_objects = truncate(found, _MAX_OBJECTS, "objects")
        end = len(file.text) if own_end is None else own_end
        self.objects = [item for item in self.all_objects if item.start < end]
        self.reading = Reading()
        self.commands: list[Command] = []
        self._tree = tree
        self._stating = NodeClaims(file, "kubernetes", strength=Strength.SCHEDULER)
        self._stating.places = places_of(file)
        maps = {
            item.text("metadata", "name"): data
            for item in self.all_objects
            if item.text("kind") == "ConfigMap" and (data := item.at("data")) is not None
        }
        self._containers = Containers(file, tree, maps)
        #: The roles of the current object that start ranks themselves.
        self._starting: set[str] = set()
        #: Those with a command that does not end by itself.
        self._staying: set[str] = set()
        #: Ids of objects: a template may write several at one location.
        self._ids: dict[str, int] = {}
        #: The current object, and where its claims begin.
        self._object, self._first = "", 0
        #: The program that is submitted to a cluster of Ray.
        self._program = ""
        self._runs_python = False
        #: What the pods of the current object hold and run, where that may name hosts.
        self._pieces: list[Piece] = []

    @property
    def places(self) -> Places:
        """Return the converter from offsets of the file to locations."""
        return self._stating.places

    def read(self) -> None:
        """Read every object; their claims are then in `reading`."""
        for root in self.objects:
            workload = self._join(workload_of(root))
            if workload is not None and len(self.reading.launches) >= _MAX_LAUNCHES:
                note_skipped(f"only the first {_MAX_LAUNCHES} launches were read")
                break
            if workload is not None:
                self._workload(workload)
            elif root.text("kind") in ASIDE_KINDS:
                self._aside(root)
        self._read_bound()
        self._state_admission()
        self.reading = replace(self.reading, claims=(*self._stating.claims, *self.reading.claims))

    def _read_bound(self) -> None:
        """Add the claims of objects in other files that constrain this file's pods: volume claims, quotas, network
        policies.
        """
        namespaces = {root.text("metadata", "namespace") for root in self.objects if root.start in self._workloads}
        own = {root.start for root in self.objects}
        for root in self.all_objects:
            bound = root.text("kind") in BINDING_KINDS and root.text("metadata", "namespace") in namespaces
            if bound and root.start not in own:
                self._aside(root)

    def _state_admission(self) -> None:
        """Add claims for the faults that make the API server reject each object with a known schema."""
        for root in self.objects:
            outcome = admission(root) if root.start not in self._unsound else None
            head = root.member("kind")
            if outcome is None or head is None:
                continue
            scope = Scope(launch=self._workloads.get(root.start, ""))
            self._stating.add("manifest_schema", Known(outcome.release), head, scope=scope)
            for refusal in outcome.refusals:
                known = Known((refusal.problem, refusal.remedy, ", ".join(refusal.accepted_by), refusal.refused_by))
                self._state_refusal(known, refusal.start, refusal.end, scope)
            for start, end in outcome.open_values[:1]:
                self._state_refusal(Unresolved("what fills in its placeholder"), start, end, scope)

    def _state_refusal(self, value: Value, start: int, end: int, scope: Scope) -> None:
        span = self.places.span(start, end)
        spelling = " ".join(self.file.text[start:end].split())[:120]
        self._stating.claims.append(
            Claim("manifest_refused", value, span, spelling, "kubernetes", scope, Strength.SCHEDULER)
        )

    def _join(self, workload: Workload | None) -> Workload | None:
        """Return the workload, completed by an object that it names."""
        if workload is None or workload.kind != "TrainJob":
            return workload
        name = workload.spec.text("runtimeRef", "name")
        kind = workload.spec.text("runtimeRef", "kind") or "ClusterTrainingRuntime"
        for item in self.all_objects:
            if name and item.text("kind") == kind and item.text("metadata", "name") == name:
                runtime = workload_of(item)
                return workload if runtime is None else with_runtime(workload, runtime)
        return workload

    def _id_of(self, head: Member) -> str:
        """Return `path:line` of an object, followed by `#2` for a second one at the same location."""
        span = self.places.span(head.key_start, head.key_end)
        name = f"{span.path}:{span.line}"
        self._ids[name] = self._ids.get(name, 0) + 1
        return name if self._ids[name] == 1 else f"{name}#{self._ids[name]}"

    def _aside(self, root: Node) -> None:
        """Add the claims that an object without pods makes about the pods of others."""
        head = root.member("kind")
        if head is not None:
            state_related_object(self._stating, root, head, self._id_of(head))

    def _workload(self, workload: Workload) -> None:
        self._containers.unexpanded.clear()
        self._starting.clear()
        self._staying.clear()
        self._pieces.clear()
        self._program = ""
        self._runs_python = False
        launches = self._launches(workload)
        hidden = not launches and self._runs_python
        counted = workload.is_training or launches or workload.counts_gang or hidden
        if counted or any(map(gpus_of, _containers(workload))):
            state_object(self._stating, workload, whole=workload.root.start not in self._unsound)
        if not counted:
            return
        scope = Scope(launch=self._id_of(workload.head))
        self._object, self._first = scope.launch, len(self._stating.claims)
        self._workloads[workload.root.start] = scope.launch
        self._state_object(workload, scope)
        state_paddle_job(self._stating, workload)
        for role in workload.roles:
            state_pods(self._stating, role, _role_scope(scope, role))
            state_mounts(self._stating, workload, role, _role_scope(scope, role))
            state_claims(self._stating, role, self.all_objects, _role_scope(scope, role))
            self._stating.claims.extend(self._variables(role, _role_scope(scope, role), _SHARED_VARIABLES))
        self._state_unexpanded(scope)
        found = [launch for _, _, reading in launches for launch in reading.launches]
        for role, container, reading in launches:
            for launch in reading.launches:
                within = _role_scope(scope, role)
                self._stating.add("workload_launch", Known(launch.id), workload.head, scope=within)
                self._state_launch(workload, role, launch.scope, reading, container)
            self._add(reading)
        if not found and workload.roles and (workload.kind in _IMAGE_LAUNCH_KINDS or hidden):
            self._state_image(workload, scope)

    def _state_unexpanded(self, scope: Scope) -> None:
        for name, place in self._containers.unexpanded:
            span = place.span
            text = self.file.text[place.start : place.end]
            value: Value = Known(name) if name else Unresolved(f"{text}, which may be a placeholder")
            self._stating.claims.append(
                Claim("unexpanded_variable", value, span, text, "kubernetes", scope, Strength.SCHEDULER)
            )

    def _add(self, reading: Reading) -> None:
        written = {item.path: item for item in (*self.reading.written, *reading.written)}
        self.reading = replace(self.reading.joined(reading), written=tuple(written.values()))

    def _state_object(self, workload: Workload, scope: Scope) -> None:
        node_claims = self._stating
        node_claims.add("workload", Known(f"{workload.group}/{workload.kind}"), workload.head, scope=scope)
        node_claims.add_member("namespace", workload.root.member("metadata", "namespace"), scope=scope)
        node_claims.add_member("workload_name", workload.root.member("metadata", "name"), scope=scope)
        state_labels(node_claims, workload.root, scope)
        state_queue(node_claims, workload.root, self.all_objects, scope)
        state_namespace(node_claims, workload.root, self.all_objects, scope)
        state_hosts(node_claims, workload, self.all_objects, scope)
        state_services(node_claims, workload, self.all_objects, scope)
        state_volume_claims(node_claims, workload, self.all_objects, scope)
        state_volcano_hosts(node_claims, workload, self._pieces, self.all_objects, scope)
        if workload.group == "batch.volcano.sh":
            state_volcano_policies(node_claims, workload, scope, starting=self._starting, staying=self._staying)
        node_claims.add_member("gang_min", workload.gang_min, as_int, scope=scope)
        if workload.gang is not None:
            node_claims.add("gang", Known(f"{workload.kind}"), workload.gang, scope=scope)
        if workload.gang_min is not None and workload.gang is None:
            node_claims.add("gang", Known("minAvailable"), workload.gang_min, scope=scope)
        if workload.order is not None and workload.first is not None:
            node_claims.add("pods_started_first", workload.first, workload.order, scope=scope)
        spec = workload.spec
        if workload.kind in RAY_KINDS:
            cluster = workload.spec.at("rayClusterSpec") or workload.spec
            node_claims.add_member("ray_autoscales", cluster.member("enableInTreeAutoscaling"), scope=scope)
        if workload.kind == "MPIJob":
            node_claims.add_member("slots_per_worker", workload.processes, as_int, scope=scope)
            own = spec.member("runLauncherAsWorker")
            if own is not None and own.node.value is not False:
                node_claims.add_member("launcher_trains", own, scope=scope)
        if workload.kind == "Job" and workload.group == "batch":
            mode = spec.member("completionMode")
            value = value_of(mode.node) if mode is not None else Known("NonIndexed")
            node_claims.add("completion_mode", value, mode or workload.head, scope=scope)
        for name in ("backoffLimit", "maxRetry"):
            node_claims.add_member(
                "backoff_limit", spec.member(name) or spec.member("runPolicy", name), as_int, scope=scope
            )

    def _launches(self, workload: Workload) -> list[tuple[Role, Node, Reading]]:
        """Return the launch lines of every role, without those that a second role repeats."""
        found: list[tuple[Role, Node, Reading]] = []
        seen: set[tuple[object, ...]] = set()
        ids: dict[str, int] = {}
        place = self._containers.place(workload.head.node)
        for role in workload.roles:
            if role.pod is None:
                continue
            given = injected_variables(workload, role, place)
            for container in containers_of(role.pod):
                environment = self._containers.environment(container, given)
                found_script = self._containers.script(role.pod, container, environment)
                if found_script is None:
                    continue
                script, tree = found_script
                self.commands.extend(script.commands)
                reading = read_commands(script.commands, {}, tree, batch=False, ids=ids)
                if is_volcano_job(workload):
                    mounted = self._containers.mounted(role.pod, container)
                    programs = [item.target for item in (*script.references, *reading.references)]
                    programs = [path for path in programs if path.endswith(".py")]
                    self._pieces += pieces_of(self.file, self._tree, role, mounted, script.commands, programs)
                ranks = self._ranks_of_pods(workload, role, container, given, reading)
                reading = replace(
                    reading,
                    claims=(*(claim for claim in reading.claims if not _is_injected(claim, given)), *ranks),
                    references=(*script.references, *reading.references),
                    written=script.written,
                )
                if reading.launches:
                    self._starting.add(role.name)
                if any(map(_stays, script.commands)) or _waits_in_loop(container):
                    self._staying.add(role.name)
                key = tuple(tuple(word.value for word in command.words) for command in script.commands)
                if reading.launches and key not in seen:
                    seen.add(key)
                    found.append((role, container, reading))
                elif not reading.launches and (workload.is_training or _is_accelerated_set(workload)):
                    # A program without a launcher is not a launch, but its script still belongs to the job.
                    self._add(Reading(references=reading.references, written=reading.written))
                    if _is_accelerated_set(workload):
                        self._program = self._program or next(_programs(script.commands), "")
                        self._runs_python |= any(_is_program(command) for command in script.commands)
        found.extend(self._entrypoint(workload))
        return found

    def _ranks_of_pods(
        self, workload: Workload, role: Role, container: Node, given: Mapping[str, Slot], reading: Reading
    ) -> list[Claim]:
        """Return the node ranks of a launch line that computes them from the number of the role's pod."""
        names, count = [name for name in _POD_NUMBERS if name in given], known_number(role.replicas)
        ranks = [claim for claim in reading.claims if claim.quantity == "node_rank" and not claim.alternatives]
        if not names or count is None or not 0 < count <= _MAX_PODS or len(ranks) != 1 or role.pod is None:
            return []
        if workload.kind == "JobSet":
            # It has Jobs of its own, each of which counts from 0.
            return []
        found: list[int] = []
        for number in range(int(count)):
            numbered = {name: replace(given[name], text=literal(str(number), given[name].place)) for name in names}
            environment = self._containers.environment(container, {**given, **numbered})
            script = self._containers.script(role.pod, container, environment)
            again = read_commands(script[0].commands, {}, script[1], batch=False) if script is not None else Reading()
            found += [
                int(rank)
                for claim in again.claims
                if claim.quantity == "node_rank" and claim.span == ranks[0].span
                if (rank := known_number(claim.value)) is not None
            ]
        if len(found) != count:
            return []
        return [replace(ranks[0], quantity="ranks_of_pods", value=Known(tuple(found)))]

    def _entrypoint(self, workload: Workload) -> Iterator[tuple[Role, Node, Reading]]:
        """Yield the command that a RayJob submits to its cluster."""
        head = next((role for role in workload.roles if role.name in ("head", "trainer")), None)
        if workload.entrypoint is None or head is None:
            return
        given = injected_variables(workload, head, self._containers.place(workload.head.node))
        script = self._containers.line(workload.entrypoint.node, given)
        self.commands.extend(script.commands)
        reading = read_commands(script.commands, {}, self._tree, batch=False)
        reading = replace(reading, references=(*script.references, *reading.references))
        if reading.launches:
            yield head, workload.entrypoint.node, reading
        else:
            self._program = next(_programs(script.commands), "")
            self._add(Reading(references=reading.references))

    def _state_launch(
        self, workload: Workload, role: Role, scope: Scope, reading: Reading, container: Node | None = None
    ) -> None:
        """Add claims for the nodes, GPUs and time of a launch line from its pods."""
        nodes = self._nodes(workload, role, reading, scope)
        if nodes is not None:
            self._state_nodes(workload, role, nodes, scope)
        holder = role
        if workload.kind == "MPIJob" and not role.trains:
            holder = next((other for other in workload.roles if other.trains), role)
        if workload.kind in _SERVER_KINDS and _has_servers(workload):
            self._state_servers(workload, scope)
        self._state_gpus(holder, scope, container if holder is role else None)
        self._state_limit(workload, scope)

    def _nodes(self, workload: Workload, role: Role, reading: Reading, scope: Scope) -> Value | None:
        if workload.kind in _SINGLE_JOB_KINDS and not _has_servers(workload):
            if workload.min_nodes is not None or workload.max_nodes is not None:
                return None
            return pods(workload)
        if workload.nodes is not None and role.trains:
            return pods(workload)
        stated = [c for c in reading.claims if c.quantity == "nodes" and c.scope == scope]
        # Several pods that each train alone are not a group: only claims about several nodes are compared.
        if not stated or all(c.strength is Strength.DEFAULT or c.alternatives == (1,) for c in stated):
            return None
        if workload.kind in RAY_KINDS or workload.kind in ("Deployment", "Pod"):
            return None
        started = [role.replicas for role in workload.roles if role.name in self._starting]
        return lift(sum_of, *started)

    def _state_nodes(self, workload: Workload, role: Role, nodes: Value, scope: Scope) -> None:
        """Add claims for the number of nodes; with several roles, all of their counts are quoted."""
        counted = [other.member for other in workload.roles if other.trains and other.member is not None]
        # The launcher of an MPIJob is no node of the ranks.
        own = role.member if role.trains or not counted else counted[0]
        claim = self._stating.add("nodes", nodes, workload.nodes or own or workload.head, scope=scope)
        if workload.nodes is None and len(counted) > 1:
            spelling = " + ".join(self._stating.spelling(member) for member in counted[:4])
            self._stating.claims[-1] = replace(claim, spelling=spelling)

    def _state_servers(self, workload: Workload, scope: Scope) -> None:
        """Add claims about how many trainers and servers there are; the operator passes both lists to every pod."""
        for quantity, chosen in (
            ("ps_workers", [role for role in workload.roles if role.trains]),
            ("ps_servers", [role for role in workload.roles if role.name.lower() in ("ps", "pserver")]),
        ):
            if chosen:
                count = lift(sum_of, *(role.replicas for role in chosen))
                self._stating.add(quantity, count, chosen[0].member or workload.head, scope=scope)

    def _state_gpus(self, role: Role, scope: Scope, container: Node | None) -> None:
        """Add claims for the devices of the role's pods as those of each node of the launch.

        A launch can use only the GPUs of its own container, not all of the pod's.
        """
        of_role = Scope(launch=self._object, role=role.name)
        own = [claim for claim in self._stating.claims[self._first :] if claim.scope == of_role]
        for claim in own:
            quantity = _NODE_QUANTITIES.get(claim.quantity)
            if quantity == "gpus_per_node" and container is not None:
                gpus = gpus_of(container)
                if gpus is not None:
                    self._stating.add("gpus_per_node", *gpus, scope=scope)
            elif quantity is not None:
                self._stating.claims.append(replace(claim, quantity=quantity, scope=scope))

    def _state_limit(self, workload: Workload, scope: Scope) -> None:
        spec = workload.spec
        limit = spec.member("activeDeadlineSeconds") or spec.member("runPolicy", "activeDeadlineSeconds")
        self._stating.add_member("time_limit_s", limit, as_int, scope=scope)

    def _state_image(self, workload: Workload, scope: Scope) -> None:
        """Add claims for the launch of ranks that the image itself starts, at the object's own line."""
        role = next((role for role in workload.roles if role.trains), workload.roles[0])
        head = workload.head
        launcher = "ray" if workload.kind in RAY_KINDS else "image"
        span = self.places.span(head.key_start, head.node.end)
        launch = Launch(scope.launch, launcher, span, program=self._program)
        self._state_launch(workload, role, scope, Reading())
        if workload.processes is not None and workload.kind != "MPIJob":
            known = lift(_whole_number, value_of(workload.processes.node))
            self._stating.add("processes_per_node", known, workload.processes, scope=scope)
        elif workload.kind in _ONE_PROCESS_KINDS and not _has_servers(workload):
            self._stating.add("processes_per_node", Known(1), head, scope=scope, strength=Strength.DEFAULT)
        if workload.kind == "JobSet" or _is_tpu_slice(workload):
            self._state_nodes(workload, role, pods(workload), scope)
            if _holds(role, _TPU):
                # JAX starts one process on each host, which has all of its chips.
                self._stating.add("processes_per_node", Known(1), head, scope=scope, strength=Strength.DEFAULT)
        if workload.kind in RAY_KINDS:
            count = lift(sum_of, *(item.replicas for item in workload.roles))
            self._stating.add("nodes", count, role.member or head, scope=scope)
        self._stating.claims.extend(self._variables(role, scope))
        self.reading = replace(self.reading, launches=(*self.reading.launches, launch))

    def _variables(self, role: Role, scope: Scope, wanted: re.Pattern[str] | None = None) -> Iterator[Claim]:
        """Yield the variables written in the manifest, as the image's ranks will see them."""
        if role.pod is None:
            return
        for container in containers_of(role.pod):
            for name, slot in self._containers.environment(container, {}).items():
                if wanted is not None and not wanted.match(name):
                    continue
                spelling = f"{name}={slot.spelling()}"
                place = slot.place.span
                yield Claim(f"env.{name}", slot.value(), place, spelling, "environment", scope, Strength.ENVIRONMENT)


def _whole_number(item: object) -> int:
    if isinstance(item, str) and not item.isdecimal():
        raise ValueError(f"{item} starts one process per device, and the number of devices is unknown")
    return int(str(item))


def _has_servers(workload: Workload) -> bool:
    return any(not role.trains and role.name != "Launcher" for role in workload.roles)


def _is_accelerated_set(workload: Workload) -> bool:
    """Return whether the workload is a JobSet of several pods with accelerators or a TPU slice: a Python program in
    them forms the group by itself.
    """
    if _is_tpu_slice(workload):
        return True
    trained = [role for role in workload.roles if role.trains and (_holds(role, GPU_RESOURCE) or _holds(role, _TPU))]
    return workload.kind == "JobSet" and bool(trained) and pods(workload) != Known(1)


def _is_tpu_slice(workload: Workload) -> bool:
    """Return whether the workload is an Indexed Job whose pods are the hosts of a TPU slice. A plain Job with TPUs is
    one host.
    """
    indexed = workload.kind == "Job" and workload.spec.text("completionMode") == "Indexed"
    return indexed and any(_holds(role, _TPU) for role in workload.roles)


def _holds(role: Role, resource: re.Pattern[str]) -> bool:
    """Return whether a container of the role's pods has a limit for the resource."""
    if role.pod is None:
        return False
    limits = (container.members_at("resources", "limits") for container in containers_of(role.pod))
    return any(resource.fullmatch(member.key) for members in limits for member in members)


def _containers(workload: Workload) -> Iterator[Node]:
    for role in workload.roles:
        yield from containers_of(role.pod) if role.pod is not None else ()


def _role_scope(scope: Scope, role: Role) -> Scope:
    return replace(scope, role=role.name)


def _is_injected(claim: Claim, given: Mapping[str, Slot]) -> bool:
    """Return whether the claim only repeats a variable that the operator sets and the manifest does not contain."""
    slot = given.get(claim.quantity.removeprefix("env.")) if claim.quantity.startswith("env.") else None
    return slot is not None and claim.span == slot.place.span


def _stays(command: Command) -> bool:
    return _STAYS.match(" ".join(text_of(word) or "" for word in command.words)) is not None


def _waits_in_loop(container: Node) -> bool:
    """Return whether a container's command has a loop without an end, such as `while true; do sleep 60; done`."""
    words = [*container.items_at("command"), *container.items_at("args")]
    return any(_ENDLESS.search(str(word.value)) for word in words if word.kind is Kind.SCALAR)


def _is_program(command: Command) -> bool:
    program = python_program(command.words) if is_python(command.words) else None
    return program is not None and text_of(program.words[0]) not in ("pip", "venv")


def _programs(commands: Sequence[Command]) -> Iterator[str]:
    """Yield the scripts that Python runs, as they are named."""
    for command in commands:
        program = python_program(command.words) if is_python(command.words) else None
        if program is not None and program.words and not program.module:
            name = text_of(program.words[0])
            if name:
                yield name


if TYPE_CHECKING:
    from preflight.sources.kubernetes.inputs import PreparedManifest


#: Objects of a queue, which may be wrong without a job beside them.
_QUEUE_KINDS = frozenset(
    ("PodGroup", "ClusterQueue", "LocalQueue", "ResourceFlavor", "Cohort", "WorkloadPriorityClass")
)
_KINDS = "|".join(sorted(TRAINING_KINDS | GENERIC_KINDS | WRAPPER_KINDS | _QUEUE_KINDS))
_YAML_KIND = re.compile(
    rf"^(?: {{0,4}}- +| {{1,4}})?kind:[ \t]*[\"']?(?:{_KINDS})[\"']?[ \t]*(?:#|\r?$)", re.MULTILINE | re.IGNORECASE
)
_JSON_KIND = re.compile(rf'"kind"[ \t]*:[ \t]*"(?:{_KINDS})"')
#: A custom resource of another kind with a pod template in which a launcher is named.
_OTHER_KIND = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^apiVersion:[ \t]*[\"']?[\w-]+(?:\.[\w-]+)+/",
        r"^[ \t]+(?:- )?template:",
        r"^[ \t]+(?:- )?containers:",
        r"(?:torchrun|(?:torch|paddle)\.distributed|fleetrun|deepspeed|accelerate|mpirun|horovodrun)\b",
    )
)
_DEFINITION = re.compile(r"^kind:[ \t]*CustomResourceDefinition\b", re.MULTILINE)
_OVERLAY = re.compile(r"^(?:resources|bases|components):", re.MULTILINE)
#: The beginning of a manifest that has no file name, such as the output of `helm template`.
_BARE = re.compile(r"\s*(?:#[^\n]*\n\s*)*(?:---[^\n]*\s+(?:#[^\n]*\n\s*)*)?(?:apiVersion|kind|metadata|spec):")
_SUFFIXES = (".yaml", ".yml", ".json", ".yaml.tpl", ".yml.tpl", ".tmpl", ".j2", ".jinja2", *TEMPLATE_SUFFIXES)
_MAX_NOTES = 20


class KubernetesSource:
    """Reads one file of manifests."""

    name = "kubernetes"
    roles = ("manifest",)

    def recognises(self, file: SourceFile) -> bool:
        """Return whether the file defines a workload that starts pods, a scheduling object such as a PodGroup or queue,
        or a kustomization.
        """
        path = file.path.lower()
        if is_kustomization(file.path):
            return _OVERLAY.search(file.text) is not None
        if "apiVersion" not in file.text:
            return False
        if "." not in path.rpartition("/")[2]:
            # Standard input has no name that shows its kind.
            return _BARE.match(file.text) is not None and _YAML_KIND.search(file.text) is not None
        if not path.endswith(_SUFFIXES):
            return False
        if path.endswith(".json"):
            return _JSON_KIND.search(file.text) is not None
        is_known = _YAML_KIND.search(file.text) or all(pattern.search(file.text) for pattern in _OTHER_KIND)
        return bool(is_known) and _DEFINITION.search(file.text) is None

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Read the requests of the file's jobs, and the claims of their containers' commands."""
        from preflight.sources.kubernetes.inputs import prepare_manifest

        ready = prepare_manifest(file, tree)
        roots = [document.root for document in ready.documents if document.root is not None]
        unsound = frozenset(item.root.start for item in ready.documents if item.root is not None and item.faults)
        manifest = Manifest(ready.file, tree, roots, ready.own_end, unsound)
        manifest.read()
        found: list[Suppression] = list(suppressions(file))
        for root in manifest.objects:
            found.extend(suppressions_of(manifest.places, root))
        reading = replace(
            manifest.reading,
            notes=(*ready.notes, *_faults(file, ready, manifest), *manifest.reading.notes),
            suppressions=tuple(found),
            references=(*manifest.reading.references, *ready.references),
        )
        secrets = secrets_of(manifest.commands)
        if len(ready.files) > 1:
            secrets |= secrets_of_files(ready.files)
        return without_secrets(reading, secrets)


def _faults(file: SourceFile, ready: PreparedManifest, manifest: Manifest) -> Iterator[Note]:
    number = 0
    is_template = "{{" in file.text and not ready.rendered
    for document in ready.documents:
        for fault in document.faults:
            if fault.start >= ready.own_end:
                continue
            number += 1
            if number > _MAX_NOTES:
                return
            span = manifest.places.span(fault.start, fault.end)
            kind = NoteKind.TEMPLATE if fault.template or is_template else NoteKind.MALFORMED
            yield Note(kind, f"{file.path} line {span.line}: {fault.message}", span)


KEY = "preflight/ignore"
#: Lines of one object that a suppression can cover.
_MAX_LINES = 5000
_ID = re.compile(r"[A-Za-z]{3}[0-9]{3}")


def suppressions_of(places: Places, root: Node) -> Iterator[Suppression]:
    """Yield the suppressions of one object; each covers every line of the object it annotates.

    The text begins with ids or names, joined by commas; what follows is the reason.
    """
    for holder, carried in _annotated_objects(root):
        member = carried.member(KEY)
        if member is None or not isinstance(member.node.value, str):
            continue
        names, reason = _parse(member.node.value)
        span = places.span(member.key_start, member.node.end)
        around = places.span(holder.start, max(holder.start, holder.end - 1))
        lines = range(around.line, min(around.end_line, around.line + _MAX_LINES) + 1)
        for line in (span.line, *(each for each in lines if each != span.line)):
            yield Suppression(around.path, line, names, reason, span)


def _annotated_objects(node: Node) -> Iterator[tuple[Node, Node]]:
    """Yield every object below `node` that carries annotations."""
    waiting = [node]
    while waiting:
        here = waiting.pop()
        if here.kind is Kind.OBJECT:
            annotations = here.at("metadata", "annotations")
            if annotations is not None and annotations.kind is Kind.OBJECT:
                yield here, annotations
        waiting.extend(member.node for member in here.members)
        waiting.extend(here.items)


def _parse(text: str) -> tuple[tuple[str, ...], str]:
    words = text.split()
    names: list[str] = []
    goes_on = False
    while words:
        # `KUB003, KUB004 reason`: after a comma, or before another id, the list of names continues.
        found = [part for part in words[0].split(",") if part]
        if names and not goes_on and not all(_ID.fullmatch(part) for part in found):
            break
        goes_on = words.pop(0).endswith(",")
        names.extend(found)
    return tuple(dict.fromkeys(names)), " ".join(words)

"""From the objects of one file to claims: each job object with its roles, its launches, and what belongs to it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from preflight.job import Claim, Known, Launch, Places, Scope, Strength, Unresolved, Value, as_int, lift
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Command, Reading, SourceFile, Tree
from preflight.sources.kubernetes.asides import state_aside
from preflight.sources.kubernetes.commands import Containers
from preflight.sources.kubernetes.kinds import ASIDE_KINDS, RAY_KINDS, Role, Workload, objects, workload_of
from preflight.sources.kubernetes.operators import injected, pods
from preflight.sources.kubernetes.pods import containers_of, gpus_of, state_labels, state_pods
from preflight.sources.launchers.reading import read_commands
from preflight.sources.shell.state import Slot
from preflight.sources.structured import Node, NodeStating, value_of

#: Kinds whose pods together are the nodes of one job, whatever their containers run.
_ONE_GROUP = frozenset(("PyTorchJob", "PaddleJob", "MPIJob", "TrainJob", "JAXJob", "LeaderWorkerSet"))
#: Kinds whose pods start ranks even where only the image knows how.
_IMAGE_STARTS = frozenset(("PyTorchJob", "PaddleJob", "JAXJob", "TrainJob"))
#: Variables that the pods of a job must agree about, or that their operator sets.
_SHARED = lazy_pattern(
    r"(?:NCCL|GLOO|UCX|FI|OMPI|TORCH|RCCL|HOROVOD|PADDLE|PET)_|MASTER_|WORLD_SIZE$|RANK$|OMP_NUM_THREADS$"
)
#: Objects of one file that are looked at, and launches of one file that are read.
_MOST_OBJECTS = 500
_MOST_LAUNCHES = 100


#: What a pod asks for is what a node of the launch has.
_OF_A_NODE = {"pod_gpus": "gpus_per_node", "pod_memory_mib": "memory_per_node_mib", "gpu_type": "gpu_type"}


class Manifest:
    """One file of manifests while it is read."""

    def __init__(self, file: SourceFile, tree: Tree, roots: Sequence[Node]) -> None:
        self.file = file
        self.objects = [item for root in roots for item in objects(root)][:_MOST_OBJECTS]
        self.reading = Reading()
        self.commands: list[Command] = []
        self._tree = tree
        self._stating = NodeStating(file, "kubernetes", strength=Strength.SCHEDULER)
        maps = {
            item.text("metadata", "name"): data
            for item in self.objects
            if item.text("kind") == "ConfigMap" and (data := item.at("data")) is not None
        }
        self._containers = Containers(file, tree, maps)
        #: The roles of the object at hand that start ranks themselves.
        self._starting: set[str] = set()
        #: The object at hand, and where its claims begin.
        self._object, self._first = "", 0

    @property
    def places(self) -> Places:
        """Where the characters of the file stand."""
        return self._stating.places

    def read(self) -> None:
        """Read every object; what they claim is then in `reading`."""
        for root in self.objects:
            workload = workload_of(root)
            if workload is not None and len(self.reading.launches) < _MOST_LAUNCHES:
                self._workload(workload)
            elif root.text("kind") in ASIDE_KINDS:
                self._aside(root)
        self.reading = replace(self.reading, claims=(*self._stating.claims, *self.reading.claims))

    def _id_of(self, workload: Workload) -> str:
        return f"{self.file.path}:{self.places.line(workload.head.key_start)}"

    def _aside(self, root: Node) -> None:
        """What objects without pods say about the pods of others."""
        head = root.member("kind")
        if head is not None:
            state_aside(self._stating, root, head, f"{self.file.path}:{self.places.line(head.key_start)}")

    def _workload(self, workload: Workload) -> None:
        self._containers.unexpanded.clear()
        self._starting.clear()
        launches = self._launches(workload)
        if not workload.is_training and not launches and not workload.counts_gang:
            return
        scope = Scope(launch=self._id_of(workload))
        self._object, self._first = scope.launch, len(self._stating.claims)
        self._state_object(workload, scope)
        for role in workload.roles:
            state_pods(self._stating, role, _in_role(scope, role))
            self._stating.claims.extend(self._variables(role, _in_role(scope, role), _SHARED))
        self._state_unexpanded(scope)
        found = [launch for _, _, reading in launches for launch in reading.launches]
        for role, container, reading in launches:
            for launch in reading.launches:
                within = _in_role(scope, role)
                self._stating.say("workload_launch", Known(launch.id), workload.head, scope=within)
                self._state_launch(workload, role, launch.scope, reading, container)
            self._add(reading)
        if not found and workload.kind in _IMAGE_STARTS and workload.roles:
            self._state_image(workload, scope)

    def _state_unexpanded(self, scope: Scope) -> None:
        for name, place in self._containers.unexpanded:
            span = place.span
            text = self.file.text[place.start : place.end]
            value: Value = Known(name) if name else Unresolved(f"{text}, which something may fill in")
            self._stating.claims.append(
                Claim("unexpanded_variable", value, span, text, "kubernetes", scope, Strength.SCHEDULER)
            )

    def _add(self, reading: Reading) -> None:
        mine = self.reading
        self.reading = replace(
            mine,
            claims=(*mine.claims, *reading.claims),
            launches=(*mine.launches, *reading.launches),
            references=(*mine.references, *reading.references),
            notes=(*mine.notes, *reading.notes),
        )

    def _state_object(self, workload: Workload, scope: Scope) -> None:
        stating = self._stating
        stating.say("workload", Known(f"{workload.group}/{workload.kind}"), workload.head, scope=scope)
        stating.given("namespace", workload.root.member("metadata", "namespace"), scope=scope)
        stating.given("workload_name", workload.root.member("metadata", "name"), scope=scope)
        state_labels(stating, workload.root, scope)
        stating.given("gang_min", workload.gang_min, as_int, scope=scope)
        if workload.gang is not None:
            stating.say("gang", Known(f"{workload.kind}"), workload.gang, scope=scope)
        if workload.gang_min is not None and workload.gang is None:
            stating.say("gang", Known("minAvailable"), workload.gang_min, scope=scope)
        if workload.order is not None and workload.first is not None:
            stating.say("pods_started_first", workload.first, workload.order, scope=scope)
        spec = workload.spec
        if workload.kind == "MPIJob":
            stating.given("slots_per_worker", workload.processes, as_int, scope=scope)
            own = spec.member("runLauncherAsWorker")
            if own is not None and own.node.value is not False:
                stating.given("launcher_trains", own, scope=scope)
        if workload.kind == "Job" and workload.group == "batch":
            mode = spec.member("completionMode")
            value = value_of(mode.node) if mode is not None else Known("NonIndexed")
            stating.say("completion_mode", value, mode or workload.head, scope=scope)
        for name in ("backoffLimit", "maxRetry"):
            stating.given("backoff_limit", spec.member(name) or spec.member("runPolicy", name), as_int, scope=scope)

    def _launches(self, workload: Workload) -> list[tuple[Role, Node, Reading]]:
        """The launch lines of every role, equal ones of a second role left out."""
        found: list[tuple[Role, Node, Reading]] = []
        seen: set[tuple[object, ...]] = set()
        place = self._containers.place(workload.head.node)
        for role in workload.roles:
            if role.pod is None:
                continue
            given = injected(workload, role, place)
            for container in containers_of(role.pod):
                environment = self._containers.environment(container, given)
                script = self._containers.script(container, environment)
                if script is None:
                    continue
                self.commands.extend(script.commands)
                reading = read_commands(script.commands, {}, self._tree, batch=False)
                reading = replace(
                    reading,
                    claims=tuple(claim for claim in reading.claims if not _is_injected(claim, given)),
                    references=(*script.references, *reading.references),
                )
                if reading.launches:
                    self._starting.add(role.name)
                key = tuple(tuple(word.value for word in command.words) for command in script.commands)
                if reading.launches and key not in seen:
                    seen.add(key)
                    found.append((role, container, reading))
                elif workload.is_training and not reading.launches:
                    # A program with no launcher around it is no launch, and its script still belongs to the job.
                    self._add(Reading(references=reading.references))
        found.extend(self._entrypoint(workload))
        return found

    def _entrypoint(self, workload: Workload) -> Iterator[tuple[Role, Node, Reading]]:
        """What a RayJob submits to its cluster."""
        head = next((role for role in workload.roles if role.name == "head"), None)
        if workload.entrypoint is None or head is None:
            return
        script = self._containers.line(workload.entrypoint.node, {})
        self.commands.extend(script.commands)
        reading = read_commands(script.commands, {}, self._tree, batch=False)
        reading = replace(reading, references=(*script.references, *reading.references))
        if reading.launches:
            yield head, workload.entrypoint.node, reading
        else:
            self._add(Reading(references=reading.references))

    def _state_launch(
        self, workload: Workload, role: Role, scope: Scope, reading: Reading, container: Node | None = None
    ) -> None:
        """What the pods give to a launch line: nodes, GPUs, time."""
        nodes = self._nodes(workload, role, reading, scope)
        if nodes is not None:
            self._state_nodes(workload, role, nodes, scope)
        holder = role
        if workload.kind == "MPIJob" and not role.trains:
            holder = next((other for other in workload.roles if other.trains), role)
        self._state_gpus(holder, scope, container if holder is role else None)
        self._state_limit(workload, scope)

    def _nodes(self, workload: Workload, role: Role, reading: Reading, scope: Scope) -> Value | None:
        if workload.kind in _ONE_GROUP and not _has_servers(workload):
            if workload.min_nodes is not None or workload.max_nodes is not None:
                return None
            return pods(workload)
        told = [c for c in reading.claims if c.quantity == "nodes" and c.scope == scope]
        # Several pods that each train alone are no group: only what was told of several nodes is compared.
        if not told or all(c.strength is Strength.DEFAULT or c.alternatives == (1,) for c in told):
            return None
        if workload.kind in RAY_KINDS or workload.kind in ("Deployment", "Pod"):
            return None
        started = [role.replicas for role in workload.roles if role.name in self._starting]
        return lift(lambda *each: sum(int(str(item)) for item in each), *started)

    def _state_nodes(self, workload: Workload, role: Role, nodes: Value, scope: Scope) -> None:
        """How many nodes there are; of several roles all of their counts are quoted."""
        counted = [other.member for other in workload.roles if other.trains and other.member is not None]
        claim = self._stating.say("nodes", nodes, workload.nodes or role.member or workload.head, scope=scope)
        if workload.nodes is None and len(counted) > 1:
            spelling = " + ".join(self._stating.spelling(member) for member in counted[:4])
            self._stating.claims[-1] = replace(claim, spelling=spelling)

    def _state_gpus(self, role: Role, scope: Scope, container: Node | None) -> None:
        """What the pods of the role were said to have, as what each node of the launch has.

        Of a pod's GPUs a launch can use those of its own container.
        """
        of_role = Scope(launch=self._object, role=role.name)
        own = [claim for claim in self._stating.claims[self._first :] if claim.scope == of_role]
        for claim in own:
            quantity = _OF_A_NODE.get(claim.quantity)
            if quantity == "gpus_per_node" and container is not None:
                there = gpus_of(container)
                if there is not None:
                    self._stating.say("gpus_per_node", *there, scope=scope)
            elif quantity is not None:
                self._stating.claims.append(replace(claim, quantity=quantity, scope=scope))

    def _state_limit(self, workload: Workload, scope: Scope) -> None:
        spec = workload.spec
        limit = spec.member("activeDeadlineSeconds") or spec.member("runPolicy", "activeDeadlineSeconds")
        self._stating.given("time_limit_s", limit, as_int, scope=scope)

    def _state_image(self, workload: Workload, scope: Scope) -> None:
        """Ranks that the image starts by itself: a launch at the object's own line."""
        role = next((role for role in workload.roles if role.trains), workload.roles[0])
        head = workload.head
        launch = Launch(scope.launch, "image", self.places.span(head.key_start, head.node.end))
        self._state_launch(workload, role, scope, Reading())
        if workload.processes is not None and workload.kind != "MPIJob":
            value = value_of(workload.processes.node)
            known = lift(_whole, value)
            self._stating.say("processes_per_node", known, workload.processes, scope=scope)
        self._stating.claims.extend(self._variables(role, scope))
        self.reading = replace(self.reading, launches=(*self.reading.launches, launch))

    def _variables(self, role: Role, scope: Scope, wanted: re.Pattern[str] | None = None) -> Iterator[Claim]:
        """The variables somebody wrote into the manifest, as the image's ranks will see them."""
        if role.pod is None:
            return
        for container in containers_of(role.pod):
            for name, slot in self._containers.environment(container, {}).items():
                if wanted is not None and not wanted.match(name):
                    continue
                spelling = f"{name}={slot.spelling()}"
                yield Claim(
                    f"env.{name}", slot.value(), slot.place.span, spelling, "environment", scope, Strength.ENVIRONMENT
                )


def _whole(item: object) -> int:
    if isinstance(item, str) and not item.isdigit():
        raise ValueError(f"{item}: as many processes as the node has devices")
    return int(str(item))


def _has_servers(workload: Workload) -> bool:
    return any(not role.trains and role.name != "Launcher" for role in workload.roles)


def _in_role(scope: Scope, role: Role) -> Scope:
    return replace(scope, role=role.name)


def _is_injected(claim: Claim, given: Mapping[str, Slot]) -> bool:
    """Whether this only repeats a variable that nobody wrote, but the operator will set."""
    slot = given.get(claim.quantity.removeprefix("env.")) if claim.quantity.startswith("env.") else None
    return slot is not None and claim.span == slot.place.span

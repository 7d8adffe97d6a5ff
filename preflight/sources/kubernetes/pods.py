"""The pods of a role: what they request (devices, memory, volumes, network, placement), and their commands.

Read from resource.k8s.io v1 to v1alpha3 (ResourceClaimTemplate) and from resource.nvidia.com/v1beta1 (ComputeDomain,
DRA driver 25.8).
"""

from __future__ import annotations

import functools
import hashlib
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from preflight._util import toml
from preflight._util.budget import spend, truncate
from preflight.model.job import WHOLE_JOB, Known, Note, Plain, Scope, Unresolved, Value, as_int, lift, one_of
from preflight.sources.base import Script, SourceFile, Tree, UnknownKind, UnknownOrigin, WrittenFile
from preflight.sources.configs.packages import package_of_image
from preflight.sources.formats.structured import (
    ComposedFile,
    Kind,
    Member,
    Node,
    NodeClaims,
    code_of,
    file_text_of,
    value_of,
)
from preflight.sources.kubernetes.objects import Role
from preflight.sources.shell.evaluator import evaluate_words
from preflight.sources.shell.inner_shells import SHELLS
from preflight.sources.shell.shell_document import Document, FileText, Hole, Lit, Piece, Place, Text
from preflight.sources.shell.state import Kind as SlotKind
from preflight.sources.shell.state import Slot
from preflight.sources.shell.words import hole, origin_of

_Parse: TypeAlias = Callable[[Value], Value]

#: Device plugins' names for whole accelerators that hold one rank each.
GPU_RESOURCE = re.compile(
    r"(?:nvidia|amd|aliyun)\.com/gpu|nvidia\.com/mig-[\w.-]+|habana\.ai/gaudi|huawei\.com/Ascend\w+"
)
_RDMA = re.compile(
    r"(?:rdma|mellanox\.com|openshift\.io|nvidia\.com)/.*(?:hca|rdma|ib|roce|sriov|mlnx|vf).*|vpc\.amazonaws\.com/efa"
)
#: Labels of nodes that name their GPU.
_GPU_PRODUCT = (
    *("cloud.google.com/gke-accelerator", "nvidia.com/gpu.product", "k8s.amazonaws.com/accelerator"),
    "gpu.nvidia.com/class",
)
_MESH = ("sidecar.istio.io/inject", "linkerd.io/inject", "kuma.io/sidecar-injection", "istio.io/dataplane-mode")
_GANG_LABELS = toml.words(__file__, "names.toml", "gang-labels")
#: Schedulers that place a job's pods together: Volcano, YuniKorn, KAI, NVIDIA Run:ai, coscheduling profiles.
_GANG_SCHEDULER = re.compile(
    r"volcano|yunikorn|kai-scheduler|runai-scheduler|koord-scheduler|.*(?:gang|cosched|kube-batch|plugins).*"
)


def state_pods(node_claims: NodeClaims, role: Role, scope: Scope) -> None:
    """Add claims for everything that the pods of one role request, in `scope`."""
    _replicas(node_claims, role, scope)
    state_labels(node_claims, role.template, scope)
    pod = role.pod
    if pod is None:
        return
    scheduler = pod.member("schedulerName")
    if scheduler is not None:
        claim = node_claims.add("pod_scheduler", value_of(scheduler.node), scheduler, scope=scope)
        if any(isinstance(item, str) and _GANG_SCHEDULER.fullmatch(item) for item in claim.alternatives):
            node_claims.add("gang", claim.value, scheduler, scope=scope)
    _state_settings(node_claims, pod, scope)
    shm = _volumes(node_claims, pod, scope)
    for container in containers_of(pod):
        _container(node_claims, container, shm, scope)
    _devices(node_claims, pod, scope)
    _start_params(node_claims, role, scope)


def _start_params(node_claims: NodeClaims, role: Role, scope: Scope) -> None:
    """Add claims for the resources that a Ray node announces by default."""
    if role.start_params is not None:
        for key, quantity in (("num-gpus", "ray_num_gpus"), ("num-cpus", "ray_num_cpus")):
            node_claims.add_member(quantity, role.start_params.node.member(key), as_int, scope=scope)


def containers_of(pod: Node) -> Iterator[Node]:
    """Yield the containers of a pod that run as long as the pod does."""
    for item in pod.items_at("containers"):
        if item.kind is Kind.OBJECT:
            yield item


def state_labels(node_claims: NodeClaims, holder: Node, scope: Scope) -> None:
    """Add claims for the meshes and gangs that labels and annotations request."""
    for part in ("annotations", "labels"):
        for member in holder.members_at("metadata", part):
            if member.key in _MESH:
                node_claims.add("mesh_injection", _text(value_of(member.node)), member, scope=scope)
            elif member.key in _GANG_LABELS:
                node_claims.add("gang", Known(member.key), member, scope=scope)


def _text(value: Value) -> Value:
    return lift(lambda item: str(item).lower() if isinstance(item, bool) else str(item), value)


def _replicas(node_claims: NodeClaims, role: Role, scope: Scope) -> None:
    at = role.member or Member("template", role.template.start, role.template.start, role.template)
    if role.member is not None or role.template.end > role.template.start:
        node_claims.add("pod_replicas", role.replicas, at, scope=scope)
        node_claims.add("pod_trains", Known(role.trains), at, scope=scope)


def _state_settings(node_claims: NodeClaims, pod: Node, scope: Scope) -> None:
    node_claims.add_member("host_network", pod.member("hostNetwork"), scope=scope)
    node_claims.add_member("dns_policy", pod.member("dnsPolicy") or pod.member("dnsConfig"), _text, scope=scope)
    node_claims.add_member("restart_policy", pod.member("restartPolicy"), scope=scope)
    ipc = pod.member("hostIPC")
    if ipc is not None and value_of(ipc.node) != Known(False):
        node_claims.add("shm_mib", Unresolved("hostIPC: the node's own /dev/shm"), ipc, scope=scope)
    for member in pod.members_at("nodeSelector"):
        value = lift(lambda item, key=member.key: f"{key}={_plain(item)}", value_of(member.node))
        node_claims.add("node_label", value, member, scope=scope)
        if member.key in _GPU_PRODUCT:
            node_claims.add("gpu_type", value_of(member.node), member, scope=scope)
    _affinity(node_claims, pod, scope)


def _affinity(node_claims: NodeClaims, pod: Node, scope: Scope) -> None:
    """Add claims for the labels that a required node affinity demands; one of several values or terms must match."""
    terms = pod.at("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    if terms is None:
        return
    found: dict[str, list[tuple[list[str], Member]]] = {}
    for term in terms.items:
        for expression in term.items_at("matchExpressions"):
            key, values = expression.text("key"), expression.member("values")
            if not key or values is None or expression.text("operator") != "In":
                continue
            scalars = [item.value for item in values.node.items if item.kind is Kind.SCALAR]
            if scalars and len(scalars) == len(values.node.items):
                found.setdefault(key, []).append(([f"{key}={_plain(item)}" for item in scalars], values))
    for given in found.values():
        # A label that one of several terms leaves open may have any value.
        if len(given) == len(terms.items):
            labels = dict.fromkeys(text for texts, _ in given for text in texts)
            node_claims.add("node_label", one_of(labels), given[0][1], scope=scope)


def _plain(item: Plain) -> str:
    return str(item).lower() if isinstance(item, bool) else str(item)


def _volumes(node_claims: NodeClaims, pod: Node, scope: Scope) -> dict[str, tuple[Value, Member]]:
    """Add claims for host paths and volume claims; return the volumes in memory, or on the node, by name."""
    sizes: dict[str, tuple[Value, Member]] = {}
    for volume in pod.items_at("volumes"):
        name = volume.text("name")
        path = volume.member("hostPath", "path")
        if path is not None:
            node_claims.add("host_path", value_of(path.node), path, scope=scope)
            sizes[name] = (Unresolved("a directory of the node"), path)
        claim = volume.member("persistentVolumeClaim", "claimName")
        read_only = volume.at("persistentVolumeClaim", "readOnly")
        if claim is not None and (read_only is None or read_only.value is not True):
            node_claims.add("shared_volume", value_of(claim.node), claim, scope=scope)
        empty = volume.member("emptyDir")
        if empty is not None:
            limit = empty.node.member("sizeLimit")
            if empty.node.text("medium") == "Memory" and limit is not None:
                sizes[name] = (mebibytes(value_of(limit.node)), limit)
            else:
                sizes[name] = (Unresolved("an emptyDir without a sizeLimit: as large as the node allows"), empty)
    return sizes


_TRAINING_ROLES = ("", "worker", "master", "trainer")


def _container(node_claims: NodeClaims, container: Node, sizes: dict[str, tuple[Value, Member]], scope: Scope) -> None:
    image = container.member("image")
    node_claims.add_member("pod_image", image, scope=scope)
    package = package_of_image(container.text("image"))
    if image is not None and package is not None and scope.role in _TRAINING_ROLES:
        # The launch in the command of the container has a scope of its own.
        node_claims.add("package", Known(f"{package.name}{package.version}"), image, scope=WHOLE_JOB)
    for mount in container.items_at("volumeMounts"):
        path = mount.text("mountPath").rstrip("/")
        if path in ("/dev/shm", "/dev", "/run/shm"):
            size, member = sizes.get(mount.text("name")) or (Unresolved("a volume of another kind"), None)
            member = member or mount.member("mountPath")
            if member is not None:
                node_claims.add("shm_mib", size, member, scope=scope)
    for port in container.items_at("ports"):
        node_claims.add_member("host_port", port.member("hostPort"), as_int, scope=scope)
    context = container.at("securityContext")
    if context is not None:
        privileged = context.member("privileged")
        if privileged is not None and privileged.node.value is not False:
            node_claims.add("pod_capability", Known("privileged"), privileged, scope=scope)
        added = context.member("capabilities", "add")
        for item in added.node.items if added is not None else ():
            node_claims.add("pod_capability", value_of(item), Member("add", item.start, item.end, item), scope=scope)


def _devices(node_claims: NodeClaims, pod: Node, scope: Scope) -> None:
    """Add claims for the devices, cores and memory that the pod's containers request in total."""
    _add_sum_claim(node_claims, pod, "limits", GPU_RESOURCE, "pod_gpus", whole_number, scope)
    _add_sum_claim(node_claims, pod, "requests", GPU_RESOURCE, "pod_gpu_requests", whole_number, scope)
    _state_requests(node_claims, pod, "cpu", "pod_cpu_requests", cores, scope)
    _state_requests(node_claims, pod, "memory", "pod_memory_requests_mib", mebibytes, scope)
    if not _any_unlimited(pod, "cpu"):
        _add_sum_claim(node_claims, pod, "limits", re.compile("cpu"), "pod_cpus", cores, scope)
    if not _any_unlimited(pod, "memory"):
        _add_sum_claim(node_claims, pod, "limits", re.compile("memory"), "pod_memory_mib", mebibytes, scope)
    for container in containers_of(pod):
        limits = container.at("resources", "limits") or container.at("resources", "requests")
        for member in limits.in_force if limits is not None else ():
            if _RDMA.fullmatch(member.key) and str(member.node.value) != "0":
                value = lift(lambda item, key=member.key: f"{key}={int(amount(item))}", value_of(member.node))
                node_claims.add("pod_rdma", value, member, scope=scope)


def gpus_of(container: Node) -> tuple[Value, Member] | None:
    """Return the GPUs of one container, and where they are set; None if it sets none."""
    found = [member for member in (container.members_at("resources", "limits")) if GPU_RESOURCE.fullmatch(member.key)]
    return (whole_number(value_of(found[0].node)), found[0]) if len(found) == 1 else None


def _state_requests(node_claims: NodeClaims, pod: Node, name: str, quantity: str, read: _Parse, scope: Scope) -> None:
    """Add claims for the amount that the scheduler counts: each container's request, or its limit without a request."""
    sections = [
        container.member("resources", "requests", name) or container.member("resources", "limits", name)
        for container in containers_of(pod)
    ]
    _state_total(node_claims, quantity, [member for member in sections if member is not None], read, scope)


def _state_total(node_claims: NodeClaims, quantity: str, members: Sequence[Member], read: _Parse, scope: Scope) -> None:
    if members:
        total = functools.reduce(_plus, (read(value_of(member.node)) for member in members))
        node_claims.add(quantity, total, members[0], scope=scope)


def _plus(one: Value, other: Value) -> Value:
    return lift(lambda a, b: a + b, one, other)


def _any_unlimited(pod: Node, name: str) -> bool:
    return any(container.at("resources", "limits", name) is None for container in containers_of(pod))


def _add_sum_claim(
    node_claims: NodeClaims, pod: Node, section: str, name: re.Pattern[str], quantity: str, read: _Parse, scope: Scope
) -> None:
    given = (each for container in containers_of(pod) for each in container.members_at("resources", section))
    _state_total(node_claims, quantity, [member for member in given if name.fullmatch(member.key)], read, scope)


_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(m|k|K|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei|[eE][+-]?[0-9]+)?\s*")
_FACTORS = {"": 1.0, "m": 0.001}
_FACTORS.update({sign: 1000.0**power for power, sign in enumerate("kMGTPE", start=1)})
_FACTORS.update({f"{sign}i": 1024.0**power for power, sign in enumerate("KMGTPE", start=1)})
_FACTORS["K"] = 1000.0


def amount(item: Plain) -> float:
    """Parse a quantity. Raises ValueError if it is not a quantity."""
    if isinstance(item, bool) or item is None or isinstance(item, tuple):
        raise ValueError(f"{item!r} is not a quantity")
    match = _AMOUNT.fullmatch(str(item))
    if match is None:
        raise ValueError(f"{item!r} is not a quantity")
    suffix = match[2] or ""
    if suffix[:1] in ("e", "E") and suffix not in _FACTORS:
        return float(match[1] + suffix)
    return float(match[1]) * _FACTORS[suffix]


def cores(value: Value) -> Value:
    """Parse a number of CPU cores, with fractions."""
    return lift(amount, value)


def whole_number(value: Value) -> Value:
    """Parse a number of devices, which must be whole."""
    return lift(lambda item: int(amount(item)), value)


def mebibytes(value: Value) -> Value:
    """Parse an amount of memory in MiB, rounded down."""
    return lift(lambda item: int(amount(item) / 1024**2), value)


_GPU_CLASS = re.compile(r"(?:gpu|mig|vfio\.gpu)\.nvidia\.com|gpu\.amd\.com|gpu\.intel\.com")


def state_claims(node_claims: NodeClaims, role: Role, known: Sequence[Node], scope: Scope) -> None:
    """Add claims for the GPUs that the pods of a role claim, and the compute domain that they join."""
    found: list[tuple[Value, Member]] = []
    for claim in role.pod.items_at("resourceClaims") if role.pod is not None else ():
        member = claim.member("resourceClaimTemplateName") or claim.member("resourceClaimName")
        if member is None:
            continue
        domain = _domain(known, member.node)
        if domain is not None:
            node_claims.add("compute_domain", value_of(domain.node), domain, scope=scope)
        template = _template(known, member.node)
        gpus = list(_gpus(template)) if template is not None else []
        found += [(functools.reduce(_plus, gpus), member)] if gpus else []
    is_stated = any(item.quantity == "pod_gpus" and item.scope == scope for item in node_claims.claims)
    if found and not is_stated:
        node_claims.add("pod_gpus", functools.reduce(_plus, (each for each, _ in found)), found[0][1], scope=scope)


def _template(known: Sequence[Node], name: Node) -> Node | None:
    for item in known:
        if item.text("kind") in ("ResourceClaimTemplate", "ResourceClaim") and _have_equal_names(
            item.at("metadata", "name"), name
        ):
            spec = item.at("spec")
            return spec.at("spec") or spec if spec is not None else None
    return None


def _gpus(spec: Node) -> Iterator[Value]:
    """Yield how many GPUs each request of a claim is for."""
    for request in spec.items_at("devices", "requests"):
        asked = request.at("exactly") or request
        if _GPU_CLASS.fullmatch(asked.text("deviceClassName")):
            count = asked.member("count")
            one = as_int(value_of(count.node)) if count is not None else Known(1)
            is_all = asked.text("allocationMode") == "All"
            yield Unresolved("every device of the node that matches") if is_all else one


def _domain(known: Sequence[Node], name: Node) -> Member | None:
    """Return where the ComputeDomain whose claim template a pod names sets its number of nodes."""
    for item in known:
        template = item.at("spec", "channel", "resourceClaimTemplate", "name")
        if item.text("kind") == "ComputeDomain" and _have_equal_names(template, name):
            return item.member("spec", "numNodes")
    return None


def _have_equal_names(first: Node | None, second: Node) -> bool:
    """Return whether two names are equal, with equal placeholders."""
    if first is None or first.kind not in (Kind.SCALAR, Kind.TEMPLATE) or second.kind is not first.kind:
        return False
    return first.value is not None and str(first.value).strip("\"'") == str(second.value).strip("\"'")


# Evaluates the commands of a pod's containers, each in its environment and with the files that are mounted in it.
#
# A script in a ConfigMap is a script of the job: `bash /scripts/train.sh` runs it. Names and defaults are those of
# the core API (v1 ConfigMapVolumeSource, VolumeMount; Kubernetes 1.33).


#: `$(NAME)` in a container's command, arguments and variables; `$$(NAME)` stays as it is.
_EXPANSION = re.compile(r"(?<!\$)\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
#: A placeholder for `envsubst`; Kubernetes itself would pass it on unchanged.
_PLACEHOLDER = re.compile(r"\$(?:\{[A-Za-z_]\w*\}|[A-Za-z_]\w*)")
_FILLED_IN = UnknownOrigin(UnknownKind.PLACEHOLDER)
#: Variables that are read of one container; real configurations have fewer.
_MAX_VARIABLES = 400


@dataclass(slots=True)
class Containers:
    """Reads the containers of one file; `config_maps` are those in the manifest or its neighbours, by name."""

    file: SourceFile
    tree: Tree
    config_maps: Mapping[str, Node] = field(default_factory=dict)
    #: Variables used where no shell will expand them, with their location.
    unexpanded: list[tuple[str, Place]] = field(default_factory=list)
    _text: FileText = field(init=False)

    def __post_init__(self) -> None:
        self._text = file_text_of(self.file)

    def place(self, node: Node) -> Place:
        """Return the location of a value."""
        return Place(self._text, node.start, node.end)

    def environment(self, container: Node, given: Mapping[str, Slot]) -> dict[str, Slot]:
        """Return the variables a container starts with: the operator's, then those of ConfigMaps, then its own."""
        found = dict(given)
        for source in container.items_at("envFrom"):
            self._from_map(found, source)
        for item in truncate(container.items_at("env"), _MAX_VARIABLES, "variables of a container"):
            name = item.text("name")
            if name:
                found[name] = self._variable(item, found)
        return found

    def _variable(self, item: Node, known: Mapping[str, Slot]) -> Slot:
        value = item.at("value")
        if value is not None and value.kind in (Kind.SCALAR, Kind.TEMPLATE):
            place = self.place(value)
            text = () if value.value is None else _with_gaps(self._expand(code_of(self._text, value), known))
            return Slot(SlotKind.TEXT, place, text, exported=True)
        origin = item.at("valueFrom")
        place = self.place(origin if origin is not None else item)
        if origin is not None:
            reference = origin.at("configMapKeyRef")
            held = self.config_maps.get(reference.text("name")) if reference is not None else None
            node = held.at(reference.text("key")) if held is not None and reference is not None else None
            if node is not None and node.kind is Kind.SCALAR:
                return Slot(SlotKind.TEXT, self.place(node), code_of(self._text, node), exported=True)
            kind = next((member.key for member in origin.in_force), "valueFrom")
            text = hole(f"{kind} {origin.text('fieldRef', 'fieldPath')}".strip(), place, f"${item.text('name')}")
            return Slot(SlotKind.TEXT, place, text, exported=True)
        if value is None:
            return Slot(SlotKind.TEXT, place, (), exported=True)
        return Slot(SlotKind.TEXT, place, hole("no text", place, "value"), exported=True)

    def _from_map(self, environment: dict[str, Slot], source: Node) -> None:
        held = self.config_maps.get(source.text("configMapRef", "name"))
        prefix = source.text("prefix")
        for member in held.in_force if held is not None else ():
            if member.node.kind is Kind.SCALAR:
                text = code_of(self._text, member.node)
                environment[prefix + member.key] = Slot(SlotKind.TEXT, self.place(member.node), text, exported=True)

    def script(self, pod: Node, container: Node, environment: Mapping[str, Slot]) -> tuple[Script, Tree] | None:
        """Return the script that a container of the pod runs, and the tree as the container sees it; None if only the
        image determines the command.
        """
        words = [*self._words(container.at("command"), environment), *self._words(container.at("args"), environment)]
        if not words:
            return None
        heads = [word[0].text if word and isinstance(word[0], Lit) else "" for word in words[:4]]
        if container.at("command") is None and heads[0].startswith("-"):
            # Arguments of the image's own entry point.
            return None
        alone = [head for word, head in zip(words, heads, strict=False) if len(word) == 1]
        if not any(head.rpartition("/")[2] in SHELLS for head in alone):
            for word in words:
                self.unexpanded.extend(_unexpanded_variables(word, environment))
            words = [_with_gaps(word) for word in words]
        first = container.at("command") or container.at("args")
        assert first is not None
        nodes = first.items if first.kind is Kind.ARRAY and first.items else (first,)
        return self._evaluate(words, environment, self.place(nodes[0]), pod, container)

    def _evaluate(
        self, words: Sequence[Text], environment: Mapping[str, Slot], place: Place, pod: Node, container: Node
    ) -> tuple[Script, Tree]:
        """Evaluate the words with the pod's ConfigMaps mounted."""
        mounted = self.mounted(pod, container)
        if not mounted:
            return evaluate_words(self.file, self.tree, words, environment, place), self.tree
        tree = PodTree(self.tree, self._text, mounted)
        script = evaluate_words(self.file, tree, words, environment, place, documents=tree.documents)
        # Scripts that were evaluated with the command are not read again.
        references = tuple(item for item in script.references if not tree.is_script(item.target))
        return replace(script, references=references, written=(*script.written, *tree.written())), tree

    def mounted(self, pod: Node, container: Node) -> dict[str, Mounted]:
        """Return the files that a container of the pod finds in its ConfigMaps, by their paths."""
        folder = posixpath.dirname(self.file.path)
        return mounted_files(pod, container, self.config_maps, folder, self._source_script)

    def _source_script(self, node: Node) -> str | None:
        """Return the script from which an entry of a ConfigMap was made; None if it is not a file of the tree."""
        if not isinstance(self.file, ComposedFile):
            return None
        middle = (node.start + node.end) // 2
        found = self.file.origins.at(middle, middle + 1)
        is_file = found is not None and found.exact and found.file.path.endswith((".sh", ".bash", ".py"))
        return found.file.path if found is not None and is_file else None

    def line(self, node: Node, environment: Mapping[str, Slot]) -> Script:
        """Evaluate a command that is written as one line (`entrypoint` of a RayJob)."""
        place = self.place(node)
        shell: Text = (Lit("sh", place, False),)
        option: Text = (Lit("-c", place, False),)
        return evaluate_words(self.file, self.tree, [shell, option, code_of(self._text, node)], environment, place)

    def _words(self, node: Node | None, environment: Mapping[str, Slot]) -> list[Text]:
        if node is None or (node.kind is Kind.SCALAR and node.value is None):
            return []
        if node.kind is Kind.ARRAY:
            return [self._expand(code_of(self._text, item), environment) for item in node.items]
        return [self._expand(code_of(self._text, node), environment)]

    def _expand(self, text: Text, environment: Mapping[str, Slot]) -> Text:
        """Return the text with `$(NAME)` replaced as by the kubelet; an unset name stays as written."""
        pieces: list[Piece] = []
        for piece in text:
            if not isinstance(piece, Lit) or "$(" not in piece.text:
                pieces.append(piece)
                continue
            at = 0
            for match in _EXPANSION.finditer(piece.text):
                slot = environment.get(match[1])
                if slot is None:
                    continue
                pieces.append(piece.cut(at, match.start()))
                place = piece.cut(match.start(), match.end()).place
                used = _text_at_use(slot, place, match[0])
                spend(len(used))
                pieces.extend(used)
                at = match.end()
            pieces.append(piece.cut(at, len(piece.text)))
        # Variables that each name the previous one twice double the text at every step.
        spend(len(pieces))
        return tuple(piece for piece in pieces if not isinstance(piece, Lit) or piece.text)


def _text_at_use(slot: Slot, place: Place, spelling: str) -> Text:
    value = slot.value()
    if isinstance(value, Unresolved):
        return hole(value.why, place, spelling, origin=origin_of(slot.text))
    return tuple(
        Lit(piece.text, place, False, spelling if index == 0 else "") if isinstance(piece, Lit) else piece
        for index, piece in enumerate(slot.scalar())
    )


def _unexpanded_variables(text: Text, environment: Mapping[str, Slot]) -> Iterator[tuple[str, Place]]:
    """Yield a name that refers to a variable of the container itself, so that it is not a template's placeholder.

    The name is empty if that variable is also set elsewhere: then both may be placeholders.
    """
    for piece in text:
        for match in _PLACEHOLDER.finditer(piece.text) if isinstance(piece, Lit) else ():
            name = match[0].strip("${}")
            slot = environment.get(name)
            if slot is not None and isinstance(piece, Lit):
                is_filled_in = any(isinstance(each, Hole) and each.origin == _FILLED_IN for each in slot.text)
                yield "" if is_filled_in else name, piece.cut(match.start(), match.end()).place


def _with_gaps(text: Text) -> Text:
    """Return the text with each apparent shell variable as a gap: no shell will expand it."""
    pieces: list[Piece] = []
    for piece in text:
        at = 0
        for match in _PLACEHOLDER.finditer(piece.text) if isinstance(piece, Lit) else ():
            assert isinstance(piece, Lit)
            pieces.append(piece.cut(at, match.start()))
            cut = piece.cut(match.start(), match.end())
            why = f"{match[0]}, a placeholder that is replaced later"
            pieces.append(Hole(why, cut.place, match[0], origin=_FILLED_IN))
            at = match.end()
        pieces.append(piece.cut(at, len(piece.text)) if isinstance(piece, Lit) else piece)
    return tuple(piece for piece in pieces if not isinstance(piece, Lit) or piece.text)


_MAX_MOUNTED = 200


@dataclass(frozen=True, slots=True)
class Mounted:
    """One file in a container: `name` is its path in the tree, distinct from those of real files."""

    path: str
    name: str
    node: Node


class PodTree:
    """The tree as a container sees it: mounted files at their absolute paths, all others as in the underlying tree."""

    def __init__(self, tree: Tree, text: FileText, mounted: Mapping[str, Mounted]) -> None:
        self._tree = tree
        self._mounted = mounted
        self._by_name = {item.name: item for item in mounted.values()}
        self._text = text
        #: The parsed texts, each character with its location in the manifest.
        self.documents = {name: self._document(item) for name, item in self._by_name.items() if not _is_python(name)}

    def _code(self, item: Mounted) -> Text:
        return code_of(self._text, item.node)

    def _document(self, item: Mounted) -> Document:
        return Document(self._code(item), Place(self._text, item.node.start, item.node.end))

    def _plain(self, item: Mounted) -> str:
        return "".join(piece.text if isinstance(piece, Lit) else "X" for piece in self._code(item))

    def read(self, path: str) -> SourceFile | Note:
        """Return a mounted file by its name, otherwise a file of the underlying tree."""
        item = self._by_name.get(path)
        below = self._tree.read(path)
        if item is None or isinstance(below, SourceFile):
            return below
        text = self._plain(item)
        return SourceFile(path, text, hashlib.sha256(text.encode()).hexdigest(), len(text))

    def resolve(self, path: str, *, relative_to: str) -> str | None:
        """Return the name of the file that is mounted at an absolute path; other paths as in the underlying tree."""
        item = self._mounted.get(posixpath.normpath(path)) if path.startswith("/") else None
        if item is None and relative_to in self._by_name and not path.startswith("/"):
            beside = posixpath.join(posixpath.dirname(self._by_name[relative_to].path), path)
            item = self._mounted.get(posixpath.normpath(beside))
        return item.name if item is not None else self._tree.resolve(path, relative_to=relative_to)

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the names in a folder of the underlying tree."""
        return self._tree.names(folder)

    def is_script(self, name: str) -> bool:
        """Return whether `name` is that of a mounted file that is read together with the command that runs it."""
        return name in self.documents

    def written(self) -> Iterator[WrittenFile]:
        """Yield the mounted Python programs, so that references to them can be followed."""
        for name, item in self._by_name.items():
            if _is_python(name) and not isinstance(self._tree.read(name), SourceFile):
                code = self._code(item)
                first = next((piece for piece in code if isinstance(piece, Lit)), None)
                if first is not None:
                    yield WrittenFile(name, self._plain(item), first.place.span)


def _is_python(name: str) -> bool:
    return name.endswith(".py")


#: The path in the tree of the file that a value of the manifest was made of, if it was.
SourceOf: TypeAlias = Callable[[Node], "str | None"]


def mounted_files(
    pod: Node, container: Node, config_maps: Mapping[str, Node], folder: str, made_of: SourceOf = lambda node: None
) -> dict[str, Mounted]:
    """Return the files that are mounted in a container from ConfigMaps, by absolute path; `folder` is that of the
    manifest.
    """
    volumes: dict[str, dict[str, Mounted]] = {}
    for volume in pod.items_at("volumes"):
        found = dict(_entries(volume.at("configMap"), config_maps, folder, made_of))
        for source in volume.items_at("projected", "sources"):
            found.update(_entries(source.at("configMap"), config_maps, folder, made_of))
        if found:
            volumes[volume.text("name")] = found
    result: dict[str, Mounted] = {}
    for mount in container.items_at("volumeMounts"):
        entries = volumes.get(mount.text("name"))
        where, below = mount.text("mountPath"), mount.text("subPath")
        if not entries or not where.startswith("/") or len(result) >= _MAX_MOUNTED:
            continue
        if below:
            item = entries.get(posixpath.normpath(below))
            if item is not None:
                path = posixpath.normpath(where)
                result[path] = Mounted(path, item.name, item.node)
            continue
        for relative, item in entries.items():
            path = posixpath.normpath(posixpath.join(where, relative))
            result[path] = Mounted(path, item.name, item.node)
    return result


def _entries(
    source: Node | None, config_maps: Mapping[str, Node], folder: str, made_of: SourceOf
) -> Iterator[tuple[str, Mounted]]:
    """Yield the entries of one ConfigMap by their path in the volume."""
    name = source.text("name") if source is not None else ""
    data = config_maps.get(name)
    if source is None or data is None:
        return
    items = source.at("items")
    chosen = {item.text("key"): item.text("path") for item in items.items} if items is not None else None
    for member in data.in_force:
        if member.node.kind is not Kind.SCALAR or not isinstance(member.node.value, str):
            continue
        relative = member.key if chosen is None else chosen.get(member.key, "")
        relative = posixpath.normpath(relative) if relative else ""
        if relative and not relative.startswith(("..", "/")):
            kept = made_of(member.node) or posixpath.join(folder, name, relative)
            yield relative, Mounted(relative, kept, member.node)

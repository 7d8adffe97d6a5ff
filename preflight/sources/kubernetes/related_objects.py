"""Objects that start no pods but affect the pods of others, and the host names of pods (`pod_hosts.toml`).

Those of a Volcano job come from its plugin `svc` alone. Source: pkg/controllers/job/plugins/svc/svc.go of Volcano 1.12:
the files below /etc/volcano, VC_TASK_HOSTS, VC_TASK_NUM and the domain of the pods.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import NamedTuple

from preflight._util import toml
from preflight._util.spans import Places, span_of
from preflight.model.job import Claim, Known, Scope, Strength, Unresolved, Value, as_int, lift
from preflight.sources.base import Command, SourceFile, Tree
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims, value_of
from preflight.sources.kubernetes.inputs import walk
from preflight.sources.kubernetes.objects import Role, Workload, workload_of
from preflight.sources.kubernetes.pods import GPU_RESOURCE, Mounted, whole_number
from preflight.sources.value_readers import sum_of


class _Row(NamedTuple):
    """A row of `pod_hosts.toml`, whose head describes the fields."""

    kinds: tuple[str, ...]
    hosts: tuple[str, ...]
    groups: tuple[str, ...] = ()
    domain: str = ""
    domain_at: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


@functools.cache
def _rows() -> tuple[_Row, ...]:
    return tuple(_Row(**toml.with_tuples(row)) for row in toml.beside(__file__, "pod_hosts.toml")["pods"])


class _Labels(NamedTuple):
    """A row of `labels` in `pod_hosts.toml`."""

    kinds: tuple[str, ...]
    groups: tuple[str, ...]
    labels: tuple[tuple[str, str], ...]


@functools.cache
def _label_rows() -> tuple[_Labels, ...]:
    rows = toml.beside(__file__, "pod_hosts.toml")["labels"]
    return tuple(_Labels(tuple(row["kinds"]), tuple(row["groups"]), tuple(row["pods"].items())) for row in rows)


#: Fields with which pods have other names, or find each other in another way.
_OWN_NAMES = ("dnsConfig", "hostAliases", "hostNetwork", "hostname")


def state_hosts(node_claims: NodeClaims, workload: Workload, everything: Sequence[Node], scope: Scope) -> None:
    """Add claims for the names of the pods, with `{i}` for a number, and those of the services in the same files.

    Nothing is stated of an object whose name, domain or roles are not known.
    """
    hosts = tuple(dict.fromkeys(_hosts(workload)))
    if not hosts and workload.group == "batch" and workload.kind == "Job" and _has_plain_pods(workload):
        # Without the domain that a template names, the pods of an Indexed Job have no names.
        node_claims.add("pods_unnamed", Known(True), workload.head, scope=scope)
    switch = workload.spec.member("network", "enableDNSHostnames")
    if workload.kind == "JobSet" and switch is not None and value_of(switch.node) == Known(False):
        node_claims.add("pods_unnamed", Known(True), switch, scope=scope)
    if hosts and all("{{" not in host and "$" not in host for host in hosts):
        services = [item.text("metadata", "name") for item in everything if item.text("kind") == "Service"]
        node_claims.add("pod_hosts", Known((*hosts, *(name for name in services if name))), workload.head, scope=scope)


def _has_plain_pods(workload: Workload) -> bool:
    """Return whether no pod template sets its own host names, or another way to find them."""
    pods = [role.pod for role in workload.roles if role.pod is not None]
    return not any(pod.member(key) is not None for pod in pods for key in _OWN_NAMES)


def _hosts(workload: Workload) -> Iterator[str]:
    job = workload.root.text("metadata", "name")
    if not _has_plain_pods(workload):
        return
    if (
        workload.spec.at("plugins", "ssh") is not None
        or workload.spec.at("networkConfig", "subdomainPolicy") is not None
    ):
        # Short names and other subdomains work as well.
        return
    row = next((r for r in _rows() if workload.kind in r.kinds and (not r.groups or workload.group in r.groups)), None)
    if not job or row is None or (row.needs and workload.spec.at(*row.needs) is None):
        return
    domain = (workload.spec.text(*row.domain_at) if row.domain_at else "") or row.domain.format(job=job)
    if row.domain_at and not domain:
        return
    for role in workload.roles:
        for host in row.hosts:
            name = host.format(job=job, role=role.name.lower(), i="{i}")
            own = role.pod.text("subdomain") if role.pod is not None else ""
            yield f"{name}.{own or domain}" if domain else name


_LOOKS = r"/etc/volcano/[\w.${}-]+|\bVC_\w+_(?:HOSTS|NUM)\b"
#: What provides an address in another way, or asks first whether there is one.
_PROVIDED = re.compile(
    r"mountPath: *[\"']?/etc/volcano|name: *[\"']?VC_\w+_(?:HOSTS|NUM)|\bVC_\w+=|VC_\w+_(?:HOSTS|NUM):?[-+?=]"
    r"|(?:\btest|\[|\bif) .*(?:/etc/volcano|VC_\w+_)|\bexists\(|\bis_?file\(|\.get\(|getenv\(|\btry:|\bin os\.environ"
)
#: Blocks of a shell script that may not be run.
_OPENS = re.compile(r"(?:^|[;&|])\s*(?:if|case|while|until)\b|\w+\s*\(\)\s*\{", re.MULTILINE)
_CLOSES = re.compile(r"(?:^|[;\s])(?:fi|esac|done)\b|^\s*\}", re.MULTILINE)


class Piece(NamedTuple):
    """A part of a file that the pods contain or run."""

    file: SourceFile
    start: int
    end: int


def pieces_of(
    file: SourceFile,
    tree: Tree,
    role: Role,
    mounted: Mapping[str, Mounted],
    commands: Sequence[Command],
    programs: Iterable[str],
) -> Iterator[Piece]:
    """Yield the pod template of a role, and the scripts and programs that its container runs."""
    yield Piece(file, role.template.start, role.template.end)
    places = Places(file.path, file.text)
    lines = {command.span.line for command in commands if command.span.path == file.path}
    for node in (item.node for item in mounted.values()):
        if lines & set(range(places.line(node.start), places.line(node.end) + 1)):
            yield Piece(file, node.start, node.end)
    for path in sorted({command.span.path for command in commands} - {file.path} | set(programs)):
        read = tree.read(path)
        if isinstance(read, SourceFile):
            yield Piece(read, 0, len(read.text))


def is_volcano_job(workload: Workload) -> bool:
    """Return whether an object is a job of Volcano, whose plugins connect its pods."""
    return workload.group == "batch.volcano.sh" and workload.kind == "Job"


def state_volcano_hosts(
    stating: NodeClaims, workload: Workload, pieces: Iterable[Piece], everything: Sequence[Node], scope: Scope
) -> None:
    """Add claims for the plugins of a job of Volcano, and the first place that looks for an address; nothing without
    one.
    """
    services = {item.text("metadata", "name") for item in everything if item.text("kind") == "Service"}
    found = [claim for piece in pieces for claim in _looks(workload, piece, services)]
    for claim in sorted(found, key=lambda claim: bool(claim.condition))[:1]:
        stating.claims.append(replace(claim, scope=scope))
        stating.add("volcano_plugins", _plugins(workload), workload.plugins or workload.head, scope=scope)


#: Actions after which a job of Volcano is over.
_ENDING_ACTIONS = frozenset(("CompleteJob", "TerminateJob", "AbortJob"))


def state_volcano_policies(
    stating: NodeClaims, workload: Workload, scope: Scope, *, starting: set[str], staying: set[str]
) -> None:
    """Add claims for the restart policies of a Volcano job's pods, which are Always by default, and for the policies
    that end the job when a task is completed. Source: pkg/controllers/job/job_controller_handler.go of Volcano 1.15.

    Args:
        starting: the roles whose pods run a launch.
        staying: the roles whose pods run a command that does not end by itself.
    """
    spec = workload.spec.at("jobTemplate", "spec") or workload.spec
    for action in _endings(spec):
        stating.add("job_ending_policy", Known("TaskCompleted"), action, scope=scope)
    succeeding = spec.member("minSuccess")
    if succeeding is not None:
        stating.add("job_ending_policy", Known("minSuccess"), succeeding, scope=scope)
    tasks = [task for task in spec.items_at("tasks") if task.kind is Kind.OBJECT]
    for role, task in zip(workload.roles, tasks, strict=False):
        of_role = replace(scope, role=role.name)
        endings = list(_endings(task))
        for action in endings:
            stating.add("job_ending_policy", Known("TaskCompleted"), action, scope=of_role)
        containers = role.pod.member("containers") if role.pod is not None else None
        policy = role.pod.member("restartPolicy") if role.pod is not None else None
        if role.name in staying or not (endings or role.name in starting):
            continue
        if policy is not None:
            stating.add_member("pod_restarts", policy, scope=of_role)
        elif containers is not None:
            stating.add("pod_restarts", Known("Always"), containers, scope=of_role)


def _endings(holder: Node) -> Iterator[Member]:
    """Yield the actions that end the job when a task is completed."""
    for item in holder.items_at("policies"):
        action = item.member("action") if item.kind is Kind.OBJECT else None
        if action is None or action.node.value not in _ENDING_ACTIONS:
            continue
        if "TaskCompleted" in (item.text("event"), *(event.value for event in item.items_at("events"))):
            yield action


def _looks(workload: Workload, piece: Piece, services: set[str]) -> Iterator[Claim]:
    text = piece.file.text[piece.start : piece.end]
    if _PROVIDED.search(text) is not None:
        return
    job, wanted = workload.root.text("metadata", "name"), _LOOKS
    own = any(role.pod is not None and role.pod.member("subdomain") is not None for role in workload.roles)
    if job and job not in services and not own:
        tasks = "|".join(re.escape(role.name) for role in workload.roles)
        wanted += rf"|\b{re.escape(job)}-(?:{tasks})-\d+\.{re.escape(job)}\b(?!-)"
    for match in re.finditer(wanted, text):
        before = text[: match.start()]
        if "#" in before.rpartition("\n")[2]:
            continue
        certain = not piece.file.path.endswith(".py") and len(_OPENS.findall(before)) <= len(_CLOSES.findall(before))
        span = span_of(piece.file.path, piece.file.text, piece.start + match.start(), piece.start + match.end())
        condition = "" if certain else "if it reaches this line"
        found = Claim("pod_address", Known(match[0]), span, match[0], "kubernetes", strength=Strength.SCHEDULER)
        yield replace(found, condition=condition)
        return


def _plugins(workload: Workload) -> Value:
    if workload.plugins is None:
        return Known(())
    node = workload.plugins.node
    if node.kind is not Kind.OBJECT or any("{{" in member.key or "$" in member.key for member in node.in_force):
        return Unresolved("a placeholder that is replaced later")
    return Known(tuple(member.key for member in node.in_force))


def state_related_object(node_claims: NodeClaims, root: Node, head: Member, name: str) -> None:
    """Add the claims of an object; `name` is their scope."""
    scope = Scope(launch=name)
    kind = root.text("kind")
    if kind == "PodGroup":
        _group(node_claims, root, head, scope)
    elif kind == "PersistentVolumeClaim":
        claimed, modes = root.member("metadata", "name"), root.member("spec", "accessModes")
        if claimed is not None and modes is not None:
            node_claims.add("shared_volume", value_of(claimed.node), claimed, scope=scope)
            node_claims.add("volume_access", value_of(modes.node), modes, scope=scope)
    elif kind == "NetworkPolicy":
        _policy(node_claims, root, head, scope)
        _allowance(node_claims, root, head, scope)
    elif kind in ("CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy"):
        _allowance(node_claims, root, head, scope)
    elif kind == "ResourceQuota":
        if root.at("spec", "scopes") is not None or root.at("spec", "scopeSelector") is not None:
            # It counts only some of the namespace's pods.
            return
        node_claims.add_member("namespace", root.member("metadata", "namespace"), scope=scope)
        _quota(node_claims, root.at("spec", "hard"), scope, "quota_gpus")
    elif kind == "ClusterQueue":
        _kueue(node_claims, root, scope)


def _group(node_claims: NodeClaims, root: Node, head: Member, scope: Scope) -> None:
    """Add claims for a PodGroup, which schedules its pods as a gang."""
    group = root.text("apiVersion").rpartition("/")[0]
    node_claims.add("workload", Known(f"{group}/PodGroup"), head, scope=scope)
    node_claims.add_member("gang_min", root.member("spec", "minMember"), as_int, scope=scope)
    name = root.member("metadata", "name")
    if name is not None:
        node_claims.add("gang", value_of(name.node), name, scope=scope)


def _quota(node_claims: NodeClaims, limits: Node | None, scope: Scope, quantity: str) -> None:
    for member in limits.in_force if limits is not None else ():
        if GPU_RESOURCE.fullmatch(member.key.removeprefix("requests.").removeprefix("limits.")):
            node_claims.add(quantity, whole_number(value_of(member.node)), member, scope=scope)


def _kueue(node_claims: NodeClaims, root: Node, scope: Scope) -> None:
    """Return the quota of a queue that neither lends nor borrows; in a cohort the queue may use more."""
    found = list(_gpu_quotas(root))
    if len(found) == 1 and not _is_in_cohort(root):
        node_claims.add("quota_gpus", whole_number(value_of(found[0].node)), found[0], scope=scope)


def _is_in_cohort(queue: Node) -> bool:
    return queue.at("spec", "cohort") is not None or queue.at("spec", "cohortName") is not None


def _policy(node_claims: NodeClaims, root: Node, head: Member, scope: Scope) -> None:
    """Add a claim for a policy that selects every pod of its namespace and allows no ingress from there."""
    spec = root.at("spec")
    selector = spec.at("podSelector") if spec is not None else None
    if spec is None or selector is None or selector.kind is not Kind.OBJECT or selector.members:
        return
    types = spec.at("policyTypes")
    if types is not None and "Ingress" not in [item.value for item in types.items]:
        return
    rules = spec.at("ingress")
    namespace = root.text("metadata", "namespace")
    if rules is None or (
        rules.kind is Kind.ARRAY and all(_lets_only_others_in(rule, namespace) for rule in rules.items)
    ):
        node_claims.add_member("namespace", root.member("metadata", "namespace"), scope=scope)
        node_claims.add("denies_ingress", Known(True), head, scope=scope)


def _allowance(node_claims: NodeClaims, root: Node, head: Member, scope: Scope) -> None:
    """Add a claim for a policy that allows some connections: it may open what another policy leaves closed."""
    namespace = root.text("metadata", "namespace")
    rules = [rule for spec in (root.at("spec"), *root.items_at("specs")) if spec for rule in spec.items_at("ingress")]
    if any(not _lets_only_others_in(rule, namespace) for rule in rules):
        node_claims.add_member("namespace", root.member("metadata", "namespace"), scope=scope)
        node_claims.add("allows_ingress", Known(True), head, scope=scope)


def _lets_only_others_in(rule: Node, namespace: str) -> bool:
    """Return whether a rule admits only pods of namespaces that it names, all of them other ones.

    A peer without a namespace selector is in the policy's own namespace, and a rule without peers admits everybody.
    """
    peers = rule.items_at("from")
    named = [peer.text("namespaceSelector", "matchLabels", "kubernetes.io/metadata.name") for peer in peers]
    return bool(namespace and peers) and all(name and name != namespace for name in named)


#: What in the labels and annotations of a namespace adds the proxy of a mesh to its pods.
_MESHES = ("istio", "linkerd", "kuma")


def state_namespace(node_claims: NodeClaims, root: Node, known: Sequence[Node], scope: Scope) -> None:
    """Add a claim about whether a workload's namespace, if the files create it, is without a mesh."""
    made = _only_object(known, "Namespace", root.text("metadata", "namespace"), "")
    name = made.member("metadata", "name") if made is not None else None
    if made is None or name is None:
        return
    marks = (*made.members_at("metadata", "labels"), *made.members_at("metadata", "annotations"))
    has_mesh = any(mesh in mark.key for mark in marks for mesh in _MESHES)
    node_claims.add("namespace_without_mesh", Known(not has_mesh), name, scope=scope)


def state_mounts(node_claims: NodeClaims, workload: Workload, role: Role, scope: Scope) -> None:
    """Add claims for the volumes that a role's containers mount, with those that the pod has.

    Nothing is stated of a TrainJob, whose runtime adds volumes.
    """
    pod = role.pod
    if pod is None or workload.kind == "TrainJob":
        return
    claimed = [item.text("metadata", "name") for item in workload.spec.items_at("volumeClaimTemplates")]
    names = [item.text("name") for item in pod.items_at("volumes")] + claimed
    # An object without volumes and without what its kind requires may be a kustomize patch.
    required = (role.member, pod.member("restartPolicy"), workload.spec.member("selector"))
    may_be_patch = pod.member("volumes") is None and required == (None, None, None)
    is_open = not all(names) or may_be_patch or "{{" in node_claims.file.text
    volumes: Value = Unresolved("the names of volumes that another file adds") if is_open else Known(tuple(names))
    # A container without an image is a patch of another file.
    containers = (*pod.items_at("containers"), *pod.items_at("initContainers"))
    mounts = [item for each in containers if each.member("image") is not None for item in each.items_at("volumeMounts")]
    found = [name for mount in mounts if (name := mount.member("name")) is not None]
    if found:
        listed = node_claims.add("pod_volumes", volumes, pod.member("volumes") or found[0], scope=scope)
        for name in found:
            node_claims.add("volume_mount", value_of(name.node), name, scope=scope, because=(listed,))


def state_volume_claims(node_claims: NodeClaims, workload: Workload, everything: Sequence[Node], scope: Scope) -> None:
    """Add claims for the volume claims that pods name, if the files define a claim of this or a similar name."""
    pods = [role.pod for role in workload.roles if role.pod is not None]
    volumes = [volume for pod in pods for volume in pod.items_at("volumes")]
    named = [found for each in volumes if (found := each.member("persistentVolumeClaim", "claimName")) is not None]
    objects = [item for item in everything if item.text("kind") == "PersistentVolumeClaim"]
    names = [found for item in objects if (found := item.member("metadata", "name")) is not None]
    defined = tuple(sorted(str(name.node.value) for name in names))
    others = {item.text("metadata", "name") for item in everything} - set(defined)
    if "{{" in node_claims.file.text or not names:
        return
    known = node_claims.add("volume_claims", Known(defined), names[0], scope=scope)
    for each in named:
        name = str(each.node.value)
        # Only a name like one that is defined may be a mistake: other claims may exist in the cluster.
        is_open = "$" in name
        if is_open or name in defined or (name not in others and get_close_matches(name, defined, cutoff=0.7)):
            value = Unresolved("a placeholder that is replaced later") if is_open else value_of(each.node)
            node_claims.add("volume_claim", value, each, scope=scope, because=(known,))


def state_services(node_claims: NodeClaims, workload: Workload, everything: Sequence[Node], scope: Scope) -> None:
    """Add claims about the services for a workload that select by labels of its pods, and whether they select any pod.

    A service is for a workload if it has the name of its domain: that which its pods name, or that of a JobSet itself.
    """
    domains = {workload.spec.text("serviceName"), *(role.pod.text("subdomain") for role in workload.roles if role.pod)}
    if workload.kind in ("JobSet", "TrainJob"):
        domains.add(workload.spec.text("network", "subdomain") or workload.root.text("metadata", "name"))
    made = [dict(_label_texts(node)) for root in everything for node in walk(root) if root.text("kind") != "Service"]
    own = [{**dict(_label_texts(role.template)), **_given_labels(workload, role)} for role in workload.roles]
    given = [_given_labels(each, role) for root in everything if (each := workload_of(root)) for role in each.roles]
    for service in everything:
        selector = service.member("spec", "selector") if service.text("kind") == "Service" else None
        members = selector.node.in_force if selector is not None else ()
        wanted = {member.key: member.node.text() for member in members}
        labels = next((each for each in own if wanted.keys() <= each.keys()), None)
        if service.text("metadata", "name") not in domains - {""}:
            continue
        if selector is None or labels is None or not wanted:
            continue
        is_met = any(wanted.items() <= each.items() for each in (*made, *own, *given))
        at = next((each for each in members if wanted[each.key] != labels[each.key]), members[0])
        value: Value = Known(is_met) if all(wanted.values()) else value_of(at.node)
        label = node_claims.add("pod_label", Known((at.key, labels[at.key])), at, scope=scope)
        node_claims.add("service_selects", value, at, scope=scope, because=(label,))


def _label_texts(node: Node) -> Iterator[tuple[str, str]]:
    return ((member.key, member.node.text()) for member in node.members_at("metadata", "labels"))


def _given_labels(workload: Workload, role: Role) -> dict[str, str]:
    """Return the labels that a controller gives the pods of an object (`pod_hosts.toml`)."""
    job = workload.root.text("metadata", "name")
    rows = [row for row in _label_rows() if workload.kind in row.kinds and workload.group in (*row.groups, "")]
    return {key: text.format(job=job, role=role.name.lower()) for row in rows for key, text in row.labels}


QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
#: Annotations with which a job may be admitted with fewer pods than it requests.
_PARTIAL_ADMISSION = ("kueue.x-k8s.io/job-min-parallelism", "kueue.x-k8s.io/elastic-job")


def state_queue(node_claims: NodeClaims, root: Node, known: Sequence[Node], scope: Scope) -> None:
    """Add claims for a workload's queue, those that the files define, and the maximum number of GPUs if they determine
    it.

    A ClusterQueue in a cohort may borrow, so nothing is certain about it. A queue that is not in the tree is on the
    cluster.
    """
    queue = _only_object(known, "Queue", root.text("spec", "queue"), "")
    _quota(node_claims, queue.at("spec", "capability") if queue is not None else None, scope, "queue_gpus")
    label, namespace = _label_value(root, QUEUE_LABEL), root.text("metadata", "namespace")
    if label is None:
        return
    node_claims.add("queue_name", value_of(label.node), label, scope=scope)
    for node in known:
        name = node.member("metadata", "name")
        if node.text("kind") == "LocalQueue" and node.text("metadata", "namespace") == namespace and name is not None:
            node_claims.add("queue_defined", value_of(name.node), name, scope=scope)
    if any(_label_value(root, name) is not None for name in _PARTIAL_ADMISSION):
        return
    local = _only_object(known, "LocalQueue", label.node.text(), namespace)
    cluster = _only_object(known, "ClusterQueue", local.text("spec", "clusterQueue"), "") if local is not None else None
    quotas = list(_gpu_quotas(cluster)) if cluster is not None and not _is_in_cohort(cluster) else []
    if quotas:
        total = lift(sum_of, *(whole_number(value_of(quota.node)) for quota in quotas))
        node_claims.add("queue_gpus", total, quotas[0], scope=scope)


def _label_value(root: Node, name: str) -> Member | None:
    return root.member("metadata", "labels", name) or root.member("metadata", "annotations", name)


def _only_object(known: Sequence[Node], kind: str, name: str, namespace: str) -> Node | None:
    """Return the only object of a kind with a name, in the same namespace if both name one; None for several or
    none.
    """
    found = [
        node
        for node in known
        if name
        and node.text("kind") == kind
        and node.text("metadata", "name") == name
        and (not namespace or node.text("metadata", "namespace") in ("", namespace))
    ]
    return found[0] if len(found) == 1 else None


def _gpu_quotas(cluster: Node) -> Iterator[Member]:
    for group in cluster.items_at("spec", "resourceGroups"):
        for resource in (each for flavor in group.items_at("flavors") for each in flavor.items_at("resources")):
            quota = resource.member("nominalQuota")
            if quota is not None and GPU_RESOURCE.fullmatch(resource.text("name")):
                yield quota

"""Objects that contain other objects: lists, AppWrappers, Argo Workflows that create resources, OpenShift templates.

Read from the types of AppWrapper (workload.codeflare.dev/v1beta1 and v1beta2), Argo Workflows 3.7 (ResourceTemplate),
OpenShift Template v1 and Open Cluster Management's ManifestWork v1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.sources.formats.composed import shift_node
from preflight.sources.formats.structured import Kind, Node

#: Kinds whose objects contain objects.
WRAPPER_KINDS = frozenset(("AppWrapper", "List", "Template", "ManifestWork"))
WORKFLOW_KINDS = frozenset(("Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate", "CronWorkflow"))
_MAX_DEPTH = 4
_HEADER = re.compile(r"[|>](?:[0-9][+-]?|[+-][0-9]?)?[ \t]*(?:#[^\n]*)?\r?\n")


def objects(root: Node, text: str, depth: int = 0) -> Iterator[Node]:
    """The objects of a document: those that it contains, then itself. `text` is what it was parsed from."""
    if root.kind is not Kind.OBJECT or depth > _MAX_DEPTH:
        return
    kind = root.text("kind")
    held: tuple[Node, ...] = ()
    if kind.endswith("List"):
        held = _items(root.at("items"))
    elif kind == "Template":
        held = _items(root.at("objects"))
    elif kind == "ManifestWork":
        held = _items(root.at("spec", "workload", "manifests"))
    elif kind == "AppWrapper":
        components = _items(root.at("spec", "components"))
        held = tuple(node for item in components if (node := item.at("template")) is not None)
        generic = _items(root.at("spec", "resources", "GenericItems"))
        held += tuple(node for item in generic if (node := item.at("generictemplate")) is not None)
    elif kind in WORKFLOW_KINDS:
        held = tuple(_manifests(root, text))
    for node in held:
        yield from objects(node, text, depth + 1)
    if not held or kind in WORKFLOW_KINDS:
        yield root


def workflow_spec(root: Node) -> Node | None:
    """The specification of a workflow, whichever kind of object contains it."""
    return root.at("spec", "workflowSpec") if root.text("kind") == "CronWorkflow" else root.at("spec")


def _manifests(root: Node, text: str) -> Iterator[Node]:
    """The objects that the templates of a workflow create."""
    spec = workflow_spec(root)
    for template in _items(spec.at("templates") if spec is not None else None):
        manifest = template.at("resource", "manifest")
        if manifest is None:
            continue
        if manifest.kind is Kind.OBJECT:
            yield manifest
            continue
        source = text[manifest.start : manifest.end]
        header = _HEADER.match(source)
        if header is not None:
            yield from _parse_block(source[header.end() :], manifest.start + header.end())


def _parse_block(code: str, start: int) -> Iterator[Node]:
    """The objects of YAML in a block of text; its common indentation is irrelevant."""
    from preflight.sources.formats import lenient_yaml

    for document in lenient_yaml.parse_all(code):
        if document.root is not None:
            yield shift_node(document.root, start)


def _items(node: Node | None) -> tuple[Node, ...]:
    return node.items if node is not None and node.kind is Kind.ARRAY else ()

"""Making text from files and nodes safe to show: no control character ever reaches a terminal or a page."""

from __future__ import annotations

import unicodedata


def clean(text: str, *, keep_newlines: bool = False) -> str:
    """`text` with tabs as single spaces (columns stay right) and control and format characters made visible."""
    out: list[str] = []
    for character in text:
        if character == "\n" and keep_newlines:
            out.append(character)
        elif character in "\t\n\r":
            out.append(" ")
        elif unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co"):
            out.append(f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}")
        else:
            out.append(character)
    return "".join(out)


def fold_nodes(names: tuple[str, ...]) -> str:
    """`node1,node2,node3,db` as `node[1-3],db`; text that is no node name is left as it is."""
    if len(names) <= 1:
        return clean(", ".join(names))
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    try:
        return clean(str(NodeSet.fromlist(list(names))))
    except NodeSetException:
        return clean(", ".join(names))

"""Prints the values that PaddlePaddle's `DistributedStrategy` accepts for each attribute, and for each key of its
sections.
"""

import json
import sys

from google.protobuf.descriptor import FieldDescriptor as Field
from paddle.distributed.fleet import DistributedStrategy
from paddle.distributed.fleet.proto import distributed_strategy_pb2

KINDS = {
    Field.TYPE_BOOL: "bool_or_int",
    Field.TYPE_INT32: "int_or_bool",
    Field.TYPE_FLOAT: "number",
    Field.TYPE_DOUBLE: "number",
    Field.TYPE_STRING: "str",
}
LISTS = {Field.TYPE_STRING: "texts", Field.TYPE_FLOAT: "numbers", Field.TYPE_INT32: "numbers"}
#: Setters that refuse what is no boolean (distributed_strategy.py); the others pass it over with a warning.
STRICT = ("a_sync", "adam_d2sum", "fp16_allreduce")
#: Sections that are filled without a look at their keys.
OPEN = ("hybrid_configs.mp_configs", "hybrid_configs.pp_configs")
#: Degrees that may not be negative (fleet.py, _init_hybrid_parallel_env), and a setter that wants more than 0.
MINIMA = {f"hybrid_configs.{name}_degree": 0 for name in ("mp", "pp", "sep", "sharding", "cp")}


def repeated(field):
    """Return whether a field is a list, in any release of protobuf."""
    found = getattr(field, "is_repeated", None)
    return field.label == Field.LABEL_REPEATED if found is None else bool(found() if callable(found) else found)


def keys(section, message):
    """Yield a row for each field of a message."""
    for field in message.fields:
        key = f"{section}.{field.name}"
        row = {"key": key, "kind": "any"}
        if field.type == Field.TYPE_MESSAGE:
            yield row
            if key in OPEN:
                yield from keys(key, field.message_type)
            continue
        if repeated(field):
            row.update(kind=LISTS.get(field.type, "any"), nullable=True)
        else:
            row["kind"] = KINDS.get(field.type, "any")
            if field.type == Field.TYPE_INT32:
                row["bool_until"] = "3.0"
        if key in MINIMA:
            row["minimum"] = MINIMA[key]
        yield row


def main():
    message = distributed_strategy_pb2.DistributedStrategy.DESCRIPTOR
    fields = {field.name: field for field in message.fields}
    names = {name for name in vars(DistributedStrategy) if not name.startswith("_")} | fields.keys()
    made = []
    for name in sorted(names | {"hybrid_parallel_order", "sync_param_name"}):
        field = fields.get(name)
        if field is not None and field.type == Field.TYPE_MESSAGE and name.endswith("_configs"):
            made.append({"key": name, "kind": "section", "closed": True})
            made.extend(keys(name, field.message_type))
            if name == "hybrid_configs":
                made.append({"key": f"{name}.order", "kind": "any"})
        elif name == "last_comm_group_size_MB":
            made.append({"key": name, "kind": "number", "above": 0})
        else:
            made.append({"key": name, "kind": "exact_bool" if name in STRICT else "any"})
    json.dump(made, sys.stdout)


main()

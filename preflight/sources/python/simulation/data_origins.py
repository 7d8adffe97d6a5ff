"""The origins of a simulated rank's data: items of loops, numbers of rounds, sizes of tensors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from preflight.sources.python.module import last
from preflight.sources.python.simulation.libraries import names, pattern
from preflight.sources.python.simulation.values import (
    AGREED,
    OWN,
    UNKNOWN,
    DictValue,
    External,
    Instance,
    ListValue,
    Own,
    Unknown,
    mixed,
)

if TYPE_CHECKING:
    from preflight.sources.python.simulation.run_state import Event

_DATA = pattern("data_sources")
_NAMES = pattern("data_names")
_DIVIDING = names("dividing_arguments")
#: Functions of libraries that may give each rank its part.
MAY_DIVIDE = pattern("may_divide")
#: Operations whose result has as many items as the data decide.
_SELECTED = re.compile(r"\b(?:nonzero|argwhere|masked_select|unique|nms|batched_nms)\(\)")
_REDUCING = re.compile(r"\b(?:sum|mean|max|min|any|all|numel|size|item|len|pad|prod|norm)\(\)|\.shape\b")
_TAKING = ("index_select()", "gather()", "take()")
_JOINING = ("concat()", "cat()", "concatenate()", "vstack()", "hstack()")
_KEEPING_SIZE = ("detach()", "clone()", "contiguous()", "cuda()", "cpu()", "to()", "float()", "astype()", "cast()")
_LOADERS = ("torch.utils.data.DataLoader", "paddle.io.DataLoader")
_SAMPLER_ARGUMENTS = frozenset(("sampler", "batch_sampler"))
_DISTRIBUTED = ("DistributedSampler", "DistributedBatchSampler")
_WRAPPERS = pattern("model_wrappers")
_SENDS_BUFFERS = re.compile(r"^torch\..*\bDistributedDataParallel\(\)$")
_BUFFERED = pattern("buffered")
#: The attribute of a dictionary that stands for each of its items.
ANY_ITEM = "[]"
#: What only goes through a loader.
_ITERATES = re.compile(r"tqdm|itertools|progress|track")
#: What gives each rank its part of a loader.
_PREPARES = ("prepare", "prepare_data_loader", "setup_dataloaders")
#: Samplers that draw from all of the data.
_UNDIVIDED_SAMPLERS = names("undivided_samplers")
#: Samplers that draw the part of a rank.
_SAMPLERS = ("DistributedSampler()", "DistributedBatchSampler()", "DistributedLengthGroupedSampler()")
#: Values in values are looked into to this depth.
_MAX_NESTING = 3
#: Layers within layers.
_MAX_LAYERS = 6
_LAYERS = pattern("layer_lists")
_SIZED = names("sized")
#: Calls whose result has no data in it.
_COUNTS = ("range", "len", ".items", ".keys", ".values")


def wrapped_model(value: Any) -> Instance | None:
    """Return the user's model that a wrapper calls: DataParallel, a compiler."""
    if not (isinstance(value, External) and value.is_result and _WRAPPERS.search(value.name)):
        return None
    for each in (*value.arguments, *value.keywords.values()):
        if isinstance(each, External):
            each = wrapped_model(each)
        if isinstance(each, Instance):
            return each
    return None


def size_of(value: Any, axis: Any) -> Unknown:
    """Return the origin of a tensor's size: each rank has its own sizes, except for the batch size."""
    is_selected = isinstance(value, External) and _SELECTED.search(value.name) is not None
    return UNKNOWN if axis == 0 and not is_selected else mixed(value)


def is_sized_by_data(value: Any, depth: int = 0) -> bool:
    """Return whether a tensor certainly has as many rows as the data of the rank decide, as those of `nonzero()`."""
    if not isinstance(value, External) or depth > _MAX_LAYERS:
        return False
    if _SELECTED.search(value.name):
        return _REDUCING.search(value.name) is None
    if value.last in _JOINING:
        joined = value.arguments[0] if value.arguments else None
        parts = (joined.items or [joined.item]) if isinstance(joined, ListValue) else joined
        # Rows that are put beside them may fill up what is missing.
        return isinstance(parts, (list, tuple)) and bool(parts) and all(is_sized_by_data(p, depth + 1) for p in parts)
    if value.last in _TAKING:
        return any(is_sized_by_data(each, depth + 1) for each in value.arguments[1:])
    return value.last in _KEEPING_SIZE and is_sized_by_data(value.owner, depth + 1)


def is_sized_by_rank(value: Any) -> bool:
    """Return whether a tensor is made with a size that differs between ranks: `torch.ones(rank + 1)`."""
    if not isinstance(value, External):
        return False
    if value.last in _KEEPING_SIZE:
        return is_sized_by_rank(value.owner)
    sizes = value.arguments if value.last in ("ones()", "zeros()", "empty()", "rand()", "randn()") else ()
    sizes = sizes or (value.arguments[:1] if value.last in ("full()", "arange()") else ())
    return any(isinstance(mixed(each), Own) for each in sizes)


def is_list_of_layers(value: External) -> bool:
    """Return whether each item of a value is a layer."""
    return _LAYERS.search(value.name) is not None


def exchanges_buffers(function: External | None) -> bool:
    """Return whether the forward pass of a wrapped model broadcasts its buffers, in evaluation too."""
    if function is None or not _SENDS_BUFFERS.search(function.name) or not function.arguments:
        return False
    return function.keywords.get("broadcast_buffers", True) is True and _has_buffers(function.arguments[0], 0)


def _has_buffers(layer: Any, depth: int) -> bool:
    """Return whether a model certainly has buffers: running means, or buffers that it registers itself."""
    if depth > _MAX_LAYERS:
        return False
    if isinstance(layer, External):
        return bool(_BUFFERED.search(layer.name)) or any(_has_buffers(each, depth + 1) for each in layer.arguments)
    if isinstance(layer, Instance):
        parts: list[Any] = list(layer.attributes.values())
    else:
        parts = (layer.items or []) if isinstance(layer, ListValue) else []
    return any(_has_buffers(each, depth + 1) for each in parts)


def gives_own_data(value: Any) -> bool:
    """Return whether a loop over a value yields the data of one rank."""
    if not isinstance(value, External):
        return isinstance(mixed(value), Own)
    if value.last == "DataLoader()":
        divides = any(value.keywords.get(name) not in (None, False) for name in _DIVIDING)
        return divides or isinstance(_stream_origin(value), Own)
    return bool(_DATA.search(value.name)) or any(map(gives_own_data, value.arguments))


def _loaded_origin(loader: External) -> Unknown:
    """Return the origin of items from a `DataLoader` that does not divide its data: the same on every rank, unless its
    data are a stream.
    """
    origin = _stream_origin(loader)
    return AGREED if origin is None else origin


def _stream_origin(loader: External) -> Unknown | None:
    """Return OWN for a stream of data that depends on the rank, UNKNOWN for any other; None for data with indices."""
    data = data_of(loader)
    if not isinstance(data, Instance) or data.owner.foreign is None or data.owner.foreign.last != "IterableDataset":
        return None
    return OWN if isinstance(mixed(*data.attributes.values()), Own) else UNKNOWN


def shuffles_all(event: Event) -> bool:
    """Return whether a call certainly creates a loader that shuffles data not divided among the ranks."""
    data = data_of(event)
    divided = isinstance(data, External) and MAY_DIVIDE.search(data.name)
    return (
        event.name in _LOADERS
        and event.doubt < 2
        and _draws_from_all(event.keywords)
        and isinstance(data, (Instance, External))
        and not (divided or isinstance(mixed(data), Own))
    )


def unused_samplers(events: Sequence[Event]) -> list[Event]:
    """The loaders without a sampler of data for which a DistributedSampler is made that no loader gets."""
    sampled = [
        each.arguments[0] for each in events if each.doubt < 2 and last(each.name) in _DISTRIBUTED and each.arguments
    ]
    loaders = [(each, data_of(each)) for each in events if each.name in _LOADERS]
    divided = [data for each, data in loaders if len(each.arguments) > 3 or _SAMPLER_ARGUMENTS & each.keywords.keys()]
    return [
        each
        for each, data in loaders
        if each.doubt < 2
        and isinstance(data, (Instance, External))
        and any(data is other for other in sampled)
        and not any(data is other for other in divided)
    ]


def loaders_in(value: Any, depth: int = 0) -> Iterator[External]:
    """Yield the loaders that the items of a loop may come from: `enumerate(tqdm(loader))`."""
    if isinstance(value, Unknown):
        for each in value.aliases if depth < _MAX_NESTING else ():
            yield from loaders_in(each, depth + 1)
    elif isinstance(value, External) and value.last == "DataLoader()":
        yield value
    elif (
        isinstance(value, External) and depth < _MAX_NESTING and (value.last in _SIZED or _ITERATES.search(value.name))
    ):
        for each in value.arguments:
            yield from loaders_in(each, depth + 1)


def data_of(made: Event | External) -> Any:
    """Return the data of a loader."""
    return made.arguments[0] if made.arguments else made.keywords.get("dataset")


def draws_from_all(sampler: Any) -> bool:
    """Return whether a sampler of a library draws from all of the data on every rank."""
    if not isinstance(sampler, External):
        return False
    if sampler.last == "BatchSampler()" and sampler.name.startswith("torch."):
        inner = sampler.arguments[0] if sampler.arguments else sampler.keywords.get("sampler")
        return draws_from_all(inner)
    return sampler.last in _UNDIVIDED_SAMPLERS or (
        sampler.last in _SAMPLERS and sampler.keywords.get("num_replicas") == 1
    )


def _draws_from_all(keywords: Mapping[str, Any]) -> bool:
    """Return whether a loader with such arguments shuffles all of its data."""
    samplers = [keywords.get(name) for name in sorted(_SAMPLER_ARGUMENTS, reverse=True)]
    given = next((each for each in samplers if each is not None), None)
    if given is None:
        return keywords.get("shuffle") is True
    if not isinstance(given, External):
        return False
    # That of torch is made of another sampler.
    is_batched = given.last == "BatchSampler()" and given.name.startswith("paddle.")
    return given.last == "RandomSampler()" or (is_batched and given.keywords.get("shuffle") is True)


def is_stream_for_all(event: Event) -> bool:
    """Return whether a call makes a loader of a stream, of a user-defined class, that is not divided before."""
    if last(event.name) != "DataLoader" or event.doubt > 1:
        return False
    loader = External("DataLoader()", arguments=event.arguments, keywords=event.keywords)
    data = data_of(event)
    whole = isinstance(data, Instance) and not data.is_open and not gives_own_data(loader)
    return whole and _stream_origin(loader) is UNKNOWN


def size_origin(value: Any) -> Unknown:
    """Return the origin of the number of items of a value: that of its source, unless a sampler makes it equal."""
    if isinstance(value, ListValue):
        return value.size_origin
    if isinstance(value, External) and value.last == "split_dataset_by_node()":
        return OWN if any(map(_is_streamed, value.arguments)) else UNKNOWN
    if not isinstance(value, External) or value.last not in _SIZED:
        return UNKNOWN
    if value.last == "DataLoader()" and value.keywords.keys() & {"sampler", "batch_sampler"}:
        return UNKNOWN
    found = [size_origin(each) for each in (*value.arguments, value.keywords.get("dataset"))]
    if value.owner is not None and value.owner.is_result:
        found.append(size_origin(value.owner))
    if value.last == "zip()":
        return OWN if all(isinstance(each, Own) for each in found[:-1]) else UNKNOWN
    return mixed(*found) if isinstance(mixed(*found), Own) else UNKNOWN


def _is_streamed(value: Any) -> bool:
    """Return whether a set of Hugging Face is read as it is used, so that its length is not known."""
    return isinstance(value, External) and (value.keywords.get("streaming") is True or _is_streamed(value.owner))


def item_of(iterable: Any, written: ast.expr) -> Any:
    """Return the item of one round in a loop over an unknown value."""
    if isinstance(iterable, External):
        if iterable.owner is not None and ANY_ITEM in iterable.owner.attributes:
            item = iterable.owner.attributes[ANY_ITEM]
            return item if iterable.last == "values()" else (UNKNOWN, item) if iterable.last == "items()" else UNKNOWN
        inner = iterable.arguments[0] if iterable.arguments and not is_list_of_layers(iterable) else None
        if iterable.name == "builtins.enumerate()":
            return UNKNOWN, item_of(inner, written)
        if iterable.name == "builtins.zip()":
            return tuple(item_of(each, ast.Constant(None)) for each in iterable.arguments)
        if isinstance(inner, External) and inner.name == "builtins.enumerate()":
            # A bar that shows the progress.
            return item_of(inner, written)
        if is_list_of_layers(iterable):
            return External(f"{iterable.name}[]", owner=iterable)
        if gives_own_data(iterable):
            return OWN
        return _loaded_origin(iterable) if iterable.last == "DataLoader()" else mixed(iterable)
    if isinstance(iterable, ListValue):
        return mixed(iterable) if iterable.item is None else iterable.item
    counts = isinstance(written, ast.Call) and ast.unparse(written.func).endswith(_COUNTS)
    if mixed(iterable) is UNKNOWN and not counts and _NAMES.search(ast.unparse(written)):
        return OWN
    return iterable if isinstance(iterable, Unknown) else UNKNOWN


def is_passed_on(made: Event, events: Sequence[Event]) -> bool:
    """Return whether the result of a call is passed to a library, which may divide it among the ranks:
    `accelerator.prepare(loader)`.
    """
    for event in events:
        if event.name and not _ITERATES.search(event.name):
            given = (*event.arguments, *event.keywords.values())
            if any(holds(each, made.node) for each in given):
                return True
            if last(event.name) in _PREPARES and UNKNOWN in given:
                return True
    return False


def holds(value: Any, call: ast.Call, depth: int = 0) -> bool:
    """Return whether a value is, or has in it, what a call made."""
    if isinstance(value, External):
        return value.call is call
    inner: Iterable[Any] = ()
    if isinstance(value, (ListValue, tuple)):
        inner = (value.items if isinstance(value, ListValue) else value) or ()
    elif isinstance(value, DictValue):
        inner = (value.items or {}).values()
    elif isinstance(value, Instance):
        inner = value.attributes.values()
    return depth < _MAX_NESTING and any(holds(each, call, depth + 1) for each in inner)


def divides_twice(event: Event) -> bool:
    """Return whether a call divides data that is already divided among the ranks.

    Accelerate prepares a loader whose sampler is that of a rank, or the loader gets data that the rank selected by
    number.
    """
    if last(event.name) == "DataLoader":
        return any(_is_of_rank(event.keywords.get(each)) for each in _SAMPLER_ARGUMENTS) and _is_part(data_of(event))
    if last(event.name) not in _PREPARES or not event.name.startswith("accelerate."):
        return False
    loaders = [each for each in event.arguments if isinstance(each, External) and each.last == "DataLoader()"]
    return any(_is_of_rank(each.keywords.get(name)) for each in loaders for name in ("sampler", "batch_sampler"))


def _is_of_rank(sampler: Any) -> bool:
    """Return whether a sampler draws only one rank's share."""
    if isinstance(sampler, External) and sampler.last == "BatchSampler()":
        return _is_of_rank(sampler.arguments[0] if sampler.arguments else sampler.keywords.get("sampler"))
    if isinstance(sampler, External):
        size = sampler.keywords.get("num_replicas", UNKNOWN)
        return sampler.last in _SAMPLERS and size != 1
    if not isinstance(sampler, Instance):
        return False
    extends = sampler.owner.foreign is not None and f"{sampler.owner.foreign.last}()" in _SAMPLERS
    return extends or any(isinstance(each, Own) and each.of_rank for each in map(mixed, sampler.attributes.values()))


def _is_part(data: Any) -> bool:
    """Return whether a rank has taken its part of some data by its number."""
    if isinstance(data, External) and data.last in ("shard()", "split_dataset_by_node()"):
        # Parts of nodes may be divided again.
        is_computed = data.call is None or any(isinstance(each, ast.BinOp) for each in ast.walk(data.call))
        given = map(mixed, (*data.arguments, *data.keywords.values()))
        return not is_computed and any(isinstance(each, Own) and each.of_rank for each in given)
    held = data.attributes.values() if isinstance(data, Instance) else (data,)
    return any(isinstance(each, Own) and each.of_part for each in map(mixed, held))


def samples_other(loader: Event, sampler: Any) -> bool:
    """Return whether a loader's sampler was created for data other than the loader's."""
    data = data_of(loader)
    if not isinstance(sampler, External) or sampler.last not in _SAMPLERS:
        return False
    other = sampler.arguments[0] if sampler.arguments else sampler.keywords.get("dataset")
    if isinstance(data, External) and isinstance(other, External):
        # What is imported may hold anything.
        are_made_here = data.is_result and other.is_result
        return are_made_here and not (_is_made_of(data, other) or _is_made_of(other, data))
    if not isinstance(data, Instance) or not isinstance(other, Instance) or data is other:
        return False
    # Of two objects of one class, what these were made with tells whether they hold the same.
    if data.owner is not other.owner:
        return False
    pairs = [(value, other.attributes.get(name)) for name, value in data.attributes.items()]
    return any(isinstance(a, (str, int)) and isinstance(b, (str, int)) and a != b for a, b in pairs)


def _is_made_of(data: Any, other: External, depth: int = 0) -> bool:
    """Return whether some data are others, or derived from them with possibly the same items: `data.map(f)`; or are
    unknown.
    """
    if not isinstance(data, External) or not data.is_result or depth > _MAX_NESTING:
        return False
    if data is other or data.call is None or other.call is None:
        return True
    if ast.unparse(data.call) == ast.unparse(other.call):
        return True
    return any(_is_made_of(each, other, depth + 1) for each in (data.owner, *data.arguments, *data.keywords.values()))

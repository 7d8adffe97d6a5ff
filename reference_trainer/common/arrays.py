"""The few operations that exact arithmetic needs, on torch tensors or numpy arrays.

Paddle's collectives use numpy arrays, torch's use tensors; the known sums are the same formulas for both. Where an
array is created, `device` is a torch device, or `NUMPY`; elsewhere it follows from the array.
"""

from __future__ import annotations

import hashlib
from typing import Any, Sequence

#: Used instead of a torch device.
NUMPY = "numpy"


def _library(array: Any) -> Any:
    if type(array).__module__.startswith("numpy"):
        import numpy

        return numpy
    import torch

    return torch


def numbers(count: int, device: Any) -> Any:
    """int64[count]: 0, 1, 2 ..."""
    if isinstance(device, str) and device == NUMPY:
        import numpy

        return numpy.arange(count, dtype=numpy.int64)
    import torch

    return torch.arange(count, dtype=torch.int64, device=device)


def zeros(count: int, device: Any) -> Any:
    """float32[count] of zeros."""
    return floats(numbers(count, device)) * 0.0


def table(values: Sequence[float], index: Any) -> Any:
    """float32 of the shape of `index`: the value at each index."""
    library = _library(index)
    if library.__name__ == "numpy":
        return library.array(values, dtype=library.float32)[index]
    return library.tensor(values, dtype=library.float32, device=index.device)[index]


def floats(array: Any) -> Any:
    """Convert to float32."""
    library = _library(array)
    return array.astype(library.float32) if library.__name__ == "numpy" else array.to(library.float32)


def full(value: float, like: Any) -> Any:
    """float32 of the shape of `like`, filled with one value."""
    return floats(like) * 0.0 + value


def stack(arrays: Sequence[Any]) -> Any:
    """Stack arrays along a new first dimension."""
    return _library(arrays[0]).stack(list(arrays))


def wrong(got: Any, expected: Any) -> tuple[int, int]:
    """The number of elements (float32) that differ in any bit, and the first of them in row-major order; (0, -1) for
    none.
    """
    library = _library(got)
    mask = (got.view(library.int32) != expected.view(library.int32)).reshape(-1)
    if library.__name__ == "numpy":
        found = mask.nonzero()[0]
        return len(found), int(found[0]) if len(found) else -1
    found = mask.nonzero().flatten()
    return int(found.numel()), int(found[0]) if found.numel() else -1


def first_wrong(got: Any, expected: Any, where: Any) -> int:
    """The first element that differs in any bit and has a `where` other than 0, row-major; -1 for none."""
    library = _library(got)
    mask = (got.view(library.int32) != expected.view(library.int32)).reshape(-1) & (where != 0)
    found = mask.nonzero()[0] if library.__name__ == "numpy" else mask.nonzero().flatten()
    return int(found[0]) if len(found) else -1


def bits(array: Any, index: int) -> int:
    """The 32 bits of one element of float32, row-major."""
    library = _library(array)
    element = array.reshape(-1)[index : index + 1]
    return int(element.view(library.int32)[0]) & 0xFFFFFFFF


def size(array: Any) -> int:
    """The number of elements."""
    return int(array.size) if _library(array).__name__ == "numpy" else int(array.numel())


def digest(array: Any) -> str:
    """SHA-256 of the bytes of float32, row-major: equal for equal numbers."""
    if _library(array).__name__ == "numpy":
        return hashlib.sha256(array.tobytes()).hexdigest()
    from reference_trainer.ps.store import digest as of_tensors

    return of_tensors([array])

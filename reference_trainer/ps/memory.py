"""Memory that both torch and a socket can use: allocated once, written by the one and read by the other."""

from __future__ import annotations

import ctypes
from typing import Any, Tuple


class Numbers:
    """A flat tensor on the host and the same bytes as a view for sockets.

    Args:
        dtype: a torch dtype; `pinned` memory is what a GPU copies from without a detour.
    """

    def __init__(self, elements: int, *, dtype: Any = None, pinned: bool = False) -> None:
        import torch

        self.tensor = torch.zeros(elements, dtype=dtype or torch.float32, pin_memory=pinned)
        size = elements * self.tensor.element_size()
        self._item = self.tensor.element_size()
        # The array does not own the memory; the tensor beside it does.
        array = (ctypes.c_char * size).from_address(self.tensor.data_ptr()) if size else bytearray()
        self.view = memoryview(array).cast("B")

    def bytes_of(self, begin: int, elements: int) -> memoryview:
        """The bytes of some of the numbers."""
        return self.view[begin * self._item : (begin + elements) * self._item]


def bytes_of(tensor: Any) -> Tuple[memoryview, ...]:
    """The bytes of a contiguous tensor on the host, for sending while the tensor is kept; nothing for an empty one."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return ()
    return (memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B"),)


def empty(rows: int, width: int) -> Tuple[Any, Tuple[memoryview, ...]]:
    """A new float32[rows, width] on the host, to be filled by way of its bytes."""
    import torch

    tensor = torch.empty(rows, width)
    return tensor, bytes_of(tensor)

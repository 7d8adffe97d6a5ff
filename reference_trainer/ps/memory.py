"""Memory that both torch and a socket can use: allocated once, written by the one and read by the other."""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Tuple

#: A view of bytes at an address. An array of `ctypes` would do as well, but each size of one is a class of its own, to
#: be made and collected again.
_view: Any = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)
#: PyBUF_WRITE
_WRITABLE = 0x200


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
        self._integers: Optional[memoryview] = None
        # The view does not own the memory; the tensor beside it does.
        self.view = _view(self.tensor.data_ptr(), size, _WRITABLE) if size else memoryview(bytearray())

    @property
    def integers(self) -> memoryview:
        """The numbers as integers of Python, where they are int64."""
        if self._integers is None:
            self._integers = self.view.cast("q")
        return self._integers

    def bytes_of(self, begin: int, elements: int) -> memoryview:
        """The bytes of some of the numbers."""
        return self.view[begin * self._item : (begin + elements) * self._item]


def bytes_of(tensor: Any) -> Tuple[memoryview, ...]:
    """The bytes of a contiguous tensor on the host, for sending while the tensor is kept; nothing for an empty one."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return ()
    return (_view(tensor.data_ptr(), size, _WRITABLE),)


def empty(rows: int, width: int) -> Tuple[Any, Tuple[memoryview, ...]]:
    """A new float32[rows, width] on the host, to be filled by way of its bytes."""
    import torch

    tensor = torch.empty(rows, width)
    return tensor, bytes_of(tensor)

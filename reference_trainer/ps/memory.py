"""Memory that both torch and a socket can use: allocated once, written by one of them and read by the other."""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any, Optional, Sequence, Tuple

#: A view of bytes at an address. An array of `ctypes` would do as well, but each size is a class of its own, which must
#: be created and collected.
_view: Any = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)
#: PyBUF_WRITE
_WRITABLE = 0x200


class HostTensor:
    """A flat tensor on the host and the same bytes as a view for sockets.

    Args:
        dtype: a torch dtype; `pinned` memory can be copied to a GPU directly. If the system refuses to pin so much,
        ordinary memory is used, which is slower to copy.
    """

    def __init__(self, elements: int, *, dtype: Any = None, pinned: bool = False) -> None:
        import torch

        kind = dtype or torch.float32
        try:
            self.tensor = torch.zeros(elements, dtype=kind, pin_memory=pinned and elements > 0)
        except RuntimeError:
            if not pinned:
                raise
            self.tensor = torch.zeros(elements, dtype=kind)
        size = elements * self.tensor.element_size()
        self._item = self.tensor.element_size()
        self._integers: Optional[memoryview] = None
        # The view does not own the memory; the tensor beside it does.
        self.view = _view(self.tensor.data_ptr(), size, _WRITABLE) if size else memoryview(bytearray())

    @property
    def integers(self) -> memoryview:
        """The numbers as Python integers, if they are int64."""
        if self._integers is None:
            self._integers = self.view.cast("q")
        return self._integers

    def bytes_of(self, begin: int, elements: int) -> memoryview:
        """The bytes of some of the numbers."""
        return self.view[begin * self._item : (begin + elements) * self._item]


def bytes_of(tensor: Any) -> Tuple[memoryview, ...]:
    """The bytes of a contiguous tensor on the host, for sending while the tensor is kept; empty for an empty one."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return ()
    return (_view(tensor.data_ptr(), size, _WRITABLE),)


def empty(rows: int, width: int) -> Tuple[Any, Tuple[memoryview, ...]]:
    """A new float32[rows, width] on the host, to be filled through its bytes."""
    import torch

    tensor = torch.empty(rows, width)
    return tensor, bytes_of(tensor)


def digest(tensors: Sequence[Any]) -> str:
    """SHA-256 over the bytes of these tensors in sequence."""
    found = hashlib.sha256()
    for tensor in tensors:
        # Of a tensor on a GPU this is a copy, which must live as long as the view of its bytes.
        held = tensor.detach().cpu().contiguous()
        for view in bytes_of(held):
            found.update(view)
    return found.hexdigest()

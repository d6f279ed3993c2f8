"""Matrices with red zones: one device buffer, in which every byte that is not an element must stay as it was."""

import torch

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # to compare bits, by element bytes


class Arena:
    """Hands out matrices from one buffer that is filled with `pattern`, at least ZONE bytes apart.

    NaN as the pattern makes a read of padding visible in the result; CANARY shows stray writes.
    """

    ZONE = 512
    NAN = 0xFF  # nothing but ones is a NaN in every dtype here, and -1 in integers
    CANARY = 0xA5

    def __init__(self, size: int, pattern: int):
        self.buffer = torch.empty(size, dtype=torch.uint8, device="cuda")
        self.pattern = pattern
        self.reset()

    def reset(self) -> None:
        self.buffer.fill_(self.pattern)
        self.matrices = []
        self._end = self.ZONE

    def array(self, shape, dtype, strides, offset: int = 0):
        """An array with `strides` in elements, `offset` elements past a 256-byte boundary."""
        start = self._end + offset * dtype.itemsize
        reach = sum(max(size - 1, 0) * stride for size, stride in zip(shape, strides)) + 1
        end = start + reach * dtype.itemsize
        self._end = (end + self.ZONE + 255) // 256 * 256
        if self._end > self.buffer.numel():
            raise MemoryError(f"the arena has {self.buffer.numel()} bytes, {self._end} are needed")
        array = self.buffer.view(dtype).as_strided(shape, strides, start // dtype.itemsize)
        self.matrices.append(array)
        return array

    def matrix(self, rows: int, columns: int, dtype, strides=None, offset: int = 0):
        """A matrix [rows, columns], row-major by default."""
        return self.array((rows, columns), dtype, strides or (columns, 1), offset)

    def poison(self) -> None:
        for matrix in self.matrices:
            matrix.fill_(float("nan"))

    def snapshot(self):
        """The bytes in use, to compare with later."""
        return self.buffer[: self._end].clone()

    def unchanged(self, before) -> bool:
        return torch.equal(self.snapshot(), before)

    def stray_writes(self, before) -> int:
        """How many bytes outside of the matrices differ from the snapshot."""
        after = self.snapshot()
        for matrix in self.matrices:
            place = matrix.size(), matrix.stride(), matrix.storage_offset()
            bits = INTEGERS[matrix.dtype.itemsize]
            after.view(bits).as_strided(*place).copy_(before.view(bits).as_strided(*place))
        return int((after != before).sum())

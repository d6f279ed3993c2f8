"""Matrices with red zones: one device buffer, in which every byte that is not an element must stay as it was."""

import torch

ELEMENT_BYTES = 2


class Arena:
    """Hands out matrices from one buffer that is filled with `pattern`, at least ZONE bytes apart.

    NaN as the pattern makes a read of padding visible in the result; CANARY shows stray writes.
    """

    ZONE = 512
    NAN = 0xFF  # 0xffff is a NaN in float16 and in bfloat16
    CANARY = 0xA5

    def __init__(self, size: int, pattern: int):
        self.buffer = torch.empty(size, dtype=torch.uint8, device="cuda")
        self.pattern = pattern
        self.reset()

    def reset(self) -> None:
        self.buffer.fill_(self.pattern)
        self.matrices = []
        self._end = self.ZONE

    def matrix(self, rows: int, columns: int, dtype, strides=None, offset: int = 0):
        """A matrix [rows, columns] with `strides` in elements (row-major by default), `offset` elements past a
        256-byte boundary."""
        strides = strides or (columns, 1)
        start = self._end + offset * ELEMENT_BYTES
        reach = sum(max(size - 1, 0) * stride for size, stride in zip((rows, columns), strides)) + 1
        end = start + reach * ELEMENT_BYTES
        self._end = (end + self.ZONE + 255) // 256 * 256
        if self._end > self.buffer.numel():
            raise MemoryError(f"the arena has {self.buffer.numel()} bytes, {self._end} are needed")
        matrix = self.buffer.view(dtype).as_strided((rows, columns), strides, start // ELEMENT_BYTES)
        self.matrices.append(matrix)
        return matrix

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
        whole, old = after.view(torch.int16), before.view(torch.int16)
        for matrix in self.matrices:
            place = matrix.size(), matrix.stride(), matrix.storage_offset()
            whole.as_strided(*place).copy_(old.as_strided(*place))
        return int((after != before).sum())

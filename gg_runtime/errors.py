"""The library's own exceptions. Wrong arguments raise ValueError or TypeError instead."""


class UnsupportedError(RuntimeError):
    """This GPU or driver cannot run what was asked for: none there, too old, or no kernel was built for it."""


class ArtifactError(RuntimeError):
    """An embedded kernel is missing, damaged, or does not fit its launcher: reinstall or rebuild the wheel."""


class CudaError(RuntimeError):
    """A call of the CUDA driver failed.

    Attributes:
        call: the driver function, "cuLaunchKernelEx".
        code: its CUresult, 700.
        name: the driver's name for it, "CUDA_ERROR_ILLEGAL_ADDRESS".
    """

    def __init__(self, message: str, call: str, code: int, name: str) -> None:
        super().__init__(message)
        self.call, self.code, self.name = call, code, name

    def __reduce__(self) -> "tuple[type[CudaError], tuple[str, str, int, str]]":
        return type(self), (self.args[0], self.call, self.code, self.name)

"""The ways into gg_runtime.torch, which imports torch: `import gg_runtime` alone never does.

`_C` launches nothing and returns NotImplemented where torch records gradients of an array, but for a product on a GPU,
which it launches and records by itself; and Ellipsis where an array stands for others: one without memory in
`torch.export`, or a DTensor.
"""

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


@functools.cache
def eager() -> Any:
    """gg_runtime.torch.eager: for NotImplemented."""
    return import_module(".torch.eager", __package__)


@functools.cache
def traced() -> Any:
    """gg_runtime.torch.traced: for Ellipsis."""
    return import_module(".torch.traced", __package__)


class _Marks(dict[str, Any]):
    """Attributes of a function that `functools.wraps` does not copy: torch would not read what wraps the function."""

    def keys(self) -> Any:
        return ()

    def __iter__(self) -> Any:
        return iter(())


def traced_by_torch(function: FunctionT) -> FunctionT:
    """Makes torch.compile read gg_runtime.torch.traced's function of this name in place of this one's code.

    By the marks that torch itself leaves on functions that stand before others: the first is read where a function that
    is compiled calls this one, the others where this one is compiled. They cost a call nothing, and need no torch.
    torch.compiler.disable takes what is read for the function itself, and then runs it.
    """
    name = function.__name__

    def read_instead(*args: Any, **kwargs: Any) -> Any:
        from torch.compiler import is_compiling

        from .torch import traced

        return getattr(traced, name)(*args, **kwargs) if is_compiling() else function(*args, **kwargs)

    function.__dict__ = _Marks(
        _torchdynamo_inline=read_instead,
        _torchdynamo_orig_callable=read_instead,
        _torchdynamo_wrapper_id=id(function),
    )
    return function

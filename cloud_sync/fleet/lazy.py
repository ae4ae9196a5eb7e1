"""Libraries of the fleet pipeline, each imported when one of its names is first used.

F, Window: `pyspark.sql.functions` and `pyspark.sql.Window`, or those of the engine that `engine` chose; pa, pc:
`pyarrow` and `pyarrow.compute`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["LOCAL", "F", "Window", "engine", "pa", "pc"]

# Where an engine has its functions and its `Window`.
_SPARK = ("pyspark.sql.functions", "pyspark.sql")
LOCAL = ("lamplighter.cloud_sync.fleet.local.functions", "lamplighter.cloud_sync.fleet.local.functions")
# A thread that Spark calls back has Spark's.
_engine = ContextVar("engine", default=_SPARK)


@contextmanager
def engine(modules: tuple[str, str]) -> Iterator[None]:
    """Frames that are defined meanwhile are those of another engine than Spark."""
    before = _engine.set(modules)
    try:
        yield
    finally:
        _engine.reset(before)


if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql import Window
    from pyspark.sql import functions as F
else:
    # Importing Spark takes a second, and most commands and each batch of a live stream do without it. A machine that
    # collects segments has none of these libraries.
    class _LazyModule:
        def __init__(self, name: str) -> None:
            self._module_name = name

        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module(self._module_name), name)
            setattr(self, name, value)  # the next use of the name finds it here
            return value

    class _Functions:
        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(_engine.get()[0]), name)

    class _Window:
        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(_engine.get()[1]).Window, name)

    F, Window = _Functions(), _Window()
    pa, pc = map(_LazyModule, ("pyarrow", "pyarrow.compute"))

"""Libraries of the fleet pipeline, each imported when one of its names is first used.

F: `pyspark.sql.functions`; pa, pc: `pyarrow` and `pyarrow.compute`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["F", "pa", "pc"]

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
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

    F, pa, pc = map(_LazyModule, ("pyspark.sql.functions", "pyarrow", "pyarrow.compute"))

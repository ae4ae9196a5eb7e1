"""A gateway that notes which functions of the product its event loop calls, in order. Run as `lamplighter`.

At the first SIGUSR1 it begins. At each later one it writes what it has noted into the file `CALLS` beside its
configuration, and begins again.
"""

from __future__ import annotations

import inspect
import json
import signal
import sys
from pathlib import Path
from types import CodeType, FrameType

from lamplighter.gateway import clock
from lamplighter.gateway.__main__ import main as lamplighter
from tests.support.places import ROOT

CALLS = "calls.json"
PRODUCT = ("adapters", "cloud_sync", "engine", "gateway", "ontology")
_GOES_ON = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class CallNotes:
    """calls: (file of the product, qualified name); comprehensions and lambdas belong to those that have them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self._places: dict[CodeType, tuple[str, str] | None] = {}

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        """For `sys.setprofile`."""
        if event != "call":
            return
        code = frame.f_code
        if code not in self._places:
            self._places[code] = _place(code)
        place = self._places[code]
        # A coroutine that is resumed is entered at the line where it waited.
        if place is not None and not (code.co_flags & _GOES_ON and frame.f_lineno != code.co_firstlineno):
            self.calls.append(place)

    def write(self, path: Path) -> None:
        """Writes the calls, whole at once, and forgets them."""
        calls, self.calls = self.calls, []
        new = path.with_suffix(".new")
        new.write_text(json.dumps(calls))
        new.replace(path)


def _place(code: CodeType) -> tuple[str, str] | None:
    path = Path(code.co_filename).resolve()
    if code.co_name.startswith("<") or not path.is_relative_to(ROOT):
        return None
    relative = path.relative_to(ROOT)
    return (str(relative), code.co_qualname) if relative.parts[0] in PRODUCT else None


def main() -> int | None:
    notes = CallNotes()
    path = Path(sys.argv[sys.argv.index("--config") + 1]).with_name(CALLS)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if sys.getprofile() is None:
            sys.setprofile(notes.note)
        else:
            notes.write(path)

    signal.signal(signal.SIGUSR1, on_signal)
    clock.TRUST_S = 3600.0  # or a busy machine's walks would be longer: it looks again in each
    return lamplighter()

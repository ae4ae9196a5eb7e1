"""Why an adapter does not run: the words with which its service ended, from systemd.

The gateway may not read the journal, and a file of the adapter would not tell of an end that it did not see, such as a
lack of memory. systemd keeps the last status of each service (`Supervisor.failures`) and its result, and any user may
ask.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from lamplighter.adapters.specs import ADAPTERS, AdapterSpec
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.tables import count_text
from lamplighter.gateway.monitoring.health.components import NOT_RUNNING
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.systemd import FAILED, UnitState, unit_states

logger = EventLogger(__name__)

# A service is started again 3 s after its end, and its words are gone then.
EVERY_S = 2.0
AGAIN_S = 60.0

AskSystemd = Callable[[Sequence[str]], Mapping[str, UnitState]]


class AdapterServices:
    """connections: of each adapter to the gateway, by its name. Nothing is known before `follow`."""

    def __init__(self, settings: Callable[[], Settings], connections: Counter[str]) -> None:
        self._settings = settings
        self._connections = connections
        self._known: dict[str, UnitState] = {}
        self._words: dict[str, str] = {}

    def absence(self, adapter: str) -> tuple[str, str]:
        """Reason and cure of one that does not run."""
        state, unit = self._known.get(adapter), f"lamplighter-{adapter}"
        if state is not None and state.load != "loaded":
            return f"{NOT_RUNNING}: its service is {state.load}", f"`{state.start}`"
        if state is None or not state.failing:
            return NOT_RUNNING, f"start it: systemctl start {unit}, or lamplighter {adapter}"
        restarts = int(state.restarts or 0)
        if state.running and not restarts:
            return f"{NOT_RUNNING}: it is starting{state.status and ', '}{state.status}", ""
        words = self._words.get(adapter) or f"its service ended ({state.result}, status {state.code})"
        then = "it is started again by itself" if state.state == "activating" else f"then systemctl start {unit}"
        repeated = f", its service was started again {count_text(restarts, 'time', ',')}" if restarts else ""
        return (
            f"{NOT_RUNNING}{repeated}: {words}",
            f"correct this, {then}; `journalctl -u {unit} -n 50` has more",
        )

    async def follow(self, ask: AskSystemd = unit_states) -> None:
        """Asks systemd until cancelled, while an adapter that the settings enable does not run."""
        while True:
            try:
                await self._look(ask)
            except Exception:  # the gateway does its work nevertheless
                logger.exception("state of adapters not determined", again_s=AGAIN_S)
                await asyncio.sleep(AGAIN_S)
            await asyncio.sleep(EVERY_S)

    async def _look(self, ask: AskSystemd) -> None:
        absent = [*self._absent()]
        # In a thread: a program is run.
        told = await asyncio.to_thread(ask, [f"{spec.service}.service" for spec in absent]) if absent else {}
        units = {spec.name: told.get(f"{spec.service}.service") for spec in absent}
        self._known = {name: state for name, state in units.items() if state is not None}
        self._words = {name: one for name, state in self._known.items() if (one := self._last_words(name, state))}

    def _last_words(self, adapter: str, state: UnitState) -> str:
        if state.status.startswith(FAILED):
            return state.status.removeprefix(FAILED)
        return self._words.get(adapter, "") if state.failing else ""

    def _absent(self) -> Iterable[AdapterSpec]:
        settings = self._settings()
        for spec in ADAPTERS:
            if not self._connections[spec.name] and spec.is_enabled(getattr(settings, spec.table)):
                yield spec

"""What an adapter drops: logged once, counted, and listed as a problem in the dataset."""

from __future__ import annotations

from collections.abc import Callable

from lamplighter.adapters.devices.device import Problem
from lamplighter.engine.log_events import EventLogger

# Pairs of topic and reason in the log; further ones are only counted.
WARNINGS_MAX = 1_000
TOPIC_CHARS_SAID = 200

logger = EventLogger(__name__)


class DropWarnings:
    """What is dropped: logged once per topic and reason, so that a faulty device does not fill the journal, and listed
    as a problem.

    kind: of the adapter, such as "mqtt". note: lists a problem. sources: of problems of readings, and of commands.
    """

    def __init__(
        self, kind: str, note: Callable[[Problem], None], *, sources: tuple[str, str] = ("mapping", "command")
    ) -> None:
        self._kind = kind
        self._note = note
        self._reading_source, self._command_source = sources
        self._warned: set[tuple[str, str]] = set()
        # Of what was dropped, repeated problems too.
        self.count = 0

    def reading(self, topic: str, reason: str, *, lost: bool = False) -> None:
        self._add(f"{self._kind} reading dropped", topic, reason, lost=lost)

    def state(self, topic: str, reason: str) -> None:
        """A desired state that is refused; the output logs it."""
        self.count += 1
        self._note(Problem(self._command_source, "", topic, reason))

    def outward(self, topic: str, reason: str) -> None:
        self._add(f"{self._kind} not published or commanded", topic, reason)

    def _add(self, event: str, topic: str, reason: str, *, lost: bool = False) -> None:
        self.count += 1
        if len(topic) > TOPIC_CHARS_SAID:
            topic = f"{topic[:TOPIC_CHARS_SAID]}…"
        self._note(Problem(self._reading_source, "", topic, reason))
        key = (topic, reason)
        if key in self._warned or len(self._warned) > WARNINGS_MAX:
            return
        self._warned.add(key)
        if len(self._warned) > WARNINGS_MAX:
            logger.warning(f"{self._kind} warnings suppressed", kinds=WARNINGS_MAX)
        else:
            report = logger.error if lost else logger.warning
            report(event, topic=topic, reason=reason)

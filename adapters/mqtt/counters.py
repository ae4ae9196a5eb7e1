"""What the adapter counts of readings."""

from __future__ import annotations

from dataclasses import dataclass

from lamplighter.adapters.mqtt.inbox import InboxCounters


@dataclass(slots=True)
class MqttCounters(InboxCounters):
    """Since the adapter was made, also those of its inbox. They count readings, except dropped_unmapped.

    committed: the update is durable; dropped_payload: payload or topic is broken; dropped_unmapped: messages whose
    topic no rule covers; refused: the stream belongs to another topic, or is one too many; rejected: the gateway
    refused it permanently; repeated: dropped or replaced by a newer one, as on_repeat, dead_band and throttle_s say;
    outdated: dropped, as by its own time it is older than the live one.
    """

    committed: int = 0
    dropped_payload: int = 0
    dropped_unmapped: int = 0
    refused: int = 0
    rejected: int = 0
    repeated: int = 0
    outdated: int = 0

    def counts(self) -> dict[str, int]:
        """Those of messages and readings, for the metrics of the gateway."""
        return {
            "messages": self.received,
            "messages_unmapped": self.dropped_unmapped,
            "readings": self.committed,
            "readings_unreadable": self.dropped_payload,
            "readings_refused": self.refused + self.rejected,
            "readings_repeated": self.repeated,
            "readings_outdated": self.outdated,
        }

"""What the settings lack for an application from a template."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lamplighter.adapters.mqtt.sender import not_permitted, permits
from lamplighter.gateway.local_time.times import TimeOfDay
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.templates.values import MadeApplication

if TYPE_CHECKING:
    from lamplighter.gateway.clock import Clock


def clock_notes(clock: Clock, made: MadeApplication) -> list[str]:
    """Why its times do not come."""
    if not made.choice.kept_spans or clock.trusted():
        return []
    return ["warning: the clock is not synchronised, so its times do not come; `lamplighter status` says what to do"]


def lacking_settings(settings: Settings, file: str, made: MadeApplication) -> list[str]:
    """file: the name of the settings file."""
    notes = []
    times = [TimeOfDay.parse(text) for span in made.choice.kept_spans for text in (span.begins, span.ends)]
    if times and not settings.place.is_set:
        notes.append(f"set time_zone and position of [place] in {file}")
    elif any(time.event for time in times) and not settings.place.position:
        notes.append(f"set position of [place] in {file}: it follows the sun")
    if settings.mqtt.model == "event":
        notes.append('warning: it does not see readings over MQTT: mqtt.model is "event", and must be "latest"')
    if made.tables and not settings.mqtt.host:
        notes.append(f"set host of [mqtt] in {file}: the broker of the devices")
    return notes


def permission_notes(settings: Settings, made: MadeApplication) -> list[str]:
    """Why its commands would not be sent, as rules of the dataset; those of files need no permission."""
    topics = [str(table["topic"]) for kind, table in made.tables.items() if kind == "command"]
    return [f"warning: {not_permitted(topic)}" for topic in topics if not permits(settings.mqtt.commands, topic)]

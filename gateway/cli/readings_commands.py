"""The command ``lamplighter readings``: the newest reading of each sensor, whatever rule or device it comes from."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Collection, Iterator

from lamplighter.engine.errors import UnknownResourceError
from lamplighter.engine.terms import lexical
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.console import shorten, table
from lamplighter.gateway.cli.endpoint import RunningDataset, add_reach_options
from lamplighter.gateway.cli.names import directory_of
from lamplighter.gateway.cli.options import complete_names
from lamplighter.gateway.devices.directory import NameDirectory
from lamplighter.gateway.devices.listing import is_confirmed
from lamplighter.gateway.history.names import short_iri
from lamplighter.gateway.texts import comparable, did_you_mean, nearest
from lamplighter.ontology import vocabulary as v

# With the model "event" the readings are in named graphs, and the stream has what all of them share.
_READ = (
    f"{{ ?reading <{v.HAS_SIMPLE_RESULT}> ?value }} UNION {{ ?reading <{v.NIL_REASON}> ?nil }} "
    f"OPTIONAL {{ ?reading <{v.RESULT_TIME}> ?time }} OPTIONAL {{ ?reading <{v.TIME_PROBLEM}> ?problem }} "
)
_QUERY = f"""\
SELECT ?sensor ?feature ?name ?property ?value ?unit ?code ?time ?problem ?graph ?nil ?since ?room WHERE {{
  {{ ?stream <{v.LIVE_OBSERVATION}> ?reading . {_READ} BIND(?reading AS ?about) }}
  UNION {{ GRAPH ?graph {{ ?stream <{v.LIVE_OBSERVATION}> ?reading . {_READ} }} BIND(?stream AS ?about) }}
  ?about <{v.MADE_BY_SENSOR}> ?sensor ; <{v.HAS_FEATURE_OF_INTEREST}> ?feature ; <{v.OBSERVED_PROPERTY}> ?property .
  OPTIONAL {{ ?feature <{v.RDFS_LABEL}> ?name }}
  OPTIONAL {{ ?feature <{v.IN_AREA}>? ?area . ?area <{v.RDF_TYPE}> <{v.AREA}> ; <{v.RDFS_LABEL}> ?room }}
  OPTIONAL {{ ?stream <{v.RECEIVED_FROM}> ?source . ?source <{v.SINCE}> ?since }}
  OPTIONAL {{ ?stream <{v.HAS_UNIT}> ?unit }} OPTIONAL {{ ?stream <{v.UNKNOWN_UNIT}> ?code }}
}}"""


def add_readings_command(command: Adder) -> None:
    readings = command("readings", _readings)
    text = "of a device or feature, or a part of it"
    complete_names(readings.add_argument("name", nargs="?", default="", metavar="NAME", help=text), "device")
    complete_names(readings.add_argument("--room", metavar="NAME", help="only readings in this room"), "room")
    readings.add_argument("--json", action="store_true", help="print one JSON object per sensor and line")
    add_reach_options(readings)


def _readings(options: argparse.Namespace) -> int:
    dataset = RunningDataset(options)
    rows = list(_newest(dataset, options.name, options.room))
    if options.json and rows:
        for row in rows:
            keys = ("name", "observes", "value", "unit", "time", "nil_reason", "confirmed")
            print(json.dumps({key: cell for key, cell in zip(keys, row, strict=True) if cell is not None}))
        return 0
    if not rows:
        _check_name(directory_of(options), options, {row[0] for row in _newest(dataset, "", None)})
        if not options.json:
            of = f" of {options.name!r}" if options.name else ""
            print(f"no readings{of}; `lamplighter devices problems` may say why")
        return 0
    shown = [_cells(*row) for row in rows]
    print(table([("NAME", "OBSERVES", "VALUE", "UNIT", "TIME"), *shown]), end="")
    return 0


def _check_name(directory: NameDirectory, options: argparse.Namespace, shown: Collection[str]) -> None:
    """Raises UnknownResourceError for a name or room that does not exist. A device may not have reported yet. shown:
    the names that have readings."""
    if options.room is not None:
        directory.resolve(options.room, "room")
    kinds = ("device", "sensor", "room")
    if options.name and not directory.select(kinds, search=options.name):
        names = [*shown, *(name for one in directory.select(kinds) for name in (one.name, one.id))]
        raise UnknownResourceError(f"nothing is called {options.name!r}{did_you_mean(nearest(options.name, names))}")


def _cells(
    name: str, observes: str, value: str, unit: str, time: str, nil: str | None, confirmed: bool | None
) -> tuple[str, ...]:
    """The cells of a line; a value that is absent or not confirmed says so."""
    doubt = " (unconfirmed)" if confirmed is False else ""
    return name, observes, value if nil is None else f"({nil})", unit, f"{time}{doubt}"


_Row = tuple[str, str, str, str, str, str | None, bool | None]
"""Name, property, value, unit, time; why there is no value; whether something was heard of it since its broker, device
and adapter came back. None: a value; not known."""


def _newest(dataset: RunningDataset, name: str, in_room: str | None) -> Iterator[_Row]:
    """The newest reading of each sensor, by name and property. Two alike are told apart by the end of the sensor's
    IRI."""
    base = dataset.settings.gateway.base_iri
    newest: dict[str, tuple[str, _Row]] = {}
    for row in dataset.rows(_QUERY):
        sensor, feature, given, property_, value, unit, code, time, problem, graph, nil, since, room = (
            "" if term is None else lexical(term) for term in row
        )
        feature = feature.removeprefix(base)
        if comparable(name) not in comparable(feature) and comparable(name) not in comparable(given):
            continue
        if in_room is not None and comparable(in_room) != comparable(room):
            continue
        observes = short_iri(property_.removeprefix(f"{base}property/"))
        confirmed = is_confirmed(time, since) if since else None
        found = given or feature, observes, value, code or short_iri(unit), time[:19] or problem, nil or None, confirmed
        # With the model "event" the end of a graph's IRI has time and number; a retained reading has no other time.
        order = "/".join(graph.rsplit("/", 2)[1:]) or time.rstrip("Z")
        if newest.get(sensor) != (order, (*found[:-1], False)):  # a reading has a row for each of its sources
            newest[sensor] = max((order, found), newest.get(sensor, (order, found)), key=lambda one: one[0])
    shown = {sensor: found for sensor, (_, found) in newest.items()}
    alike = Counter(found[:2] for found in shown.values())
    for sensor, found in sorted(shown.items(), key=lambda one: (one[1][:2], one[0])):
        which = f" {sensor.rpartition('/')[2]}" if alike[found[:2]] > 1 else ""
        label, observes, value, unit, time, *doubts = found
        texts = [shorten(text) for text in (label, observes + which, value, unit, time)]
        yield (*texts, *doubts)  # type: ignore[misc]

"""Creation of Observations (SensorThings 1.1, 10.2 and 12.3): a reading update, as the MQTT adapter would write it.

A stream with one live observation (model "latest") gets another value and time; a stream that has events gets one more,
in a graph of its own, and keeps the newest `mqtt.events_kept`.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from lamplighter.adapters.literals import FALSE, TRUE, datetime_term
from lamplighter.adapters.mapping.times import AHEAD_MAX, moment
from lamplighter.adapters.model.event import insertion, trimming
from lamplighter.adapters.model.latest import reading_update
from lamplighter.adapters.model.readings import Reading, Stream
from lamplighter.engine.change_log import Cause
from lamplighter.engine.errors import GatewayError, MalformedRequestError, RequestError, UnknownResourceError
from lamplighter.engine.terms import XSD, Term, iri, is_iri, lexical, literal
from lamplighter.gateway.gates.http.sparql import select
from lamplighter.gateway.gates.sensorthings.ids import id_of, term_of
from lamplighter.gateway.gates.sensorthings.reading import ANSWER_BYTES_MAX
from lamplighter.gateway.gates.standards import JsonNumber, decode_json, json_object
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.settings import Settings
from lamplighter.ontology import vocabulary as v

BODY_BYTES_MAX: Final = 1024 * 1024
ROWS_MAX: Final = 1_000  # observations of one CreateObservations request
_SUPPORTED = ("result", "phenomenonTime", "resultTime", "Datastream", "FeatureOfInterest")
_EXPONENT = frozenset("eE")


class NotSupportedError(RequestError):
    """What the standard has and this service does not."""

    code = "not_implemented"
    status = 501


class OutdatedError(RequestError):
    """An observation that is older than the one that the dataset keeps."""

    code = "outdated"
    status = 409


@dataclass(frozen=True)
class _Target:
    """A stream of the dataset. live: the time of its live observation, if it has one (model "latest")."""

    stream: Stream
    latest: bool
    live: datetime | None


class Creation:
    """Creates Observations for one caller. cause: of the updates' records."""

    def __init__(self, runner: Runner, settings: Settings, caller: Caller, cause: Cause) -> None:
        self._runner = runner
        self._base_iri = settings.gateway.base_iri
        self._events_kept = settings.mqtt.events_kept
        self._caller = caller
        self._cause = cause
        self._targets: dict[Term, _Target] = {}

    async def one(self, body: bytes, datastream: Term | None) -> str:
        """The IRI of the new Observation. datastream: that of the path, if it names one. Raises RequestError."""
        return await self._create(json_object(body, 'write one such as {"result": 20.5}'), datastream)

    async def many(self, body: bytes) -> list[str]:
        """As CreateObservations: the IRI of each, or ``error: `` and the reason. Raises RequestError for the whole."""
        found: list[str] = []
        groups = _decoded_list(body)
        if sum(len(group["dataArray"]) for group in groups) > ROWS_MAX:
            raise MalformedRequestError(f"one request may create {ROWS_MAX} Observations; send several")
        for group in groups:
            for row in group["dataArray"]:
                members: dict[str, Any] = {"Datastream": group.get("Datastream")}
                names = [
                    "FeatureOfInterest" if name == "FeatureOfInterest/id" else name for name in group["components"]
                ]
                if not isinstance(row, list) or len(row) != len(names):
                    found.append(f"error: a row has {len(names)} members, in the order of components")
                    continue
                for name, value in zip(names, row, strict=True):
                    members[name] = {"@iot.id": value} if name == "FeatureOfInterest" else value
                try:
                    found.append(await self._create(members, None))
                except GatewayError as error:
                    found.append(f"error: {error}")
        return found

    async def _create(self, members: Mapping[str, Any], datastream: Term | None) -> str:
        for name, value in members.items():
            if name not in _SUPPORTED and value not in (None, {}):
                known = ", ".join(_SUPPORTED)
                raise NotSupportedError(f"{name[:50]!r} is not kept of an Observation; leave it out. Members: {known}")
        named = self._entity_of(members, "Datastream")
        if named is not None and datastream not in (None, named):
            raise MalformedRequestError("Datastream: the path names another one; leave the member out")
        stream = datastream or named
        if stream is None:
            raise MalformedRequestError('Datastream is missing; write {"Datastream": {"@iot.id": "..."}}')
        if "result" not in members:
            raise MalformedRequestError("result is missing; write a number, a string, true or false")
        value, received = _value(members["result"]), datetime.now(UTC)
        time = _time(members, received)
        target = self._targets.get(stream)
        if target is None:
            target = self._targets[stream] = await self._target(stream)
        feature = self._entity_of(members, "FeatureOfInterest")
        if feature not in (None, target.stream.feature):
            have = id_of(lexical(target.stream.feature), self._base_iri)
            raise NotSupportedError(f"FeatureOfInterest: all Observations of this Datastream are of {have!r}")
        reading = Reading(target.stream, value, datetime_term(time), False, received=received, own_time=True)
        if target.latest:
            if target.live is not None and time < target.live <= received:
                raise OutdatedError(
                    f"this Datastream keeps its newest Observation only, and that is of {target.live.isoformat()}; "
                    'set mqtt.model = "event" to keep several'
                )
            await self._update(reading_update(reading, marks=True, compares=True))
            self._targets[stream] = replace(target, live=time)
            return lexical(target.stream.observation)
        tail = f"{lexical(reading.time)}/{uuid.uuid4().hex}"
        inserted = insertion(reading, iri(f"{lexical(stream)}/{tail}"), tail)
        await self._update(f"{trimming(target.stream, self._events_kept - 1)} ;\n{inserted}")
        return f"{lexical(target.stream.observation)}/{tail}"

    def _entity_of(self, members: Mapping[str, Any], name: str) -> Term | None:
        found = members.get(name)
        if found is None:
            return None
        key = found.get("@iot.id") if isinstance(found, dict) else None
        if not isinstance(key, str | int):
            raise NotSupportedError(
                f'{name}: name one that exists, as {{"@iot.id": "..."}}; only Observations are created'
            )
        return term_of(str(key), self._base_iri)

    async def _update(self, sparql: str) -> None:
        await self._runner.updates.update(UpdateCall(sparql, self._cause, caller=self._caller))

    async def _target(self, stream: Term) -> _Target:
        """What the dataset says of a stream. Raises UnknownResourceError."""
        query = f"""
SELECT ?sensor ?property ?feature ?platform ?live ?result ?unit ?time {{
  {stream} a {iri(v.STREAM)} .
  OPTIONAL {{ {stream} {iri(v.LIVE_OBSERVATION)} ?live
    OPTIONAL {{ ?live {iri(v.RESULT_TIME)} ?time }} OPTIONAL {{ ?live {iri(v.HAS_RESULT)} ?result }} }}
  OPTIONAL {{ {stream} {iri(v.HAS_UNIT)} ?unit }}
  BIND(COALESCE(?live, {stream}) AS ?about)
  ?about {iri(v.MADE_BY_SENSOR)} ?sensor ; {iri(v.OBSERVED_PROPERTY)} ?property .
  ?about {iri(v.HAS_FEATURE_OF_INTEREST)} ?feature .
  OPTIONAL {{ ?platform {iri(v.HOSTS)} ?sensor }}
}} ORDER BY ?platform LIMIT 1"""
        found = list((await select(self._runner, self._caller, query, ANSWER_BYTES_MAX)).bindings())
        name = id_of(lexical(stream), self._base_iri)
        if not found:
            raise UnknownResourceError(f"there is no Datastream {name!r} that has a Sensor; take ids from /Datastreams")
        row = found[0]
        live, unit = row.get("live"), row.get("unit")
        named = [row.get(part, "") for part in ("sensor", "property", "feature")]
        if not all(map(is_iri, named)) or (live is not None and not is_iri(live)):
            raise NotSupportedError(f"the Datastream {name!r} is described by blank nodes; it cannot be written")
        sensor, observed, feature = named
        observation = iri(f"{lexical(stream)}/observation") if live is None else live
        result = row.get("result") if live is not None else None
        about = Stream(
            stream,
            observation,
            sensor,
            observed,
            feature,
            row.get("platform", sensor),
            unit if unit is not None and is_iri(unit) else None,
            "",
            None,
            "",
            result if result is not None and is_iri(result) else None,
            condition=f"{stream} a {iri(v.STREAM)} . ",
        )
        return _Target(about, live is not None, moment(lexical(row["time"]), UTC) if "time" in row else None)


def _decoded_list(body: bytes) -> list[dict[str, Any]]:
    found = decode_json(body)
    if not isinstance(found, list) or not all(
        isinstance(group, dict)
        and isinstance(group.get("dataArray"), list)
        and isinstance(names := group.get("components"), list)
        and all(isinstance(name, str) for name in names)
        for group in found
    ):
        raise MalformedRequestError("the body is no array of objects with Datastream, components and dataArray")
    return found


def _value(result: Any) -> Term:
    """The literal of a result; numbers as they came."""
    if isinstance(result, bool):
        return TRUE if result else FALSE
    if isinstance(result, int):
        return literal(str(result), datatype=XSD + "integer")
    if isinstance(result, JsonNumber):
        if not _EXPONENT & set(result):
            return literal(str(result), datatype=XSD + ("decimal" if "." in result else "integer"))
        if math.isfinite(float(result)):
            return literal(str(result), datatype=XSD + "double")
        raise MalformedRequestError(f"result: {result[:50]!r} is larger than any number")
    if isinstance(result, str):
        return literal(result)
    raise NotSupportedError("result: write a number, a string, true or false; objects, arrays and null are not kept")


def _time(members: Mapping[str, Any], received: datetime) -> datetime:
    """The time of the reading: one is kept."""
    times = []
    for name in ("resultTime", "phenomenonTime"):
        text = members.get(name)
        if text is None:
            continue
        if isinstance(text, str) and "/" in text:
            raise NotSupportedError(f"{name}: a reading has an instant, not an interval")
        found = moment(text, None) if isinstance(text, str) and "T" in text else None
        if found is None:
            raise MalformedRequestError(f"{name}: write a time with a zone, such as 2026-11-26T10:00:00Z")
        if found - received > AHEAD_MAX:
            raise MalformedRequestError(f"{name}: {text} is in the future; set the clock of the sender")
        times.append(found)
    if len(set(times)) > 1:
        raise NotSupportedError("a reading has one time; write phenomenonTime only, or both equal")
    return times[0] if times else received

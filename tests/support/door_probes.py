"""What a client reads of a dataset through each door, what it may change there, and what plain SPARQL says of both.

The expectation is of a raw store with nothing but the graphs that the client may read. It shares no code with doors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote

import pyoxigraph as ox

from tests.support.doors_dataset import BASE, DEFAULT, ENTITIES, INBOX, NOTES, rows
from tests.support.running_gateway import Answer

LIVE = "?stream gateway:liveObservation ?o . ?o sosa:hasSimpleResult ?v"
THING = f"/things/{quote(f'{BASE}platform/', safe='')}"
OBSERVED = f"{THING}1/properties/3/observe"
"""The events of stream 3."""
SENSORTHINGS, NGSI, NGSI_RESULT = "/v1.1", "/ngsi-ld/v1/entities", "http://www.w3.org/ns/sosa/hasSimpleResult"
_JSON = {"Content-Type": "application/json"}
Send = Callable[..., Answer]
"""A request of one client: method, target, body, headers."""


@dataclass(frozen=True)
class Permitted:
    """The graphs of a client, as in its permissions."""

    read: Collection[str]
    write: Collection[str]

    def reads(self, graph: str) -> bool:
        return "*" in self.read or graph in self.read

    def writes(self, graph: str) -> bool:
        return "*" in self.write or graph in self.write


class Attempt(NamedTuple):
    """A request that changes something, and the status that is right. graphs: those that it may change, besides new
    ones below them."""

    method: str
    target: str
    body: Any
    status: int
    graphs: Collection[str]


@dataclass(frozen=True)
class DoorProbe:
    """seen: what a client reads; expected: the same by plain SPARQL; targets: further requests, whose answers may not
    depend on what the client may not read; attempts: changes."""

    name: str
    seen: Callable[[Send], Any]
    expected: Callable[[ox.Store, Permitted], Any]
    targets: Collection[str]
    attempts: Callable[[Random, Permitted], Iterator[Attempt]]


def _json(answer: Answer) -> Any:
    assert answer.status == 200, (answer.status, answer.body)
    return answer.json


# --- Web of Things ---


def _things_seen(send: Send) -> Any:
    listed = [one["id"] for one in _json(send("GET", "/things?limit=50"))]
    query = quote("SELECT ?t { ?t a <https://www.w3.org/2019/wot/td#Thing> }")
    found = _json(send("GET", f"/search/sparql?query={query}"))["results"]["bindings"]
    pages = _json(send("GET", "/things?limit=1&format=collection"))
    values = {one: _json(send("GET", f"/things/{quote(one, safe='')}/properties")) for one in listed}
    shown = {one: {name: str(value) for name, value in of.items()} for one, of in values.items()}
    return shown, sorted(row["t"]["value"] for row in found), pages["total"], "next" in pages


def _things_expected(store: ox.Store, permitted: Permitted) -> Any:
    event = "GRAPH ?g { ?s gateway:liveObservation ?o . ?o sosa:hasSimpleResult ?v ; sosa:resultTime ?t }"
    pattern = (
        "?thing sosa:hosts ?part OPTIONAL { { ?o sosa:madeBySensor ?part ; sosa:hasSimpleResult ?v } UNION "
        f"{{ ?s sosa:madeBySensor ?part . {event} }} UNION {{ ?part gateway:desiredState ?v }} }}"
    )
    values: dict[str, dict[str, str]] = {}
    for thing, part, value, _ in sorted(rows(store, pattern, "thing", "part", "v", "t"), key=lambda row: row[3:] + row):
        shown = values.setdefault(thing, {})
        if value:
            shown[part.rpartition("/")[2]] = value
    return values, sorted(values), len(values), len(values) > 1


def _state_set(random: Random, permitted: Permitted) -> Iterator[Attempt]:
    status = 404 if not permitted.reads(DEFAULT) else 204 if permitted.writes(DEFAULT) else 403
    for method, kind in (("PUT", "properties"), ("POST", "actions")):
        yield Attempt(method, f"{THING}2/{kind}/9", random.choice(("ON", "OFF", "on")), status, [DEFAULT])


# --- SensorThings ---


def _streams_seen(send: Send) -> Any:
    made = _json(send("GET", f"{SENSORTHINGS}/Observations?$count=true&$top=50"))
    streams = _json(send("GET", f"{SENSORTHINGS}/Datastreams?$count=true&$expand=Observations($count=true)"))
    page = _json(send("GET", f"{SENSORTHINGS}/Observations?$top=1&$count=true"))
    by_stream = {
        _path(one): (sorted(map(_path, one["Observations"])), one["Observations@iot.count"]) for one in streams["value"]
    }
    results = {_path(one): str(one["result"]) for one in made["value"]}
    return results, made["@iot.count"], by_stream, streams["@iot.count"], page["@iot.count"], "@iot.nextLink" in page


def _path(entity: Mapping[str, Any]) -> str:
    return str(entity["@iot.id"]).replace("~", "/")


def _streams_expected(store: ox.Store, permitted: Permitted) -> Any:
    found = rows(store, f"{{ {LIVE} }} UNION {{ GRAPH ?g {{ {LIVE} }} }}", "stream", "o", "v")
    results = {o.removeprefix(BASE): v for _, o, v in found}
    by_stream = {}
    for (stream,) in rows(store, "?stream a gateway:Stream", "stream"):
        own = sorted(o.removeprefix(BASE) for of, o, _ in found if of == stream)
        by_stream[stream.removeprefix(BASE)] = own, len(own)
    return results, len(results), by_stream, len(by_stream), len(results), len(results) > 1


def _observed(random: Random, permitted: Permitted) -> Iterator[Attempt]:
    seen, result = permitted.reads(DEFAULT), {"result": random.randrange(10)}
    latest = 404 if not seen else 201 if permitted.writes(DEFAULT) else 403
    yield Attempt("POST", f"{SENSORTHINGS}/Datastreams('stream~1')/Observations", result, latest, [DEFAULT])
    event = 404 if not seen else 201 if permitted.writes("*") else 403
    yield Attempt("POST", f"{SENSORTHINGS}/Datastreams('stream~3')/Observations", result, event, [f"{BASE}stream/3/"])


# --- NGSI-LD ---


def _entities_seen(send: Send) -> Any:
    answer = send("GET", f"{NGSI}?local=true&count=true&limit=50&options=keyValues")
    listed = {one["id"]: str(one.get("a", one.get(NGSI_RESULT))) for one in _json(answer)}
    page = send("GET", f"{NGSI}?local=true&count=true&limit=1")
    types = _json(send("GET", "/ngsi-ld/v1/types"))["typeList"]
    alone = [
        one for one in ("urn:e:0", f"{BASE}stream/3") if send("GET", f"{NGSI}/{quote(one, safe='')}").status == 200
    ]
    counts = [int(one.headers["ngsild-results-count"]) for one in (answer, page)]
    return listed, counts, 'rel="next"' in page.headers.get("link", ""), sorted(types), alone


def _entities_expected(store: ox.Store, permitted: Permitted) -> Any:
    kept = f"GRAPH <{ENTITIES}> {{ ?e a ?type OPTIONAL {{ ?e <{_DEFAULT}a> ?n . ?n <{_NGSI_LD}hasValue> ?v }} }}"
    found = {
        e: (kind, v or "None")
        for e, kind, v in rows(store, f"{kept} FILTER(?type != <{_NGSI_LD}Property>)", "e", "type", "v")
    }
    for (stream,) in rows(store, "?stream a gateway:Stream", "stream"):
        own = LIVE.replace("?stream", f"<{stream}>")
        now = [v for (v,) in rows(store, own, "v")]
        events = sorted(rows(store, f"GRAPH ?g {{ {own} ; sosa:resultTime ?t }}", "t", "o", "v"))
        found[stream] = "Stream", (now or [v for _, _, v in events[-1:]] or ["None"])[0]
    types = sorted(
        {"http://lamplighter.example/ns/gateway#Stream" if k == "Stream" else "T" for k, _ in found.values()}
    )
    alone = [one for one in ("urn:e:0", f"{BASE}stream/3") if one in found]
    return {e: v for e, (_, v) in found.items()}, [len(found)] * 2, len(found) > 1, types, alone


_NGSI_LD = "https://uri.etsi.org/ngsi-ld/"
_DEFAULT = f"{_NGSI_LD}default-context/"


def _entity_changed(random: Random, permitted: Permitted) -> Iterator[Attempt]:
    name, may = f"urn:n:{random.randrange(10**9)}", permitted.reads(ENTITIES) and permitted.writes(ENTITIES)
    yield Attempt("POST", NGSI, {"id": name, "type": "T", "a": 1}, 201 if may else 403, [ENTITIES])
    yield Attempt("PATCH", f"{NGSI}/{name}/attrs", {"a": 2}, 204 if may else 403, [ENTITIES])
    yield Attempt("DELETE", f"{NGSI}/{name}", None, 204 if may else 403, [ENTITIES])


# --- Linked Data Notifications ---


def _inbox_seen(send: Send) -> Any:
    listed = send("GET", "/inbox/")
    notes = [send("GET", f"/inbox/{name}") for name in NOTES]
    statuses = {listed.status, *(one.status for one in notes)}
    if statuses != {200}:
        return sorted(statuses)
    [found] = [one for one in listed.json if one["@id"].endswith("/inbox/")]
    contained = [one["@id"].rpartition("/")[2] for one in found.get("http://www.w3.org/ns/ldp#contains", [])]
    return sorted(name for name in contained if name in NOTES)


def _inbox_expected(store: ox.Store, permitted: Permitted) -> Any:
    if not permitted.reads(INBOX):
        return [403]
    found = rows(store, f"GRAPH <{INBOX}> {{ <{INBOX}> <http://www.w3.org/ns/ldp#contains> ?n }}", "n")
    return sorted(name for (iri,) in found if (name := iri.removeprefix(INBOX)) in NOTES)


def _note_sent(random: Random, permitted: Permitted) -> Iterator[Attempt]:
    note = {"@id": "", "http://e/p": random.randrange(10)}
    yield Attempt("POST", "/inbox/", note, 201 if permitted.writes(INBOX) else 403, [INBOX])


PROBES = (
    DoorProbe(
        "wot",
        _things_seen,
        _things_expected,
        (
            "/things?offset=1&limit=1",
            f"{THING}1",
            f"{THING}3",
            f"{THING}2/properties/4",
            f"{THING}1/properties/none",
            f"/search/sparql?query={quote('SELECT (COUNT(*) AS ?n) { ?s ?p ?o }')}",
        ),
        _state_set,
    ),
    DoorProbe(
        "sensorthings",
        _streams_seen,
        _streams_expected,
        (
            f"{SENSORTHINGS}/Things?$expand=Datastreams/Observations&$count=true",
            f"{SENSORTHINGS}/Observations?$filter=result%20gt%204&$orderby=Datastream/id,result%20desc&$count=true",
            f"{SENSORTHINGS}/Observations?$resultFormat=dataArray",
            f"{SENSORTHINGS}/Datastreams('stream~3')/Observations?$top=1&$skip=1&$count=true",
            f"{SENSORTHINGS}/Observations('stream~3~event~0~o')",
            f"{SENSORTHINGS}/Observations('stream~4~event~1~o')/Datastream/Thing",
        ),
        _observed,
    ),
    DoorProbe(
        "ngsild",
        _entities_seen,
        _entities_expected,
        (
            f"{NGSI}?local=true&q={quote(f'{NGSI_RESULT}>4|a>4', safe='')}&count=true&limit=0",
            f"{NGSI}?type=T&offset=1&limit=1&count=true",
            f"{NGSI}/urn:e:1?attrs=a",
            f"{NGSI}/{quote(f'{BASE}stream/4', safe='')}?options=keyValues",
            f"{NGSI}/urn:e:2?attrs=none",
        ),
        _entity_changed,
    ),
    DoorProbe("ldn inbox", _inbox_seen, _inbox_expected, ("/inbox/", f"/inbox/{NOTES[1]}"), _note_sent),
)


def body_of(attempt: Attempt) -> tuple[bytes, dict[str, str]]:
    """The body of an attempt, and its headers."""
    content = _JSON if attempt.target != "/inbox/" else {"Content-Type": "application/ld+json"}
    return (b"", {}) if attempt.body is None else (json.dumps(attempt.body).encode(), content)

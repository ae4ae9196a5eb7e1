"""What is fuzzed: each target takes bytes and asserts what holds for all of them.

Only errors of our own tree may come out, and what has an inverse must survive it. A target returns nothing; it raises
what is a fault.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import google_crc32c
import httpcore
import msgspec
import zstandard
from pymodbus.client import AsyncModbusTcpClient
from pyoxigraph import Store

from lamplighter.adapters.coap.directory import Directory, Registrant, RegistrationError
from lamplighter.adapters.coap.discovery import propose
from lamplighter.adapters.coap.links import links_text, parse_links
from lamplighter.adapters.devices.availability import Availabilities
from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.devices.problems import Problems
from lamplighter.adapters.devices.registry import Registry
from lamplighter.adapters.devices.stored import check_record
from lamplighter.adapters.http.protocol import SAID_BYTES_MAX, HttpDevices
from lamplighter.adapters.http.settings import HttpDevicesSettings
from lamplighter.adapters.mapping import Births, Mapping, ReadingRules, cbor, load_mapping, load_resource_rules, lwm2m
from lamplighter.adapters.mapping.command_payloads import request_payload
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.mapping.expressions import compile_expression
from lamplighter.adapters.mapping.resources import FORMAT_NUMBERS
from lamplighter.adapters.modbus.connection import ModbusConnection, OpenConnection
from lamplighter.adapters.modbus.settings import ModbusSettings
from lamplighter.adapters.modbus.spans import Span
from lamplighter.adapters.model.event import EventModel
from lamplighter.adapters.model.latest import LatestModel
from lamplighter.adapters.model.repeats import Repeats
from lamplighter.adapters.mqtt.discovery.announcements import FORMATS, Announcements
from lamplighter.adapters.mqtt.settings import MqttSettings
from lamplighter.adapters.networks import Networks
from lamplighter.adapters.resources.bodies import read_body
from lamplighter.adapters.resources.exchange import DeviceRequest
from lamplighter.cloud_sync.fleet.collection.segment_check import Bad, Bounds, checked_segment
from lamplighter.engine import Engine
from lamplighter.engine.change_log import Seal, decode, encode
from lamplighter.engine.errors import ConfigurationError, GatewayError, JsapError, PayloadError, UpstreamError
from lamplighter.engine.protocol import requests
from lamplighter.engine.protocol.jsap import parse
from lamplighter.engine.sparql.forced_bindings import bind
from lamplighter.engine.sparql.lexer import tokens
from lamplighter.engine.sparql.requests import parse_query, parse_update
from lamplighter.engine.sparql.skeletons import Lifter
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Term, literal
from lamplighter.gateway.gates.wot.problems import InvalidDescriptionError
from lamplighter.gateway.gates.wot.submitted import device_of, parse_description
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.workers.ad_hoc import GRAPH_FORMATS, Reader
from lamplighter.gateway.workers.rdf_bodies import SMALL_BYTES, RdfBodies
from lamplighter.ontology.vocabulary import HAS_SIMPLE_RESULT
from tests.support.event_loops import run_in_new_loop

_BETWEEN = re.compile(r"(?:[\x20\t\r\n]|#[^\n\r]*)*")
_TERM: Term = "<http://e/x>"
_NOW = datetime(2030, 1, 1, tzinfo=UTC)
_QUOTED = re.compile(r"[0-9]{4,}|secret[a-z]*")
FUZZED_RULES = load_mapping(Path(__file__).parent / "mapping", "http://gateway.example/")
"""Rules of every kind."""
MODBUS_NETWORKS = Networks(("127.0.0.0/8",), "modbus.networks")
FUZZED_DEVICES = HttpDevices(HttpDevicesSettings(), Networks(("127.0.0.0/8",), "http_devices.networks"))
FUZZED_BODIES = load_resource_rules(Path(__file__).parent / "mapping", "http://gateway.example/")


def lexer(data: bytes) -> None:
    """A SPARQL text: its tokens and what is between them are the text; it is taken or refused with an error of ours."""
    text = data.decode("utf-8", "replace")
    position = 0
    for token in tokens(text):
        assert token.text == text[token.start : token.end] != ""
        assert _BETWEEN.fullmatch(text, position, token.start), (position, token)
        position = token.end
    assert _BETWEEN.fullmatch(text, position), position
    assert bind(text, {}) == text
    bind(text, {"a": _TERM})
    with suppress(ValueError):
        lifted = Lifter(lambda prologue, raw: raw).lift(text)
        pieces = iter(lifted.terms)
        assert len(re.findall("\x01[istnd]\x01", lifted.skeleton)) == len(list(pieces))
    for ask in (parse_query, parse_update):
        with suppress(GatewayError):
            ask(text)


def messages(data: bytes) -> None:
    """A message to the WebSocket gate: requests or errors, never an exception; what was read is written and read."""
    for request in requests(data):
        if not isinstance(request, GatewayError):
            again = msgspec.json.decode(msgspec.json.encode(request), type=type(request))
            assert again == request


def segments(data: bytes) -> None:
    """Lines of a segment, with good checksums and a seal that agrees: good, bad, or of a newer program."""
    lines = []
    for line in data.splitlines():
        body = re.sub(rb',"crc":"[^"]*"\}\s*$', b"", line).removesuffix(b"}")
        lines.append(b'%s,"crc":"%08x"}' % (body, google_crc32c.value(body)))
        with suppress(ValueError, ConfigurationError, GatewayError):
            record = decode(lines[-1])
            assert decode(encode(record)[:-1]) == record
            store = QuadStore()
            with suppress(GatewayError):
                store.apply(record.delta)
    content = zstandard.ZstdCompressor().compress(b"".join(line + b"\n" for line in lines))
    first = {"gw": "gw-1", "epoch": 1, "seq": 1}
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        found = msgspec.json.decode(lines[0][: lines[0].rindex(b',"crc"')] + b"}") if lines else None
        first |= {name: found[name] for name in first if isinstance(found, dict) and name in found}
    with suppress(TypeError):
        last = cast(int, first["seq"]) + max(1, len(lines)) - 1
        members = {"first": first["seq"], "last": last, "count": max(1, len(lines)), "bytes": len(content)}
        seal = {"v": 1, "gw": first["gw"], "epoch": first["epoch"], "previous": None} | members
        seal["sha256"] = hashlib.sha256(content).hexdigest()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "segment"
            path.write_bytes(content)
            with suppress(Bad):
                checked = checked_segment(path, json.dumps(seal).encode(), "gw-1", Bounds(2**20, 2**24, 2**20, 2**20))
                assert isinstance(checked.seal, Seal)
                assert checked.seal.count == len(lines)


def bodies(data: bytes) -> None:
    """An RDF document; its first line is the media type. What was read is N-Triples, which are read as the same."""
    name, _, body = data.partition(b"\n")
    media_type = name.decode("ascii", "replace")
    if media_type not in GRAPH_FORMATS or len(body) > SMALL_BYTES:
        return
    # Small documents need no reader.
    documents = RdfBodies(cast(Reader, None))
    with suppress(GatewayError):
        quads = run_in_new_loop(documents.quads(body, media_type, None, "http://e/"))
        text = "".join(f"{quad.to_nquads()}\n" for quad in quads).encode()
        if len(text) <= SMALL_BYTES:
            again = run_in_new_loop(documents.quads(text, "application/n-triples", None, "http://e/"))
            assert len(set(again)) == len(set(quads))


def loads(data: bytes) -> None:
    """A file for `Engine.load`; the first line is its name. What was loaded is dumped and loaded as the same number of
    quads; what was refused has changed nothing."""
    name, _, body = data.partition(b"\n")
    suffixes = name.decode("ascii", "replace").partition(".")[2].replace("/", "")[:40].replace("\0", "")
    engine = Engine()
    engine.update("INSERT DATA { <http://e/s> <http://e/p> 1 }")
    before = engine.dump()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"document.{suffixes}"
        path.write_bytes(body)
        try:
            commit = engine.load(path, bytes_max=2**20)
        except GatewayError:
            assert engine.dump() == before
            return
    assert engine.quad_count == 1 + len(commit.delta.added)
    again = Engine()
    again.load(engine.dump(), "nq")
    assert again.quad_count == engine.quad_count


def profiles(data: bytes) -> None:
    """A JSAP document, and the texts of what it names."""
    try:
        profile = parse(data)
    except JsapError:
        return
    texts: list[tuple[Any, Callable[..., str]]] = [
        (profile.updates, profile.update_text),
        (profile.queries, profile.query_text),
    ]
    for entries, text_of in texts:
        for name, entry in entries.items():
            for value in (None, "1", ["a", 2]):
                with suppress(GatewayError):
                    text_of(name, {}, dict.fromkeys(entry.forced_bindings, value))
    for name in profile.queries:
        with suppress(GatewayError):
            profile.query_address(name)
            profile.subscribe_url(name)


def readings(data: bytes) -> None:
    """A message (first line: topic, the rest: payload) to rules of every kind: readings whose updates the store takes,
    or reasons that do not quote the payload."""
    head, _, payload = data.partition(b"\n")
    topic = head.decode("utf-8", "surrogateescape")
    births = Births()
    for _ in range(2):  # the second time after the births of the first
        found = FUZZED_RULES.readings(topic, payload, retained=False, received=_NOW, births=births)
    repeats, store = Repeats(100), Store()
    models = LatestModel(), EventModel(2, 100)
    for reading in found[:20]:
        if isinstance(reading, PayloadError):
            assert not any(word in str(reading) for word in _QUOTED.findall(payload.decode("latin-1")))
            continue
        kept = repeats.written(reading)
        for model in models if kept else ():
            for text in [model.description(reading.stream), *model.updates(reading)]:
                store.update(text)
    observed = {quad.subject.value for quad in store if quad.predicate.value == HAS_SIMPLE_RESULT}
    assert all(one.startswith("http://gateway.example/observation/") for one in observed)


def coap_bodies(data: bytes) -> None:
    """A body (first line: number of its content format, the rest: body) to rules of every kind: readings whose updates
    the store takes, states, or reasons that do not quote the body. CBOR that is read is written and read."""
    head, _, body = data.partition(b"\n")
    number = int(head) if re.fullmatch(rb"[0-9]{1,5}", head) else None
    store = Store()
    for rule in FUZZED_BODIES.resources:
        with suppress(PayloadError):
            given = read_body(body, number, rule.accepted)
            for one in ReadingRules([rule]).readings(rule.name, given, retained=False, received=_NOW)[:20]:
                if isinstance(one, PayloadError):
                    reason = re.sub("LwM2M resource [0-9/]+", "", str(one))
                    assert not any(word in reason for word in _QUOTED.findall(body.decode("latin-1")))
                    continue
                for text in [LatestModel().description(one.stream), *LatestModel().updates(one)]:
                    store.update(text)
    observed = {quad.subject.value for quad in store if quad.predicate.value == HAS_SIMPLE_RESULT}
    assert all(one.startswith("http://gateway.example/observation/") for one in observed)
    for command in FUZZED_BODIES.commands:
        assert command.state is not None
        with suppress(PayloadError):
            state = command.state.value(read_body(body, number, command.state.accepted), command.uri({}), _NOW)
            if state is not None:
                request_payload(command, state, command.uri({}))
    for place in ("lamp/3303/0", "lamp/3", "readings"):
        with suppress(PayloadError):
            for path, _, value, _, _ in lwm2m.records(body, "lwm2m+tlv", place, _NOW):
                assert re.fullmatch(r"[0-9]+(/[0-9]+){0,3}", path), value
    with suppress(PayloadError):
        document = cbor.decode(body)
        assert cbor.decode(cbor.encode(document)) == document


def http_answers(data: bytes) -> None:
    """The bytes that a web server of a device sends: a reply within the bounds, or a reason."""

    async def replied(request: DeviceRequest) -> None:
        devices, network = FUZZED_DEVICES, httpcore.AsyncMockBackend([data[:7], data[7:]])
        devices._http._pool = httpcore.AsyncConnectionPool(network_backend=network)
        with suppress(PayloadError, UpstreamError):
            reply = await (devices.read if request.method == "GET" else devices.write)(request)
            limit = request.limit if reply.code.startswith("2") else SAID_BYTES_MAX
            assert re.fullmatch(r"[1-9][0-9]{2}", reply.code) and len(reply.body) <= limit
            assert reply.format in (None, *FORMAT_NUMBERS.values())
        await devices.close()

    for request in (
        DeviceRequest("http://127.0.0.1/a", "GET", accept=FORMAT_NUMBERS["json"], limit=100),
        DeviceRequest("http://127.0.0.1/a", "PUT", b"1", FORMAT_NUMBERS["text"]),
    ):
        run_in_new_loop(replied(request))


class PlayedModbusTransport(asyncio.Transport):
    """A connection whose other end answers each request with the same bytes, as asyncio hands them to the library."""

    def __init__(self, protocol: Any, data: bytes) -> None:
        super().__init__()
        self._protocol, self._data = protocol, data

    def write(self, request: Any) -> None:
        head = bytes(request[:2]) + b"\0\0" + (len(self._data) + 1).to_bytes(2) + bytes(request[6:7])
        asyncio.get_running_loop().call_soon(
            self._answered, head[: self._data[0] & 7 if self._data[:1] >= b"\xf0" else 7]
        )

    def _answered(self, head: bytes) -> None:
        try:
            self._protocol.data_received(head + self._data)
        except Exception as error:  # asyncio closes the connection then
            self._protocol.connection_lost(error)

    def close(self) -> None:
        return


def _when_closed(lost: asyncio.Event, connected: bool) -> None:
    if not connected:
        lost.set()


def modbus_answers(data: bytes) -> None:
    """The bytes that a Modbus device sends behind the head of an answer, or behind a part of it: values within their
    bounds, or a reason."""

    async def asked() -> None:
        for entity, quantity in (("holding_register", 2), ("coil", 9)):
            span = Span(1, entity, 0, quantity)  # type: ignore[arg-type]
            for writes in (False, True):
                used = ModbusConnection("127.0.0.1", 502, networks=MODBUS_NETWORKS, timeout_s=0.001)
                lost = asyncio.Event()
                told = partial(_when_closed, lost)
                client = AsyncModbusTcpClient(
                    "127.0.0.1", timeout=0.001, retries=0, reconnect_delay=0, trace_connect=told
                )
                client.ctx.transport = PlayedModbusTransport(client.ctx, data)
                used._open = OpenConnection(client, lost, set())
                with suppress(UpstreamError):
                    if writes:
                        await used.write(span, [1] * quantity, multiple=False)
                    else:
                        found = await used.read(span)
                        assert len(found) == quantity and all(0 <= one <= 65_535 for one in found)
                used.close()

    run_in_new_loop(asked())


def dataset_rules(data: bytes) -> None:
    """The JSON of a rule in the dataset: a rule, or a reason; a rule takes any message."""
    text = data.decode("utf-8", "replace")
    rules = DatasetRules("http://gateway.example/")
    with suppress(ValueError):
        rules.change([("<http://gateway.example/mapping/1>", literal(text))], ())
    coap = DatasetRules("http://gateway.example/", kind="coap")
    with suppress(ValueError):
        coap.change([("<http://gateway.example/mapping/1>", literal(text))], ())
        assert not (coap.problems() and rules.problems())
    for command in coap.resources().commands:
        with suppress(PayloadError):
            uri = command.uri(dict.fromkeys(command.names, "x"))
            request_payload(command, literal("on"), uri, dict.fromkeys(command.names, "x"))
    for rule in rules.streams():
        topic = rule.filter.replace("+", "x").replace("#", "x")
        for payload in (b"1", b"a", b'{"a": 1}', b"[]", b"x" * 256):
            Mapping([rule]).readings(topic, payload, retained=False, received=_NOW)
    with suppress(ValueError):
        compile_expression(text, search=True).search("a" * 256)


def announcements(data: bytes) -> None:
    """Announcements of devices (a line with a topic and a line with a payload each): devices whose updates the store
    takes and whose rules the mapping takes, or problems."""
    known, registry, store = Announcements(FORMATS, devices_max=50), Registry("http://gateway.example/"), Store()
    problems = Problems("http://gateway.example/")
    lines = data.split(b"\n")
    for head, payload in zip(lines[::2], lines[1::2], strict=False):
        changes = known.read("default", head.decode("utf-8", "surrogateescape"), payload)
        for problem in changes.problems:
            store.update(problems.update(problem, _NOW) or "INSERT DATA {}")
        for device in changes.devices:
            assert Device.from_json(device.to_json()) == device
            assert registry.entry([literal(device.to_json()), literal("proposed"), None, None]).device == device
            store.update(registry.announced(None, device, "all") or "")
            for path, rule in registry.rules(device).items():
                rules = DatasetRules("http://gateway.example/")
                rules.replace([(f"<http://gateway.example/{path}>", literal(json.dumps(rule)))])
                assert not rules.problems(), rules.problems()
                for command in rules.commands():
                    assert not set(command.table.topic) & set("+#") and not command.table.topic.startswith("$")
    subjects = {quad.subject.value for quad in store if quad.subject.value.startswith("http://gateway.example/")}
    assert all(re.fullmatch(r"[A-Za-z0-9._~@=+,/:-]+", subject) for subject in subjects)


def links(data: bytes) -> None:
    """A registration at the resource directory (first line: its query, the rest: links), and links of a device: what is
    read is written and read as the same, and a proposed device has resources of its own only."""
    head, _, text = data.partition(b"\n")
    query = head.decode("utf-8", "replace").split("&")
    directory = Directory(lambda: 0.0)
    with suppress(RegistrationError):
        registered = directory.register(query, text, Registrant("coap://192.0.2.7"))
        assert parse_links(links_text(registered.links).encode()) == list(registered.links)
        for found in (directory.lookup_endpoints([]), directory.lookup_resources([])):
            assert links_text(found).encode() or not found
        directory.update(registered.id, query, Registrant("coap://192.0.2.8"))
    for lookup in (directory.lookup_endpoints, directory.lookup_resources):
        with suppress(RegistrationError):
            lookup(query)
    with suppress(PayloadError):
        listed = parse_links(text)
        assert parse_links(links_text(listed).encode()) == listed
        device = propose(listed, base="coap://192.0.2.7", place="/.well-known/core", endpoint=query[0]).device
        if device is not None:
            registry = Registry("http://gateway.example/")
            assert registry.entry([literal(device.to_json()), literal("proposed"), None, None]).device == device
            Store().update(registry.announced(None, device, "all") or "")
            rules = DatasetRules("http://gateway.example/", kind="coap")
            for path, rule in registry.rules(device).items():
                rules.change([(f"<http://gateway.example/{path}>", literal(json.dumps(rule)))], ())
            assert not rules.problems(), rules.problems()
            resources = [one.resource for one in rules.resources().resources]
            resources += [command.uri({}) for command in rules.resources().commands]
            assert len(resources) == len(registry.rules(device))
            assert all(re.fullmatch(r"coap://192\.0\.2\.7/[A-Za-z0-9._~/?&=%-]*", one) for one in resources)


def device_records(data: bytes) -> None:
    """The record of a device in the dataset, which a client may have written: the store takes all updates of a record
    that is read, and topics and parts of it are those of a device."""
    registry, store = Registry("http://gateway.example/"), Store()
    with suppress(ValueError):
        text = literal(data.decode("utf-8", "replace"))
        entry = registry.entry([text, literal("adopted"), literal("name\x1b"), literal("area" * 100)])
        for update in (registry.adoption(entry), registry.ignoring(entry), registry.removal(entry)):
            store.update(update)
        watched = Availabilities()
        watched.replace([entry.device])
        for topic in watched.filters(entry.device.broker):
            assert not set(topic) & set("+#") and not topic.startswith("$")
            watched.read(entry.device.broker, topic, b"online")


def thing_descriptions(data: bytes) -> None:
    """A submitted Thing Description is refused with places, or becomes a device whose record is one of discovery, whose
    rules the adapters take, and whose update has one operation."""
    settings = Settings(
        mqtt=MqttSettings(host="127.0.0.1"),
        http_devices=HttpDevicesSettings(enabled=True),
        modbus=ModbusSettings(enabled=True),
    )
    registry = Registry("http://e/")
    try:
        found = parse_description(data)
        device = device_of(found, found.id or "urn:uuid:1", settings, registry).device
    except InvalidDescriptionError as error:
        assert error.faults and all(fault.field and fault.description for fault in error.faults)
        return
    check_record(Device.from_json(device.to_json()))
    update = registry.announced(None, device, "all")
    assert update is not None
    Engine().update(update)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "lexer": lexer,
    "messages": messages,
    "segments": segments,
    "bodies": bodies,
    "loads": loads,
    "profiles": profiles,
    "readings": readings,
    "coap_bodies": coap_bodies,
    "http_answers": http_answers,
    "modbus_answers": modbus_answers,
    "dataset_rules": dataset_rules,
    "announcements": announcements,
    "links": links,
    "device_records": device_records,
    "thing_descriptions": thing_descriptions,
}
CORPUS = Path(__file__).parent / "corpus"


def corpus(name: str) -> list[Path]:
    """The files of a target, in order."""
    return sorted((CORPUS / name).iterdir())

"""`lamplighter.toml` -> typed settings, read once; each part receives its own table.

security, place: the tables of these names; reasoning: ``[inference]`` and ``[shacl]``; deliveries: ``[webhooks]`` and
``[ldn]``; ``[mqtt]``, ``[coap]``, ``[http_devices]``, ``[modbus]`` and ``[sync]`` belong to their packages; the other
tables are here. Keys of the command line count instead of those of the file (assigned). An unknown key or a bad value
stops the start; the error names file, line and key (refusals). No store is loaded, so that the adapters' processes read
the same model.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.adapters.http.settings import HttpDevicesSettings
from lamplighter.adapters.modbus.settings import ModbusSettings
from lamplighter.adapters.mqtt.settings import MqttSettings
from lamplighter.cloud_sync.settings import GatewayKeys, SyncSettings
from lamplighter.engine.change_log import Missed
from lamplighter.engine.client.files import read_text, reading_problem, toml_document
from lamplighter.engine.client.places import (
    DataFolder,
    File,
    Host,
    ListenPort,
    UrlPath,
    with_absolute_places,
    without_credentials,
)
from lamplighter.engine.delta import DELTA_QUADS_MAX
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.term_bounds import TERM_BYTES_LEAST, TERM_BYTES_MAX, TERM_BYTES_MOST
from lamplighter.engine.terms import iri
from lamplighter.gateway.settings.assigned import AssignedSettings
from lamplighter.gateway.settings.deliveries import EntitySubscriptionSettings, LdnSettings, WebhookSettings
from lamplighter.gateway.settings.place import PlaceSettings, place_faults
from lamplighter.gateway.settings.reasoning import InferenceSettings, ShaclSettings, check_shacl, graph_terms
from lamplighter.gateway.settings.refusals import place_text, refusals
from lamplighter.gateway.settings.security import SecuritySettings

# fsync: updates are acknowledged when they are on the disk, and a power cut loses none of them. interval: acknowledged
# at once and synced every ``log.sync_interval_ms``, which a power cut may lose. off: synced only at the end of a
# segment; a power cut may lose what the kernel has not written, by default half a minute. A killed process loses
# nothing under any of them.
Durability = Literal["fsync", "interval", "off"]

Positive = Annotated[int, msgspec.Meta(ge=1)]


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class GatewaySettings(GatewayKeys, frozen=True, forbid_unknown_fields=True):
    """``[gateway]``. base_iri: the beginning of the IRIs of this gateway's sensors and features; queue_max: normal
    and bulk requests that wait before new ones get 429; log_level: of all three processes, unless ``--verbose`` asks
    for more."""

    base_iri: str = "http://lamplighter.local/"
    queue_max: Positive = 1000
    durability: Durability = "fsync"
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class HttpSettings(_Table, frozen=True):
    """``[http]``: the SPARQL protocol. Port 0 takes a free one. idle_s: how long a client may take to send a request's
    head, to read nothing of its answer, or to leave its connection idle; a body may take a second more for each KiB.
    query_path and update_path may be the same; below graph_store_path each IRI is a graph of its own."""

    host: Host = "127.0.0.1"
    port: ListenPort = 8000
    query_path: UrlPath = "/query"
    update_path: UrlPath = "/update"
    graph_store_path: UrlPath = "/graphs"
    idle_s: Positive = 20
    connections_max: Positive = 256


class WebsocketSettings(_Table, frozen=True):
    """``[websocket]``: subscriptions. Port 0 takes a free one.

    ping_s: interval of pings, and time limit of their answers; compression: of
    messages (RFC 7692), which costs more than it saves on a local network, since the same text is compressed for each
    client; outbox_bytes_max: bytes that may wait for one slow client before it is disconnected; unread_bytes_max:
    unread messages of all network clients, above which the client with the most of them is disconnected;
    unsent_bytes_max: what waits to be sent to all network clients, above which the slowest is disconnected.
    """

    host: Host = "127.0.0.1"
    port: ListenPort = 9000
    path: Annotated[str, msgspec.Meta(pattern=r"^/[^?#\s]*$")] = "/subscribe"
    ping_s: Positive = 20
    compression: bool = False
    outbox_bytes_max: Positive = 4 * 1024 * 1024
    unread_bytes_max: Annotated[int, msgspec.Meta(ge=32 * 1024 * 1024)] = 64 * 1024 * 1024
    unsent_bytes_max: Annotated[int, msgspec.Meta(ge=32 * 1024 * 1024)] = 128 * 1024 * 1024
    connections_max: Positive = 1000
    subscriptions_per_client_max: Positive = 1000


class QuerySettings(_Table, frozen=True):
    """``[query]``: limits of one ad-hoc query, which runs in its own process."""

    time_ms_max: Positive = 30_000
    rows_max: Positive = 1_000_000
    memory_bytes_max: Positive = 1024 * 1024 * 1024
    concurrent_max: Positive = 4


class StoreSettings(_Table, frozen=True):
    """``[store]``. path: folder of the dataset on disk, relative to the data folder; empty keeps it in memory, which is
    faster and suits up to about a million quads. The change log is the source of truth in either case."""

    path: DataFolder = ""


class LimitSettings(_Table, frozen=True):
    """``[limits]``: the cost of one request in the engine's loop, which cannot cancel it.

    query_bytes_max: the text of a client's query or subscription, in UTF-8, which the loop reads; evaluation_ms_max:
    processor time of one evaluation, by the store or by a plan, for an update or for a subscription, and of all that
    one commit has the store evaluate again; an application's reactions to one request may take as much;
    first_result_rows_max: rows of a subscription's first result; result_characters_max: characters of the terms of one,
    and of a notification, each counted in each row that has it; delta_quads_max: quads that the templates of one
    update make, to be deleted and inserted; term_bytes_max: the longest term that may come into the dataset, in
    N-Triples syntax and UTF-8; parse_ms_max, parse_memory_bytes_max: processor time and memory of the process that
    parses a large body.
    """

    query_bytes_max: Positive = 64 * 1024
    evaluation_ms_max: Positive = 500
    first_result_rows_max: Positive = 100_000
    result_characters_max: Positive = 64 * 1024 * 1024
    delta_quads_max: Positive = DELTA_QUADS_MAX
    term_bytes_max: Annotated[int, msgspec.Meta(ge=TERM_BYTES_LEAST, le=TERM_BYTES_MOST)] = TERM_BYTES_MAX
    parse_ms_max: Positive = 20_000
    parse_memory_bytes_max: Positive = 512 * 1024 * 1024


class LogSettings(_Table, frozen=True):
    """``[log]``: the change log.

    segment_bytes_max, segment_s_max: size and age at which a segment is ended and sealed; bytes_max: limit of log,
    snapshots and damaged files on the disk together; snapshot_records: a snapshot is taken after so many
    records, or after a quarter of the number of quads if that is more; recovery: what to do after damage, ``strict``
    refuses to start.
    """

    segment_bytes_max: Positive = 4 * 1024 * 1024
    segment_s_max: Positive = 3600
    bytes_max: Positive = 1024 * 1024 * 1024
    snapshot_records: Positive = 20_000
    sync_interval_ms: Positive = 1000
    recovery: Literal["continue", "strict"] = "continue"


class ResumeSettings(_Table, frozen=True):
    """``[resume]``: subscriptions that outlive their connections. keep_s_max: how long one is kept for an absent
    client, whatever the client asks for; outbox_bytes_max, bytes_max: notifications that are retained for one, and for
    all together."""

    keep_s_max: Positive = 86_400
    outbox_bytes_max: Positive = 1024 * 1024
    bytes_max: Positive = 16 * 1024 * 1024
    subscriptions_max: Positive = 1000


class DelayedSettings(_Table, frozen=True):
    """``[delayed]``. pending_max: how many delayed updates may be pending; missed: the policy for one that was due
    while the gateway was off, unless its request has another."""

    pending_max: Positive = 100_000
    missed: Missed = "run"


class QuotaSettings(_Table, frozen=True):
    """``[quotas]``: limits of one client on shared resources (`gateway.state.quotas`).

    delayed_max, delayed_bytes_max: its pending delayed updates and their texts; subscriptions_max, resumable_max: its
    subscriptions over all connections, and those of them that outlive these; connections_max: at each gate;
    outbox_bytes_max: what waits to be sent to it, over all connections; retained_bytes_max: notifications that are
    retained for its resumable subscriptions.
    """

    delayed_max: Positive = 20_000
    delayed_bytes_max: Positive = 16 * 1024 * 1024
    subscriptions_max: Positive = 2000
    resumable_max: Positive = 250
    connections_max: Positive = 100
    outbox_bytes_max: Positive = 32 * 1024 * 1024
    retained_bytes_max: Positive = 4 * 1024 * 1024


class McpSettings(_Table, frozen=True):
    """``[mcp]``: the queries of applications as tools of the Model Context Protocol, at ``/mcp`` of the HTTP gate.
    updates: whether their updates are tools too; sparql: whether there is a tool for queries of any text; rows_max:
    rows or triples of one answer."""

    enabled: bool = False
    updates: bool = False
    sparql: bool = False
    rows_max: Positive = 100


class SensorThingsSettings(_Table, frozen=True):
    """``[sensorthings]``: the OGC SensorThings API 1.1. path: of its service root; mqtt: new Observations are published
    at the broker of ``[mqtt]``, below the same path, whatever graphs they are in; mqtt_select: lists of properties that
    are also published as ``...?$select=LIST``."""

    enabled: bool = False
    path: UrlPath = "/v1.1"
    mqtt: bool = False
    mqtt_select: tuple[str, ...] = ()


class ChangesSettings(_Table, frozen=True):
    """``[changes]``: the change feed. enabled: whether it is served; any client can then have the gateway copy all that
    it may read."""

    enabled: bool = False


class WotSettings(_Table, frozen=True):
    """``[wot]``: the door for the Web of Things (`gateway.gates.wot`)."""

    enabled: bool = False


class NgsiLdSettings(_Table, frozen=True):
    """``[ngsild]``: entities by NGSI-LD. contexts: URL of a JSON-LD context -> the file that has it, beside the file of
    the settings. subscriptions: notifications of entities, by HTTP."""

    enabled: bool = False
    contexts: dict[str, File] = {}
    subscriptions: EntitySubscriptionSettings = EntitySubscriptionSettings()


class Settings(_Table, frozen=True):
    """The whole file. ``folder`` is where it stands: `mapping/` and `apps/` are beside it."""

    gateway: GatewaySettings = GatewaySettings()
    place: PlaceSettings = PlaceSettings()
    http: HttpSettings = HttpSettings()
    websocket: WebsocketSettings = WebsocketSettings()
    query: QuerySettings = QuerySettings()
    store: StoreSettings = StoreSettings()
    limits: LimitSettings = LimitSettings()
    log: LogSettings = LogSettings()
    resume: ResumeSettings = ResumeSettings()
    delayed: DelayedSettings = DelayedSettings()
    quotas: QuotaSettings = QuotaSettings()
    webhooks: WebhookSettings = WebhookSettings()
    ldn: LdnSettings = LdnSettings()
    inference: InferenceSettings = InferenceSettings()
    shacl: ShaclSettings = ShaclSettings()
    mcp: McpSettings = McpSettings()
    changes: ChangesSettings = ChangesSettings()
    security: SecuritySettings = SecuritySettings()
    mqtt: MqttSettings = MqttSettings()
    coap: CoapSettings = CoapSettings()
    http_devices: HttpDevicesSettings = HttpDevicesSettings()
    modbus: ModbusSettings = ModbusSettings()
    wot: WotSettings = WotSettings()
    sync: SyncSettings = SyncSettings()
    sensorthings: SensorThingsSettings = SensorThingsSettings()
    ngsild: NgsiLdSettings = NgsiLdSettings()


def read_settings(path: Path | None, tables: Collection[str] | None = None, assigned: Iterable[str] = ()) -> Settings:
    """The settings in a file, or the defaults where none is named. Raises ConfigurationError. The error names all
    faults, one a line. tables: the only ones that are read and checked; the others have their defaults. None: all.
    assigned: keys with values that count instead of those of the file, as of ``--set``."""
    assignments = AssignedSettings.parse(assigned)
    if path is None and not assignments.values:
        return Settings()
    document, text = ({}, "") if path is None else _read_document(path)
    assignments.put_into(document)

    def place(*names: str) -> str:
        return assignments.place(names) or place_text(path or Path("lamplighter.toml"), text, *names)

    read = document if tables is None else {name: document[name] for name in tables if name in document}
    try:
        settings = msgspec.convert(read, Settings)
    except msgspec.ValidationError as error:
        raise ConfigurationError(without_credentials("\n".join(refusals(place, read, Settings)), read)) from error
    settings, misplaced = with_absolute_places(settings, path.parent if path else Path())
    faults = [*misplaced, *_own_faults(settings)]
    if faults:
        refused = "\n".join(f"{place(*names)}: {'.'.join(names)}: {what}" for names, what in faults)
        raise ConfigurationError(without_credentials(refused, read))
    return settings


def _read_document(path: Path) -> tuple[dict[str, Any], str]:
    """The document and the text of a file. Raises ConfigurationError."""
    try:
        text = read_text(path)
        return toml_document(text), text
    except OSError as error:
        raise ConfigurationError(
            f"{path}: {reading_problem(error, path, 'name another file with --config')}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        cure = "; write the keys of a table in one place" if "Cannot declare" in str(error) else ""
        raise ConfigurationError(f"{path}: not TOML: {error}{cure}") from error


def _own_faults(settings: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    """What is wrong with IRIs: the table and its key, and the problem."""
    checks: list[tuple[tuple[str, str], Callable[[], object]]] = [
        (("gateway", "base_iri"), lambda: _check_base_iri(settings.gateway.base_iri)),
        (("inference", "graphs"), lambda: graph_terms(settings.inference.graphs)),
        (("inference", "ontologies"), lambda: graph_terms(settings.inference.ontologies)),
    ]
    for names, check in checks:
        try:
            check()
        except ValueError as error:
            yield names, str(error)
    for key, problem in place_faults(settings.place):
        yield ("place", key), problem
    try:
        check_shacl(settings.shacl)
    except ValueError as error:
        key, problem = error.args
        yield ("shacl", key), problem


def _check_base_iri(base_iri: str) -> None:
    """Raises ValueError."""
    iri(base_iri)
    if not urlsplit(base_iri).scheme:
        raise ValueError(f"{base_iri!r} is not an absolute IRI such as http://gateway.example/")

"""The silver tables once more: by replaying the change logs into pyoxigraph and asking SPARQL, and in SQL by DuckDB.

Neither has code in common with the pipeline. Rows are dicts by column, times in microseconds since 1970.
"""

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyoxigraph as ox

from lamplighter.cloud_sync.fleet.lake import Lake, tables
from lamplighter.engine.change_log import Record

Row = dict[str, Any]
Rows = list[Row]

_PREFIXES = {
    "sosa": "http://www.w3.org/ns/sosa/",
    "gateway": "http://lamplighter.example/ns/gateway#",
    "lighting": "http://lamplighter.example/ns/lighting#",
    "qudt": "http://qudt.org/schema/qudt/",
    "rdfs": "http://www.w3.org/2000/01/rdf-schema#",
}
_XSD = "http://www.w3.org/2001/XMLSchema#"
_NUMERIC = {_XSD + name for name in ("integer", "decimal", "double")}

_STREAMS = """
SELECT ?stream ?sensor ?property ?feature ?platform ?unit ?observation ?topic ?label ?latitude ?longitude WHERE {
  ?stream a gateway:Stream .
  OPTIONAL { ?stream gateway:liveObservation ?observation }
  BIND(COALESCE(?observation, ?stream) AS ?said)
  OPTIONAL { ?said sosa:madeBySensor ?sensor OPTIONAL { ?platform sosa:hosts ?sensor } }
  OPTIONAL { ?said sosa:observedProperty ?property }
  OPTIONAL {
    ?said sosa:hasFeatureOfInterest ?feature
    OPTIONAL { ?feature lighting:hasLatitude ?latitude }
    OPTIONAL { ?feature lighting:hasLongitude ?longitude }
  }
  OPTIONAL { ?stream qudt:hasUnit ?unit }
  OPTIONAL { ?stream gateway:mqttTopic ?topic }
  OPTIONAL { ?stream rdfs:label ?label }
}
"""
_ABOUT = """
SELECT ?stream ?sensor ?property ?feature ?time ?actuator WHERE { GRAPH_HERE {
  OPTIONAL { ?stream gateway:liveObservation SUBJECT }
  OPTIONAL { SUBJECT sosa:madeBySensor ?sensor }
  OPTIONAL { SUBJECT sosa:observedProperty ?property }
  OPTIONAL { SUBJECT sosa:hasFeatureOfInterest ?feature }
  OPTIONAL { SUBJECT sosa:resultTime ?time }
  OPTIONAL { SUBJECT sosa:madeByActuator ?actuator }
} }
"""


class Replay:
    """The tables of one gateway. Give it every record in order: `state` is its dataset, and `tables` is complete."""

    def __init__(self, note: Callable[[Record, ox.Store], None] = lambda record, store: None) -> None:
        self.tables: dict[str, Rows] = {"streams": [], "observations": [], "actuations": []}
        self.state = ox.Store()
        self._live: dict[str, Row] = {}
        self._note = note

    def play(self, records: Iterable[Record]) -> "Replay":
        for record in records:
            if record.type == "commit":
                self._commit(record)
            self._note(record, self.state)
        return self

    def _commit(self, record: Record) -> None:
        def parsed(quads: Iterable[Any]) -> list[ox.Quad]:
            return list(ox.parse("\n".join(quad.to_nquads() for quad in quads), ox.RdfFormat.N_QUADS))

        for quad in parsed(record.d):
            self.state.remove(quad)
        added, kept = parsed(record.a), parsed(record.k)
        self.state.extend(added)
        self._describe(record)
        if record.cause is None or record.cause.kind != "restore":
            for quad in (*added, *kept):
                if quad.predicate.value == _PREFIXES["sosa"] + "hasSimpleResult":
                    self._result(record, quad, quad in added)
                elif quad.predicate.value == _PREFIXES["lighting"] + "hasStatus":
                    row = self._named(record, "command", quad.subject, quad.object, quad in added)
                    self.tables["actuations"].append(row)

    def _ask(self, query: str) -> list[Row]:
        found = self.state.query(query, prefixes=_PREFIXES)
        names = [variable.value for variable in found.variables]
        return [dict(zip(names, solution, strict=True)) for solution in found]

    def _describe(self, record: Record) -> None:
        now = {}
        for found in self._ask(_STREAMS):
            row = {name: None if term is None else term.value for name, term in found.items()}
            for name in ("latitude", "longitude"):
                row[name] = _number(row[name])
            now[row["stream"]] = row
        for stream in self._live.keys() | now.keys():
            before, after = self._live.get(stream), now.get(stream)
            if before is not None and {name: before[name] for name in after or ()} != after:
                before |= {"until_epoch": record.epoch, "until_seq": record.seq, "until": _us(record.ts)}
                del self._live[stream]
            if after is not None and stream not in self._live:
                since = {"gw": record.gw, "epoch": record.epoch, "seq": record.seq, "since": _us(record.ts)}
                row = {**after, **since, "until_epoch": None, "until_seq": None, "until": None}
                self._live[stream] = row
                self.tables["streams"].append(row)

    def _result(self, record: Record, quad: ox.Quad, new: bool) -> None:
        here = "GRAPH " + str(quad.graph_name) if quad.graph_name != ox.DefaultGraph() else ""
        [about] = self._ask(_ABOUT.replace("GRAPH_HERE", here).replace("SUBJECT", str(quad.subject)))
        if about["actuator"] is not None:
            row = self._named(record, "acknowledged", about["actuator"], quad.object, new)
            self.tables["actuations"].append({**row, "result_time": _time(about["time"])})
            return
        named = {
            name: None if about[name] is None else about[name].value
            for name in ("stream", "sensor", "property", "feature")
        }
        known = self._live.get(named["stream"] or "", {})
        if here == "" and not known:
            # Nobody says what the observation is of: no stream is described.
            named = dict.fromkeys(named)
        stream = named["stream"] or named["sensor"] or quad.subject.value
        value = quad.object.value
        kind = quad.object.datatype.value if isinstance(quad.object, ox.Literal) else None
        self.tables["observations"].append(
            {
                **_named(record),
                "observation": quad.subject.value,
                "graph": None if here == "" else quad.graph_name.value,
                **{name: named[name] for name in ("sensor", "property", "feature")},
                "stream": stream,
                "unit": known.get("unit"),
                "value": value,
                "datatype": kind,
                "number": _number(value) if kind in _NUMERIC else None,
                "flag": value == "true" if kind == _XSD + "boolean" else None,
                "result_time": _time(about["time"]),
            }
        )

    def _named(self, record: Record, kind: str, actuator: Any, value: Any, changed: bool) -> Row:
        cause = record.cause
        return {
            **_named(record),
            "kind": kind,
            "actuator": actuator.value,
            "value": value.value,
            "datatype": value.datatype.value,
            "changed": changed,
            "result_time": None,
            "cause_kind": cause.kind if cause else None,
            "cause_id": cause.id if cause else None,
            "cause_seq": cause.seq if cause else None,
        }


def _named(record: Record) -> Row:
    return {
        "gw": record.gw,
        "epoch": record.epoch,
        "seq": record.seq,
        "arrival": _us(record.ts),
        "trusted": record.trusted,
        "boot": record.boot,
        "boottime_us": record.boottime_us,
    }


def _us(text: str) -> int:
    found = datetime.fromisoformat(text)
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    delta = found - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def _time(term: Any) -> int | None:
    if term is None or term.datatype.value != _XSD + "dateTime":
        return None
    return _us(term.value)


def _number(text: str | None) -> float | None:
    try:
        found = float(text or "")
    except ValueError:
        return None
    return found if abs(found) < float("inf") else None


# --- DuckDB -----------------------------------------------------------------------------------------------

_QUADS = "VARCHAR[][]"
_RECORDS = f"""
CREATE TABLE records AS
SELECT gw, epoch, seq, epoch_us(ts) AS ts, trusted, boot, boottime_us, type, cause.kind AS cause_kind,
  cause.id AS cause_id, cause.seq AS cause_seq, request, d, a, k, graphs.created AS created, graphs.dropped AS dropped,
  timer, cancel, gap, subscribe, unsubscribe, regexp_extract(filename, '[^/]+/[^/]+$') AS segment
FROM read_json($1, format = 'newline_delimited', filename = true, columns = {{
  gw: 'VARCHAR', epoch: 'INTEGER', seq: 'BIGINT', ts: 'TIMESTAMPTZ', trusted: 'BOOLEAN', boot: 'VARCHAR',
  boottime_us: 'BIGINT', type: 'VARCHAR', cause: 'STRUCT(kind VARCHAR, id VARCHAR, seq BIGINT)', request: 'VARCHAR',
  d: '{_QUADS}', a: '{_QUADS}', k: '{_QUADS}', graphs: 'STRUCT(created VARCHAR[], dropped VARCHAR[])',
  timer: 'JSON', cancel: 'VARCHAR', gap: 'JSON', subscribe: 'JSON', unsubscribe: 'VARCHAR'}})
"""
_ASSERTED = """
CREATE TABLE asserted AS
SELECT * EXCLUDE (q, d, a, k), q[1] AS s, q[2] AS p, q[3] AS o, q[4] AS g FROM (
  SELECT *, unnest(a) AS q, true AS changed FROM records
  UNION ALL SELECT *, unnest(k) AS q, false AS changed FROM records
) WHERE type = 'commit' AND cause_kind IS DISTINCT FROM 'restore'
"""
_MACROS = (
    """CREATE MACRO iri(t) AS t[2:-2]""",
    """CREATE MACRO plain(t) AS CASE WHEN t[1] = '<' THEN t[2:-2]
         ELSE json_extract_string('{"v":' || regexp_extract(t, '^".*"') || '}', '$.v') END""",
    """CREATE MACRO kind(t) AS CASE WHEN t[1] = '"' THEN CASE
         WHEN regexp_matches(t, '"@[A-Za-z0-9-]+$') THEN 'http://www.w3.org/1999/02/22-rdf-syntax-ns#langString'
         WHEN regexp_matches(t, '"\\^\\^<[^<>"]*>$') THEN regexp_extract(t, '<([^<>"]*)>$', 1)
         ELSE 'http://www.w3.org/2001/XMLSchema#string' END END""",
    """CREATE MACRO moment(t) AS CASE WHEN kind(t) = 'http://www.w3.org/2001/XMLSchema#dateTime'
         THEN epoch_us(TRY_CAST(plain(t) AS TIMESTAMPTZ)) END""",
)
_SOSA = "<http://www.w3.org/ns/sosa/"
_ABOUT_SQL = f"""
CREATE TABLE about AS
SELECT gw, epoch, seq, s, g, any_value(o) FILTER (p = '{_SOSA}madeBySensor>') AS sensor,
  any_value(o) FILTER (p = '{_SOSA}observedProperty>') AS property,
  any_value(o) FILTER (p = '{_SOSA}hasFeatureOfInterest>') AS feature,
  any_value(o) FILTER (p = '{_SOSA}resultTime>') AS time,
  any_value(o) FILTER (p = '{_SOSA}madeByActuator>') AS actuator
FROM asserted GROUP BY ALL
"""
_RESULTS = f"""
CREATE TABLE results AS
SELECT r.*, b.sensor, b.property, b.feature, b.time, b.actuator, l.s AS stream
FROM asserted r JOIN about b ON r.gw = b.gw AND r.epoch = b.epoch AND r.seq = b.seq AND r.s = b.s
  AND r.g IS NOT DISTINCT FROM b.g
LEFT JOIN asserted l ON l.gw = r.gw AND l.epoch = r.epoch AND l.seq = r.seq AND l.o = r.s
  AND l.p = '<http://lamplighter.example/ns/gateway#liveObservation>'
WHERE r.p = '{_SOSA}hasSimpleResult>'
"""
_NAMES = "r.gw, r.epoch, r.seq, r.ts AS arrival, r.trusted, r.boot, r.boottime_us"
_OBSERVATIONS = f"""
SELECT {_NAMES}, iri(r.s) AS observation, iri(r.g) AS graph,
  coalesce(k.stream, iri(r.stream), iri(r.sensor), iri(r.s)) AS stream,
  coalesce(iri(r.sensor), k.sensor) AS sensor, coalesce(iri(r.property), k.property) AS property,
  coalesce(iri(r.feature), k.feature) AS feature, k.unit, plain(r.o) AS value, kind(r.o) AS datatype,
  CASE WHEN regexp_matches(kind(r.o), '#(integer|decimal|double)$') AND isfinite(TRY_CAST(plain(r.o) AS DOUBLE))
    THEN TRY_CAST(plain(r.o) AS DOUBLE) END AS number,
  CASE WHEN kind(r.o) LIKE '%#boolean' THEN plain(r.o) = 'true' END AS flag, moment(r.time) AS result_time
FROM results r LEFT JOIN streams k ON k.gw = r.gw
  AND (k.observation = iri(r.s) OR k.stream = iri(r.stream))
  AND (r.epoch, r.seq) >= (k.epoch, k.seq)
  AND (k.until_seq IS NULL OR (r.epoch, r.seq) < (k.until_epoch, k.until_seq))
WHERE r.actuator IS NULL
"""
_ACTUATIONS = f"""
SELECT {_NAMES}, 'acknowledged' AS kind, iri(r.actuator) AS actuator, plain(r.o) AS value, kind(r.o) AS datatype,
  r.changed, moment(r.time) AS result_time, r.cause_kind, r.cause_id, r.cause_seq
FROM results r WHERE actuator IS NOT NULL
UNION ALL SELECT {_NAMES}, 'command', iri(r.s), plain(r.o), kind(r.o), r.changed, NULL, r.cause_kind,
  r.cause_id, r.cause_seq
FROM asserted r WHERE r.p = '<http://lamplighter.example/ns/lighting#hasStatus>'
"""
_HEALTH = """
SELECT gw, epoch, boot, ts // 3600000000 * 3600000000 AS hour, count(*) AS records,
  count(*) FILTER (type = 'commit') AS commits, count(*) FILTER (type = 'timer') AS timers,
  count(*) FILTER (type = 'gap') AS gaps, coalesce(sum(len(a)), 0)::BIGINT AS quads_added,
  coalesce(sum(len(d)), 0)::BIGINT AS quads_deleted, count(*) FILTER (NOT trusted) AS untrusted, min(seq) AS first_seq,
  max(seq) AS last_seq, min(ts) AS first_ts, max(ts) AS last_ts,
  coalesce(sum((gap ->> 'last')::BIGINT - (gap ->> 'first')::BIGINT + 1), 0)::BIGINT AS lost,
  min(ts - boottime_us) AS offset_min_us, max(ts - boottime_us) AS offset_max_us, 0::BIGINT AS ahead, NULL AS landed
FROM records GROUP BY ALL
"""
_STREAM_TYPES = """
CREATE TABLE streams (gw VARCHAR, stream VARCHAR, sensor VARCHAR, property VARCHAR, feature VARCHAR, unit VARCHAR,
  observation VARCHAR, epoch INTEGER, seq BIGINT, until_epoch INTEGER, until_seq BIGINT)
"""


TABLES = {"observations": _OBSERVATIONS, "actuations": _ACTUATIONS, "gateway_health": _HEALTH}
"""SQL over what `read_segments` and `prepare` set up."""


def read_segments(connection: duckdb.DuckDBPyConnection, segments: Iterable[Path]) -> None:
    """The table `records`."""
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(_RECORDS, [[str(path) for path in segments]])


def prepare(connection: duckdb.DuckDBPyConnection) -> None:
    """What `TABLES` need besides `records` and `streams`, of which the latter is there already."""
    for statement in (*_MACROS, _ASSERTED, _ABOUT_SQL, _RESULTS):
        connection.execute(statement)


def of_duckdb(segments: Iterable[Path], streams: Rows) -> dict[str, Rows]:
    """Tables from landed segments; streams: the rows of that table."""
    with duckdb.connect() as connection:
        read_segments(connection, segments)
        connection.execute(_STREAM_TYPES)
        names = [column.split()[0] for column in _STREAM_TYPES.partition("(")[2].split(",")]
        values = [[row[name] for name in names] for row in streams]
        connection.executemany(f"INSERT INTO streams VALUES ({', '.join('?' * len(names))})", values)
        prepare(connection)
        return {"bronze": _rows(connection, "FROM records")} | {
            name: _rows(connection, sql) for name, sql in TABLES.items()
        }


def of_lake(lake: Lake, name: str) -> Rows:
    """A table of the lake as it is in its files, read by DuckDB as docs/fleet-tables.md says."""
    files = [
        lake.path(batches.name, file)
        for batches in [tables.table(lake, name)]
        for one in batches.live()
        for file in one.files
    ]
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        times = [column.split()[0] for column in tables.SCHEMAS[name].split(",") if column.split()[1:] == ["TIMESTAMP"]]
        converted = ", ".join(f"epoch_us({time}) AS {time}" for time in times)
        sql = f"SELECT * REPLACE ({converted}) FROM read_parquet($1, hive_partitioning = false)"
        return _rows(connection, sql, [files])


def _rows(connection: duckdb.DuckDBPyConnection, sql: str, parameters: list[Any] | None = None) -> Rows:
    found = connection.execute(sql, parameters or [])
    names = [column[0] for column in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def bronze_row(row: Row) -> Row:
    """A row of bronze in one form for both: quads as lists, JSON parsed."""
    quads = {
        name: None
        if row[name] is None
        else [list(q.values()) if isinstance(q, dict) else [*q, None][:4] for q in row[name]]
        for name in ("d", "a", "k")
    }
    members = {name: None if row[name] is None else json.loads(row[name]) for name in ("timer", "gap", "subscribe")}
    return {"landed": None, **row, **quads, **members}


def differences(found: Rows, expected: Rows) -> tuple[Rows, Rows]:
    """Rows that only one of them has, a few of each."""

    def keyed(rows: Rows) -> dict[str, Row]:
        return {repr(sorted(row.items())): row for row in rows}

    ours, theirs = keyed(found), keyed(expected)
    assert len(ours) == len(found), "a row is there twice"
    only_ours, only_theirs = sorted(ours.keys() - theirs.keys())[:3], sorted(theirs.keys() - ours.keys())[:3]
    return [ours[key] for key in only_ours], [theirs[key] for key in only_theirs]

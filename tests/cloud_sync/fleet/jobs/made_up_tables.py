"""Silver tables of a small fleet with everything that goes wrong with clocks, sensors and lamps: rows, Parquet."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import msgspec

Row = dict[str, Any]

BASE = "http://lamplighter.local/"
LIGHTING = "http://lamplighter.example/ns/lighting#"
CELSIUS = "http://qudt.org/vocab/unit/DEG_C"
FAHRENHEIT = "http://qudt.org/vocab/unit/DEG_F"
START = datetime(2026, 6, 1, tzinfo=UTC)

_MOMENT = "arrival TIMESTAMPTZ, trusted BOOLEAN, boot VARCHAR, boottime_us BIGINT"
COLUMNS = {
    "streams": """gw VARCHAR, stream VARCHAR, sensor VARCHAR, property VARCHAR, feature VARCHAR, platform VARCHAR,
        unit VARCHAR, observation VARCHAR, topic VARCHAR, label VARCHAR, latitude DOUBLE, longitude DOUBLE,
        epoch INTEGER, seq BIGINT, since TIMESTAMPTZ, until_epoch INTEGER, until_seq BIGINT, until TIMESTAMPTZ""",
    "observations": f"""gw VARCHAR, epoch INTEGER, seq BIGINT, observation VARCHAR, graph VARCHAR, stream VARCHAR,
        sensor VARCHAR, property VARCHAR, feature VARCHAR, unit VARCHAR, value VARCHAR, datatype VARCHAR,
        number DOUBLE, flag BOOLEAN, result_time TIMESTAMPTZ, {_MOMENT}""",
    "actuations": f"""gw VARCHAR, epoch INTEGER, seq BIGINT, actuator VARCHAR, kind VARCHAR, value VARCHAR,
        datatype VARCHAR, changed BOOLEAN, result_time TIMESTAMPTZ, {_MOMENT},
        cause_kind VARCHAR, cause_id VARCHAR, cause_seq BIGINT""",
    "gateway_health": """gw VARCHAR, epoch INTEGER, boot VARCHAR, hour TIMESTAMPTZ, records BIGINT, commits BIGINT,
        timers BIGINT, gaps BIGINT, quads_added BIGINT, quads_deleted BIGINT, untrusted BIGINT, first_seq BIGINT,
        last_seq BIGINT, first_ts TIMESTAMPTZ, last_ts TIMESTAMPTZ, lost BIGINT, offset_min_us BIGINT,
        offset_max_us BIGINT, ahead BIGINT, landed TIMESTAMPTZ""",
}
"""Types of DuckDB, by table."""

_MICROSECOND = timedelta(microseconds=1)
_1970 = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class FleetTables:
    """Rows by table; `Gateway` adds to them."""

    rows: dict[str, list[Row]] = field(default_factory=lambda: {name: [] for name in COLUMNS})

    def write(self, folder: Path) -> None:
        """``<folder>/<table>.parquet`` for each table."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in self.rows.items():
            write_parquet(rows, COLUMNS[name], folder / f"{name}.parquet")


def write_parquet(rows: Iterable[Mapping[str, Any]], columns: str, path: Path) -> None:
    """Rows as a Parquet file; members that a row does not have are null."""
    lines = path.with_suffix(".ndjson")
    lines.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    types = dict(column.split() for column in columns.split(","))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"CREATE TABLE t ({columns})")
        if lines.stat().st_size:
            connection.execute(
                f"INSERT INTO t BY NAME FROM read_json('{lines}', format='newline_delimited', columns={types})"
            )
        connection.execute(f"COPY t TO '{path}' (FORMAT parquet)")


class Gateway:
    """Writes rows as one gateway's records; `at` is the true time of the next one.

    skew: how far its wall clock is off, which nobody but the test knows; trusted: whether it says that it is right.
    """

    def __init__(self, tables: FleetTables, name: str, at: datetime = START) -> None:
        self.tables = tables
        self.name = name
        self.at = at
        self.booted = at - timedelta(minutes=5)
        self.boot = f"{name}-boot-1"
        self.epoch, self.seq = 1, 0
        self.skew = timedelta()
        self.trusted = True

    def restart(self) -> None:
        """The machine starts anew."""
        self.boot = f"{self.boot.rpartition('-')[0]}-{int(self.boot.rpartition('-')[2]) + 1}"
        self.booted = self.at - timedelta(seconds=20)

    def describe(self, stream: str, property: str, *, ended: bool = False) -> None:
        """A stream is there, or was."""
        moment: Row = {"until_epoch": 1, "until_seq": 1, "until": START} if ended else {}
        self.tables.rows["streams"].append(
            {"gw": self.name, **_named(stream, property), "label": stream, "epoch": 1, "seq": 1, "since": START}
            | {"latitude": 44.5 + len(self.tables.rows["streams"]) / 100, "longitude": 11.3}
            | moment
        )

    def read(
        self,
        stream: str,
        property: str,
        value: float | bool | str,
        *,
        unit: str | None = None,
        taken: datetime | None = None,
    ) -> int:
        """A reading, by the device's clock at `taken`, else by the gateway's. Returns its sequence."""
        record = self._record()
        kind = {"flag": value} if isinstance(value, bool) else {"number": value} if isinstance(value, float) else {}
        self.tables.rows["observations"].append(
            record
            | _named(stream, property)
            | {"value": str(value), "unit": unit, "result_time": taken or record["arrival"]}
            | kind
        )
        return self.seq

    def act(
        self, lamp: str, value: str, *, kind: str = "command", changed: bool = True, cause: int | None = None
    ) -> None:
        """A state of a lamp; cause: the sequence of the record that it reacts to."""
        self.tables.rows["actuations"].append(
            self._record()
            | {"actuator": BASE + lamp, "kind": kind, "value": value, "changed": changed}
            | (
                {"cause_kind": "application", "cause_id": f"smart-lighting/{value.lower()}", "cause_seq": cause}
                if cause
                else {"cause_kind": "http", "cause_id": "127.0.0.1:1"}
            )
        )

    def wait(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)

    def _record(self) -> Row:
        """The members of the next record; the hour's row of gateway_health counts it."""
        self.seq += 1
        boottime_us = (self.at - self.booted) // _MICROSECOND
        arrival = self.at + self.skew
        self._count(arrival, (arrival - _1970) // _MICROSECOND - boottime_us)
        return {
            "gw": self.name,
            "epoch": self.epoch,
            "seq": self.seq,
            "arrival": arrival,
            "trusted": self.trusted,
            "boot": self.boot,
            "boottime_us": boottime_us,
        }

    def _count(self, ts: datetime, offset_us: int) -> None:
        key = {
            "gw": self.name,
            "epoch": self.epoch,
            "boot": self.boot,
            "hour": ts.replace(minute=0, second=0, microsecond=0),
        }
        rows = self.tables.rows["gateway_health"]
        row = next((row for row in reversed(rows) if all(row[name] == value for name, value in key.items())), None)
        if row is None:
            row = key | {"records": 0, "untrusted": 0, "lost": 0, "first_ts": ts, "first_seq": self.seq}
            row |= {"offset_min_us": offset_us, "offset_max_us": offset_us}
            rows.append(row)
        row["records"] += 1
        row["untrusted"] += not self.trusted
        row["last_ts"], row["last_seq"] = ts, self.seq
        row["offset_min_us"] = min(row["offset_min_us"], offset_us)
        row["offset_max_us"] = max(row["offset_max_us"], offset_us)


def _named(stream: str, property: str) -> Row:
    return {
        "stream": f"{BASE}stream/{stream}",
        "sensor": f"{BASE}sensor/{stream}",
        "property": property if "://" in property else LIGHTING + property,
        "feature": f"{BASE}post/{stream.partition('-')[0]}",
    }


def small_fleet(seed: int = 7) -> FleetTables:
    """Nine gateways over two days."""
    tables = FleetTables()
    chance = random.Random(seed)
    for number in range(3):
        _street(Gateway(tables, f"gw-{number}"), chance)
    _clock_comes_late(Gateway(tables, "gw-late-clock"))
    _never_synchronised(Gateway(tables, "gw-no-clock"))
    _loses_history(Gateway(tables, "gw-two-epochs"))
    _falls_silent(Gateway(tables, "gw-silent"))
    _steps_back(Gateway(tables, "gw-steps-back"))
    _is_rare(Gateway(tables, "gw-rare"))
    return tables


def _street(gateway: Gateway, chance: random.Random) -> None:
    """Temperatures each ten minutes, presence now and then, a lamp that reacts; a reading far out, one late, a gap."""
    number = int(gateway.name[-1])
    for stream in ("1-t", "2-t"):
        gateway.describe(stream, "temperature")
    gateway.describe("1-p", "presence")
    gateway.describe("3-t", "temperature")  # never heard
    gateway.describe("4-t", "temperature", ended=True)
    gateway.read("5-t", "temperature", 20.5, unit=CELSIUS)  # once
    for step in range(288):
        for stream in ("1-t", "2-t"):
            dead = stream == "2-t" and number == 1 and step > 200
            broken = stream == "1-t" and 50 <= step < 60 + 10 * number
            if dead or broken:
                continue
            value = round(15 + 5 * chance.random() + number / 10, 2)
            if chance.random() < 0.01:
                value += chance.choice((-80.0, 90.0))
            late = timedelta(hours=3) if step % 97 == 96 else timedelta()
            gateway.read(stream, "temperature", value, unit=CELSIUS, taken=gateway.at - late)
            gateway.wait(1.5)
        gateway.read("1-s", f"{BASE}state", "ok" if step % 3 else "warm", taken=datetime(1970, 1, 1, tzinfo=UTC))
        gateway.read("1-n", f"{BASE}level", 7.0 if step % 40 else 9.0)
        if chance.random() < 0.3:
            _visit(gateway, chance)
        gateway.wait(600 - 600 * 0.01 * chance.random())
        if step == 150 and number == 2:
            gateway.wait(3 * 3600)
            gateway.restart()


def _visit(gateway: Gateway, chance: random.Random) -> None:
    """Somebody comes, the lamp goes on, is acknowledged (mostly), and goes off."""
    for value, reading in (("ON", True), ("OFF", False)):
        trigger = gateway.read("1-p", "presence", reading)
        gateway.wait(chance.random() / 1000)
        gateway.act("lamp/1", value, cause=trigger)
        gateway.act("lamp/2", value, cause=trigger, changed=False)
        gateway.wait(chance.random() / 5)
        if chance.random() < 0.9:
            gateway.act("lamp/1", value, kind="acknowledged")
        gateway.wait(30 * chance.random())
    if chance.random() < 0.1:
        gateway.act("lamp/9", "BROKEN")
        gateway.act("lamp/9", "ON")


def _clock_comes_late(gateway: Gateway) -> None:
    """A machine that starts in 2025 and learns the time after an hour; its lamp is on over midnight, and stays on."""
    gateway.trusted, gateway.skew = False, timedelta(days=-300)
    gateway.at = START + timedelta(hours=20)
    gateway.booted = gateway.at
    gateway.act("lamp/1", "ON", kind="acknowledged")
    for minute in range(360):
        if minute == 60:
            gateway.trusted, gateway.skew = True, timedelta()
        if minute == 300:
            gateway.skew = timedelta(seconds=5)  # stepped, though it says that it is synchronised
        gateway.read("1-t", "temperature", 17.0 + minute % 5, unit=CELSIUS)
        gateway.wait(60)
    gateway.restart()
    gateway.act("lamp/1", "OFF", kind="acknowledged")
    gateway.wait(60)
    gateway.act("lamp/1", "ON", kind="acknowledged")
    gateway.wait(3600)
    gateway.read("1-t", "temperature", 18.0, unit=CELSIUS)


def _never_synchronised(gateway: Gateway) -> None:
    """What it says of times is worth nothing; how long things took is."""
    gateway.trusted, gateway.skew = False, timedelta(days=-20_000)
    gateway.describe("1-t", "temperature")
    for _ in range(20):
        gateway.read("1-t", "temperature", 16.5, unit=CELSIUS)
        trigger = gateway.read("1-p", "presence", True)
        gateway.act("lamp/1", "ON", cause=trigger)
        gateway.wait(0.25)
        gateway.act("lamp/1", "ON", kind="acknowledged")
        gateway.wait(45)
        gateway.act("lamp/1", "OFF", kind="acknowledged")
        gateway.wait(60)
    gateway.act("lamp/1", "ON", kind="acknowledged")
    gateway.restart()
    gateway.act("lamp/1", "OFF", kind="acknowledged")


def _loses_history(gateway: Gateway) -> None:
    """An epoch ends while a lamp is on, and sequences of the two overlap."""
    for epoch in (1, 2):
        gateway.epoch, gateway.seq = epoch, 0
        for step in range(30):
            trigger = gateway.read("1-p", "presence", step % 2 == 0)
            gateway.act("lamp/1", "OFF" if step % 2 else "ON", cause=trigger, changed=step > 0)
            gateway.wait(120)
            gateway.read("1-t", "temperature", 19.0 + step % 3, unit=CELSIUS)
        trigger = gateway.read("1-p", "presence", True)
        gateway.act("lamp/1", "ON", cause=trigger)
        gateway.wait(1800)
    gateway.tables.rows["gateway_health"][-1]["lost"] = 12


def _falls_silent(gateway: Gateway) -> None:
    """Half an hour, and nothing any more."""
    gateway.describe("1-t", "temperature")
    for _ in range(30):
        gateway.read("1-t", "temperature", 18.0, unit=CELSIUS)
        gateway.wait(60)


def _steps_back(gateway: Gateway) -> None:
    """Its clock, synchronised as it says, goes back by an hour; devices without a clock send each minute."""
    for minute in range(120):
        if minute == 90:
            gateway.skew = timedelta(hours=-1)
        gateway.read("1-t", "temperature", 18.0 + minute % 7, unit=CELSIUS)
        if minute == 80:
            gateway.act("lamp/1", "ON", kind="acknowledged")
        gateway.wait(60)
    gateway.act("lamp/1", "OFF", kind="acknowledged")


def _is_rare(gateway: Gateway) -> None:
    """What is rare: two readings, values that are no numbers, another unit, a sensor that pauses, a lamp left on."""
    gateway.read("2-t", "temperature", 20.0, unit=CELSIUS)
    for value in ("NaN", "INF", "broken"):
        gateway.read("3-t", "temperature", value, unit=CELSIUS)
    for half_hour in range(60):
        gateway.read("1-h", "humidity", 50.0)
        if not 20 <= half_hour < 30:
            gateway.read("4-t", "temperature", 68.0 + half_hour % 9, unit=FAHRENHEIT)
        gateway.wait(1800)
    gateway.read("2-t", "temperature", 20.0, unit=CELSIUS)
    gateway.act("lamp/1", "ON")
    gateway.wait(600)
    gateway.act("lamp/1", "ON", changed=False)
    gateway.wait(300)
    gateway.read("1-h", "humidity", 50.0)

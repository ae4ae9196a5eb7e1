"""What a report may have to show: of a fleet of any size, made up, without Spark."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from lamplighter.cloud_sync.fleet.report.content import (
    DAYS_MAX,
    GATEWAYS_MAX,
    POINTS_MAX,
    ROWS_MAX,
    TREND,
    TRENDS_MAX,
    Content,
    Top,
)

Row = dict[str, Any]

START = datetime(2026, 6, 1, tzinfo=UTC)
UNTIL = START + timedelta(days=30)
LIGHTING = "http://lamplighter.example/ns/lighting#"
CELSIUS = "http://qudt.org/vocab/unit/DEG_C"
_REASONS = {"silent": "nothing heard", "bad": "2 sensors silent", "watch": "3 anomalies", "good": ""}


def made_up(gateways: int, suffix: str = "") -> Content:
    """A month of a fleet in which all that a page has is there, as much as a page takes of so many gateways.

    suffix: of the names of gateways and streams.
    """
    chance = random.Random(gateways)
    names = [f"gw-{number:06d}{suffix}" for number in range(1, gateways + 1)]
    healths = sorted(
        chance.choices(["silent", "bad", "watch", "good"], [2, 5, 13, 80], k=gateways),
        key=["silent", "bad", "watch", "good"].index,
    )
    streams = min(ROWS_MAX, 8 * gateways)
    keyed = [(chance.choice(names), f"http://lamplighter.local/stream/{number}-t{suffix}") for number in range(streams)]
    gaps = [_gap(chance, key) for key in keyed for _ in range(3)]
    trends = {
        (f"{LIGHTING}{name}", unit): [_hour(chance, number, low) for number in range(24 * TREND.days) if number % 61]
        for name, unit, low in (("temperature", CELSIUS, 12.0), ("presence", None, 0.0), ("power", None, 30.0))[
            :TRENDS_MAX
        ]
    }
    return Content(
        as_of=UNTIL,
        since=START,
        until=UNTIL,
        gateways=Top([_gateway(chance, *each) for each in zip(names, healths, strict=True)][:GATEWAYS_MAX], gateways),
        by_health={health: healths.count(health) for health in set(healths)},
        gap_streams=Top([_down(chance, key) for key in keyed], 3 * gateways),
        gaps=gaps,
        dead=Top([_dead(chance, key) for key in keyed], gateways),
        trends=trends,
        properties=Top(
            [
                {
                    "property": name,
                    "unit": unit,
                    "count": 720_000,
                    "measured": 720_000,
                    "mean": 17.25,
                    "min": -3.5,
                    "max": 41.0,
                }
                for name, unit in trends
            ],
            len(trends),
        ),
        anomalies=Top([_anomaly(chance, keyed) for _ in range(min(POINTS_MAX, 40 * gateways))], 40 * gateways),
        anomalous=Top([_anomalous(chance, key) for key in keyed], gateways),
        lamp_totals=[
            {"day": START + timedelta(days=day), "on_h": 3.0 * gateways, "kwh": 0.12 * gateways * (1 + chance.random())}
            for day in range(min(DAYS_MAX, 30))
        ],
        lamps=Top(
            [
                {
                    "gw": gw,
                    "actuator": f"http://lamplighter.local/lamp/{number}",
                    "on_h": 312.5 - number,
                    "switched_on": 540,
                    "unknown": number % 2,
                    "kwh": 12.5 - number / 25,
                }
                for number, (gw, _) in enumerate(keyed)
            ],
            4 * gateways,
        ),
        reactions=Top([_reaction(f"{LIGHTING}presence", "ON", 2.1), _reaction(f"{LIGHTING}presence", "OFF", None)], 2),
        clocks=Top([_clock(chance, gw) for gw in names[:ROWS_MAX] if gateways > 1], gateways // 10),
        by_quality={"good": gateways - gateways // 10, "untrusted": gateways // 10},
    )


def _gateway(chance: random.Random, gw: str, health: str) -> Row:
    return {
        "gw": gw, "heard": UNTIL - timedelta(minutes=chance.random() * 60), "records": 90_000, "lost": 0, "streams": 8,
        "readings": 80_000, "uptime": 0.9 + chance.random() / 10, "gaps": 2, "dead": 1, "anomalies": 3, "anomalous": 1,
        "clock": "good", "latitude": 43.5 + 2 * chance.random(), "longitude": 9.5 + 2.8 * chance.random(),
        "health": health, "why": _REASONS[health],
    }  # fmt: skip


def _gap(chance: random.Random, key: tuple[str, str]) -> Row:
    start = START + timedelta(hours=700 * chance.random())
    return {
        "gw": key[0], "stream": key[1], "start": start, "end": start + timedelta(hours=1 + 30 * chance.random()),
        "reason": chance.choice(["sensor", "gateway"]),
    }  # fmt: skip


def _down(chance: random.Random, key: tuple[str, str]) -> Row:
    return {
        "gw": key[0], "stream": key[1], "property": f"{LIGHTING}temperature", "expected_s": 60.0, "gaps": 3,
        "down_s": 150_000 * chance.random(), "longest_s": 50_000 * chance.random(), "uptime": chance.random(),
    }  # fmt: skip


def _dead(chance: random.Random, key: tuple[str, str]) -> Row:
    return {
        "gw": key[0], "stream": key[1], "property": f"{LIGHTING}temperature", "label": "temperature at post 3",
        "last": UNTIL - timedelta(days=3 * chance.random()), "silent_s": 259_200 * chance.random(), "expected_s": 60.0,
        "state": "dead",
    }  # fmt: skip


def _hour(chance: random.Random, number: int, low: float) -> Row:
    if low == 0:  # of yes and no
        return (
            {"hour": UNTIL - timedelta(hours=24 * TREND.days - number), "mean": chance.random() / 9}
            | dict.fromkeys(("min", "p05", "p50"), 0.0)
            | dict.fromkeys(("p95", "max"), 1.0)
        )
    middle = low + 4 * chance.random()
    return {
        "hour": UNTIL - timedelta(hours=24 * TREND.days - number),
        "min": middle - 9,
        "max": middle + 9,
        "mean": middle,
        "p05": middle - 3,
        "p50": middle,
        "p95": middle + 4,
    }


def _anomaly(chance: random.Random, keyed: list[tuple[str, str]]) -> Row:
    gw, stream = chance.choice(keyed)
    z = chance.choice([-1, 1]) * chance.uniform(3.5, 90)
    return {
        "gw": gw, "stream": stream, "property": f"{LIGHTING}{chance.choice(['temperature', 'power'])}",
        "time": START + timedelta(hours=720 * chance.random()), "z": z,
    }  # fmt: skip


def _anomalous(chance: random.Random, key: tuple[str, str]) -> Row:
    return {
        "gw": key[0], "stream": key[1], "property": f"{LIGHTING}temperature", "anomalies": chance.randrange(1, 90),
        "first": START, "last": UNTIL, "worst_z": -41.25,
    }  # fmt: skip


def _reaction(property: str, value: str, fast: float | None) -> Row:
    row: Row = {
        "property": property, "cause_kind": "application", "cause_id": f"smart-lighting/{value.lower()}",
        "value": value,
        "reactions": 40_000, "changes": 20_000, "acknowledged": 0 if fast is None else 19_876,
    }  # fmt: skip
    for kind, unit in (("reaction", 1.0), ("acknowledged", fast)):
        for share, times in (("p50", 1.2), ("p95", 3.0), ("p99", 9.5), ("max", 140.0)):
            row[f"{kind}_{share}_ms"] = None if unit is None else unit * times
    return row


def _clock(chance: random.Random, gw: str) -> Row:
    return {
        "gw": gw, "quality": "untrusted", "records": 90_000, "untrusted_share": chance.random(), "boots": 4,
        "spread_ms": 5000.0, "repaired": 312, "untimed": 0, "result_wrong": 7,
    }  # fmt: skip

"""Positions as GeoJSON."""

from __future__ import annotations

from typing import Any

from lamplighter.gateway.gates.sensorthings.geometry import WKT_CHARS_MAX, point, wkt
from tests.support.tables import each_row

CRS84 = "<http://www.opengis.net/def/crs/OGC/1.3/CRS84>"
EPSG_4326 = "<http://www.opengis.net/def/crs/EPSG/0/4326>"


@each_row(
    ("text", "kind", "coordinates"),
    [
        ("POINT(11.25 44.5)", "Point", [11.25, 44.5]),
        ("Point Z (11.25 44.5 -3e1)", "Point", [11.25, 44.5, -30]),
        (f"{CRS84} POINT(11.25 44.5)", "Point", [11.25, 44.5]),
        (f"{EPSG_4326} POINT(44.5 11.25)", "Point", [11.25, 44.5]),
        ("LINESTRING(0 0, 1 1,2 0)", "LineString", [[0, 0], [1, 1], [2, 0]]),
        (
            "POLYGON((0 0, 4 0, 4 4, 0 0), (1 1, 2 1, 2 2, 1 1))",
            "Polygon",
            [[[0, 0], [4, 0], [4, 4], [0, 0]], [[1, 1], [2, 1], [2, 2], [1, 1]]],
        ),
        ("MULTIPOINT((0 0), (1 1))", "MultiPoint", [[0, 0], [1, 1]]),
        ("MULTIPOINT(0 0, 1 1)", "MultiPoint", [[0, 0], [1, 1]]),
        ("MULTILINESTRING((0 0, 1 1), (2 2, 3 3))", "MultiLineString", [[[0, 0], [1, 1]], [[2, 2], [3, 3]]]),
        ("MULTIPOLYGON(((0 0, 1 0, 1 1, 0 0)))", "MultiPolygon", [[[[0, 0], [1, 0], [1, 1], [0, 0]]]]),
    ],
)
def test_wkt(text: str, kind: str, coordinates: list[Any]) -> None:
    assert wkt(text) == {"type": kind, "coordinates": coordinates}


@each_row(
    "text",
    [
        "",
        "POINT",
        "POINT()",
        "POINT EMPTY",
        "POINT(1)",
        "POINT(1 2",
        "POINT(1 2) x",
        "POINT(1 2, 3 4)",
        "POINT(1e999 2)",
        "LINESTRING(((0 0)))",
        "POLYGON(0 0, 1 1)",
        "CIRCLE(1 2)",
        "<http://www.opengis.net/def/crs/EPSG/0/3857> POINT(1 2)",
        "(" * 5_000,
        "POINT(" + " " * WKT_CHARS_MAX + "1 2)",
    ],
)
def test_what_is_no_geometry_in_wgs84_is_none(text: str) -> None:
    assert wkt(text) is None


def test_a_point_of_two_numbers() -> None:
    assert point("44.5", "11.25") == {"type": "Point", "coordinates": [11.25, 44.5]}
    assert point("north", "11") is None
    assert point("INF", "11") is None

"""Positions of the dataset -> GeoJSON geometries (RFC 7946)."""

from __future__ import annotations

import math
import re
from typing import Any, Final

WKT_CHARS_MAX: Final = 65_536
_CRS = re.compile(r"\s*<([^<>\s]*)>\s*")
_NAME = re.compile(r"\s*(POINT|LINESTRING|POLYGON|MULTIPOINT|MULTILINESTRING|MULTIPOLYGON)\s*(?:Z\s*)?(?=\()", re.I)
_TOKEN = re.compile(r"\s*([(),]|[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)")
_NAMES = {
    "POINT": ("Point", 1),
    "LINESTRING": ("LineString", 1),
    "POLYGON": ("Polygon", 2),
    "MULTIPOINT": ("MultiPoint", 1),
    "MULTILINESTRING": ("MultiLineString", 2),
    "MULTIPOLYGON": ("MultiPolygon", 3),
}
_LONGITUDE_FIRST = ("http://www.opengis.net/def/crs/OGC/1.3/CRS84", "https://www.opengis.net/def/crs/OGC/1.3/CRS84")
_LATITUDE_FIRST = ("http://www.opengis.net/def/crs/EPSG/0/4326", "https://www.opengis.net/def/crs/EPSG/0/4326")


def point(latitude: str, longitude: str) -> dict[str, Any] | None:
    """A point of two decimal texts in degrees (WGS 84); None where they are no position."""
    try:
        place = [float(longitude), float(latitude)]
    except ValueError:
        return None
    return {"type": "Point", "coordinates": place} if all(map(math.isfinite, place)) else None


def wkt(text: str) -> dict[str, Any] | None:
    """The geometry of a geo:wktLiteral (OGC GeoSPARQL 1.1, 8.5.1) in WGS 84; None for other systems and shapes."""
    if len(text) > WKT_CHARS_MAX:
        return None
    swapped, start = False, 0
    if (system := _CRS.match(text)) is not None:
        if system[1] not in _LONGITUDE_FIRST + _LATITUDE_FIRST:
            return None
        swapped, start = system[1] in _LATITUDE_FIRST, system.end()
    named = _NAME.match(text, start)
    if named is None:
        return None
    kind, levels = _NAMES[named[1].upper()]
    words = _words(text, named.end())
    if words is None:
        return None
    try:
        found = _lists(words, levels, swapped)
    except (ValueError, IndexError):
        return None
    if words or (kind == "Point" and len(found) != 1):
        return None
    return {"type": kind, "coordinates": found[0] if kind == "Point" else found}


def _words(text: str, start: int) -> list[str] | None:
    """The words of the coordinates, the last first."""
    words, text = [], text.rstrip()
    while start < len(text):
        found = _TOKEN.match(text, start)
        if found is None:
            return None
        words.append(found[1])
        start = found.end()
    return words[::-1]


def _lists(words: list[str], levels: int, swapped: bool) -> list[Any]:
    """What is in parentheses. levels: of parentheses, of which a point of a MULTIPOINT may lack the last."""
    if words.pop() != "(":
        raise ValueError(words)
    parts: list[Any] = []
    while True:
        if levels == 1 and words[-1] != "(":
            parts.append(_position(words, swapped))
        elif levels == 1:
            words.pop()
            parts.append(_position(words, swapped))
            if words.pop() != ")":
                raise ValueError(words)
        else:
            parts.append(_lists(words, levels - 1, swapped))
        sign = words.pop()
        if sign == ")":
            return parts
        if sign != ",":
            raise ValueError(sign)


def _position(words: list[str], swapped: bool) -> list[float]:
    numbers = []
    while words[-1] not in "(),":
        numbers.append(float(words.pop()))
    if not 2 <= len(numbers) <= 3 or not all(map(math.isfinite, numbers)):
        raise ValueError(numbers)
    return [numbers[1], numbers[0], *numbers[2:]] if swapped else numbers

import json

import google_crc32c
import msgspec
import pytest

from lamplighter.engine.change_log import Cause, GraphChanges, Record, Timer, codec, decode, encode, place
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.terms import STORED_DEPTH_MAX, Quad

RECORD = Record(
    v=1,
    type="commit",
    gw="gw-7f3a",
    epoch=1,
    seq=17,
    ts="2026-11-21T02:00:00.123456Z",
    trusted=True,
    boot="b",
    boottime_us=81234567,
    cause=Cause("mqtt", "street/1"),
    request="r",
    graphs=GraphChanges(created=("<a:g>",)),
    d=(Quad("<a:s>", "<a:p>", '"é\\n\\"\U0001f600"', None),),
    a=(Quad("_:b", "<a:p>", '"1"@en', "<a:g>"),),
)


def test_line_has_the_members_of_the_design() -> None:
    line = encode(RECORD)
    assert line.endswith(b'"}\n')
    assert line.count(b"\n") == 1
    members = json.loads(line)
    assert list(members) == [
        *("v", "type", "gw", "epoch", "seq", "ts", "trusted", "boot", "boottime_us"),
        *("cause", "request", "graphs", "d", "a", "crc"),
    ]
    assert members["d"] == [["<a:s>", "<a:p>", '"é\\n\\"\U0001f600"', None]]
    assert members["cause"] == {"kind": "mqtt", "id": "street/1", "seq": None}
    assert int(members["crc"], 16) == google_crc32c.value(line[: line.rindex(b',"crc"')])


def test_round_trip() -> None:
    assert decode(encode(RECORD)[:-1]) == RECORD
    timer = Record(1, "timer", "g", 1, 1, "t", False, "b", 5, timer=Timer("x", "INSERT DATA {}", delay_us=30_000_000))
    assert decode(encode(timer)[:-1]) == timer


def test_the_place_of_a_line_is_read_without_its_quads(monkeypatch: pytest.MonkeyPatch) -> None:
    line = encode(RECORD)[:-1]
    reordered = b'{"ts":"t","type":"gap","trusted":true,"boot":"b","boottime_us":1,"seq":9,"gw":"g","epoch":2,"v":1'
    crc = b"%08x" % google_crc32c.value(reordered)
    assert place(reordered + b',"crc":"' + crc + b'"}') == ("g", 2, 9), "other writers may have another order"
    newer = encode(msgspec.structs.replace(RECORD, v=2))[:-1]
    with pytest.raises(ConfigurationError, match="version 2"):
        place(newer)

    def not_to_be_read(body: bytes) -> Record:
        raise AssertionError(body)

    monkeypatch.setattr(codec, "_decode", not_to_be_read)
    assert place(line) == ("gw-7f3a", 1, 17)


def test_every_changed_byte_is_noticed() -> None:
    line = encode(RECORD)[:-1]
    for position in range(len(line)):
        damaged = bytearray(line)
        damaged[position] ^= 0x01
        with pytest.raises(ValueError, match="checksum"):
            decode(bytes(damaged))


def test_every_cut_is_noticed() -> None:
    line = encode(RECORD)[:-1]
    for length in range(len(line)):
        with pytest.raises(ValueError, match="checksum"):
            decode(line[:length])


def test_record_of_a_newer_program_is_no_damage() -> None:
    body = b'{"v":2,"type":"commit","gw":"g","epoch":1,"seq":1,"ts":"","trusted":true,"boot":"","boottime_us":0'
    line = b'%s,"crc":"%08x"}' % (body, google_crc32c.value(body))
    with pytest.raises(ConfigurationError, match="version 2"):
        decode(line)


def test_a_bracket_that_json_escapes_nests_like_any_other() -> None:
    """What the store could not read back is damage, however a writer spells it."""
    for levels in (STORED_DEPTH_MAX, STORED_DEPTH_MAX + 1):
        term = "<<( <a:s> <a:p> " * levels + "1" + " )>>" * levels
        line = encode(msgspec.structs.replace(RECORD, a=(Quad("<a:s>", "<a:p>", term, None),)))
        body = line[: line.rindex(b',"crc"')].replace(b"<<", b"\\u003c\\u003c")
        escaped = b'%s,"crc":"%08x"}' % (body, google_crc32c.value(body))
        if levels <= STORED_DEPTH_MAX:
            assert decode(escaped).a[0].o == term
            continue
        for one in (line[:-1], escaped):
            with pytest.raises(ValueError, match="deep"):
                decode(one)

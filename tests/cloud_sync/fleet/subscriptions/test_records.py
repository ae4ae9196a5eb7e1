"""What a subscription record may have, and what is refused with a reason."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from lamplighter.cloud_sync.fleet.subscriptions.records import (
    FilesSink,
    MqttSink,
    SubscriptionRecord,
    UpdateSink,
    WebhookSink,
)

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def record(**members: Any) -> bytes:
    """The JSON of a record with these members instead of the usual ones."""
    usual = {"id": "co2", "query": "ASK { ?s ?p ?o }", "created": NOW, "changed": NOW}
    return msgspec.json.encode({name: value for name, value in {**usual, **members}.items() if value is not None})


def read(**members: Any) -> SubscriptionRecord:
    return msgspec.json.decode(record(**members), type=SubscriptionRecord)


def test_a_record_is_the_same_after_writing_and_reading() -> None:
    written = SubscriptionRecord(
        id="co2",
        query="ASK { ?s ?p ?o }",
        gateways=("gw-*",),
        deliver=(
            FilesSink(url="/srv/out"),
            FilesSink(name="cold", url="s3://bucket/out", options_file="s3.toml"),
            WebhookSink(url="https://a.example/hook", secret_file="/etc/secret"),
            MqttSink(broker="broker.example", topic="alarms/co2", tls=True, username="u", password_file="mqtt"),
            UpdateSink(gateways=("*",), update="INSERT DATA { <http://a> <http://b> 1 }"),
        ),
        created=NOW,
        changed=NOW,
    )
    text = msgspec.json.encode(written)
    assert msgspec.json.decode(text, type=SubscriptionRecord) == written
    assert [sink["kind"] for sink in msgspec.json.decode(text)["deliver"]] == [
        *("files", "files", "webhook", "mqtt", "update")
    ]


@pytest.mark.parametrize("name", ["", "Co2", "-a", "a_b", "a/b", "..", "a" * 65, "a\n", "é"])
def test_an_id_that_is_no_plain_name_is_refused(name: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.id"):
        read(id=name)


@pytest.mark.parametrize(
    ("members", "place"),
    [
        ({"query": ""}, r"\$\.query"),
        ({"query": "x" * 65_537}, r"\$\.query"),
        ({"version": 0}, r"\$\.version"),
        ({"version": 2**31}, r"\$\.version"),
        ({"state": "stopped"}, r"\$\.state"),
        ({"changes": "all"}, r"\$\.changes"),
        ({"begin": "yesterday"}, r"\$\.begin"),
        ({"created": None}, "created"),
        ({"created": "2026-06-01T00:00:00"}, r"\$\.created"),
        ({"gateways": [""]}, r"\$\.gateways"),
        ({"gateways": ["gw\n1"]}, r"\$\.gateways"),
        ({"gateways": ["gw"] * 1_001}, r"\$\.gateways"),
        ({"deliver": [{"kind": "files", "name": f"n{number}", "url": "/x"} for number in range(17)]}, r"\$\.deliver"),
    ],
)
def test_members_outside_their_bounds_are_refused(members: dict[str, Any], place: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=place):
        read(**members)


@pytest.mark.parametrize(
    ("sink", "reason"),
    [
        ({"kind": "fax", "url": "/x"}, "fax"),
        ({"url": "/x"}, "kind"),
        ({"kind": "files"}, "url"),
        ({"kind": "files", "url": "/a\nb"}, "url"),
        ({"kind": "webhook", "url": "https://a.example/a b"}, "url"),
        ({"kind": "files", "url": "/x", "password": "x"}, "unknown field `password`"),
        ({"kind": "files", "url": "/x", "name": "a/b"}, "name"),
        ({"kind": "files", "url": "sftp://u:p@host/x"}, "name that as options_file"),
        ({"kind": "webhook", "url": "ftp://a.example/x"}, "write http://HOST/PATH"),
        ({"kind": "webhook", "url": "https:///x"}, "write http://HOST/PATH"),
        ({"kind": "webhook", "url": "https://u:p@a.example/x"}, "name that as headers_file"),
        ({"kind": "webhook", "url": "https://[a.example/x"}, "url"),
        ({"kind": "webhook", "url": "https://a.example/", "secret_file": "keys/../x"}, "secret_file"),
        ({"kind": "mqtt", "broker": "b", "topic": "a/#"}, "without '\\+', '#'"),
        ({"kind": "mqtt", "broker": "b", "topic": "$SYS/x"}, "without '\\+', '#'"),
        ({"kind": "mqtt", "broker": "b c", "topic": "a"}, "broker"),
        ({"kind": "mqtt", "broker": "b", "topic": "a", "port": 0}, "port"),
        ({"kind": "mqtt", "broker": "b", "topic": "a", "qos": 3}, "qos"),
        ({"kind": "mqtt", "broker": "b", "topic": "a", "password_file": "x"}, "password_file needs username"),
        ({"kind": "mqtt", "broker": "b", "topic": "a", "tls": True, "key_file": "x"}, "needs certificate_file"),
        ({"kind": "mqtt", "broker": "b", "topic": "a", "ca_file": "x"}, "need tls"),
        ({"kind": "update", "gateways": [], "update": "x"}, "gateways"),
        ({"kind": "update", "gateways": ["*"]}, "update"),
    ],
)
def test_a_sink_that_cannot_work_is_refused(sink: dict[str, Any], reason: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=reason):
        read(deliver=[sink])


def test_two_sinks_of_one_name_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="two sinks have the name 'files'"):
        read(deliver=[{"kind": "files", "url": "/a"}, {"kind": "files", "url": "/b"}])

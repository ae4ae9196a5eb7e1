"""The adapter against a real mosquitto, with a recording stand-in for the gateway."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from lamplighter.adapters.mapping import Mapping, load_mapping
from lamplighter.adapters.model.commits import UPDATE_CHARS_MAX, ReadingCommits
from lamplighter.adapters.model.readings import Reading
from lamplighter.adapters.mqtt import connection, inbox
from lamplighter.adapters.mqtt.adapter import MqttAdapter
from lamplighter.adapters.mqtt.settings import MqttSettings
from lamplighter.adapters.parts import AdapterContext
from lamplighter.engine.client import UpdateAnswer, UpdateRequest
from lamplighter.engine.errors import (
    ConfigurationError,
    GatewayError,
    QueueFullError,
    StoreError,
    UpstreamError,
)
from tests.support.brokers import Mosquitto, free_port, mosquitto
from tests.support.components import require_command
from tests.support.event_loops import until
from tests.support.places import ROOT

STREET = load_mapping(ROOT / "mapping", "http://gateway.example/")
TIMEOUT_S = 120.0
PERSISTENT = ("allow_anonymous true", "persistence true")


@pytest.fixture(autouse=True)
def connects_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "BACKOFF_MIN_S", 0.02)
    monkeypatch.setattr(inbox, "BACKOFF_MAX_ONCE_CONNECTED_S", 0.2)


class Gateway:
    """Stands in for the engine client: keeps the updates, and answers when the test lets it.

    open: answers go out while it is set. errors: the answers of the next batches, by the values of their readings.
    """

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.batches: list[list[str]] = []
        self.durable: list[str] = []
        self.errors: list[dict[str, GatewayError]] = []
        self.closed = False

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
        self.batches.append([request.sparql for request in requests])
        await self.open.wait()
        if self.closed:
            raise UpstreamError("the client is closed")
        errors = self.errors.pop(0) if self.errors else {}
        answers: list[UpdateAnswer | GatewayError] = []
        for request in requests:
            error = next((error for value, error in errors.items() if f'"{value}"' in request.sparql), None)
            if error is None:
                self.durable.append(request.sparql)
            answers.append(error or UpdateAnswer(sequence=len(self.durable), delayed=None))
        return answers

    def values(self) -> list[str]:
        """What the durable updates wrote as results, in order."""
        return [
            found[1] for text in self.durable if (found := re.search(r'INSERT \{.*?hasSimpleResult> "(.*?)"', text))
        ]

    def descriptions(self) -> list[str]:
        return [text for text in self.durable if "gateway#Stream>" in text]


def rules(folder: Path, *tables: str) -> Mapping:
    """Of `[[stream]]` tables."""
    (folder / "rules.toml").write_text("".join(f"[[stream]]\n{table}\n" for table in tables))
    return load_mapping(folder, "http://gateway.example/")


def subscribed(adapter: MqttAdapter) -> asyncio.Event:
    """Of the first broker."""
    return adapter.brokers["default"].inbox.subscribed


async def turns() -> None:
    """Lets the loop look at its sockets often enough that what can be read is read."""
    for _ in range(200):
        await asyncio.sleep(0)


def open_sockets() -> int:
    return sum(link.is_socket() for link in Path("/proc/self/fd").iterdir())


@asynccontextmanager
async def running(
    broker_port: int,
    gateway: Gateway,
    *,
    mapping: Mapping = STREET,
    connected: bool = True,
    trusted: bool = True,
    **changes: object,
) -> AsyncIterator[MqttAdapter]:
    """A running adapter; at the end it is cancelled, and has to leave no task and no socket behind."""
    settings = msgspec.convert({"host": "127.0.0.1", "port": broker_port} | changes, MqttSettings)
    await asyncio.to_thread(int)  # the executor is there before we count
    gc.collect()  # and what others have left is not
    sockets = open_sockets()
    tasks = asyncio.all_tasks()
    adapter = MqttAdapter(settings, mapping, AdapterContext(cast(Any, gateway), trusted=lambda: trusted))
    task = asyncio.create_task(adapter.run())
    try:
        if connected:
            async with asyncio.timeout(TIMEOUT_S):
                await subscribed(adapter).wait()
        yield adapter
        # What is committed is acknowledged right behind; a session that ends between has its messages again.
        inbox = adapter.brokers["default"].inbox
        await until(
            lambda: (
                not (inbox._unacknowledged and subscribed(adapter).is_set() and gateway.open.is_set()) or task.done()
            )
        )
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert asyncio.all_tasks() == tasks
    # The thread of a failed handshake holds its socket, in the error, a little longer than what waits for the thread.
    await until(lambda: open_sockets() == sockets, f"the end of all sockets but {sockets}")


async def publish(broker: Mosquitto, *messages: tuple[str, str | bytes], retain: bool = False) -> None:
    """Returns when the broker has acknowledged all."""
    await asyncio.to_thread(partial(broker.publish, *messages, retain=retain))


async def session_is_empty(broker: Mosquitto) -> bool:
    """Whether the broker has nothing left for us: the next message is the first that comes."""
    gateway = Gateway()
    async with running(broker.port, gateway):
        await publish(broker, ("street/marker/temperature", "4711"))
        await until(lambda: "4711" in gateway.values())
    return gateway.values() == ["4711"]


def said(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    """Levels of our own records that hold the text."""
    ours = [record for record in caplog.records if record.name.startswith("lamplighter.adapters.")]
    return [record.levelname for record in ours if text in record.getMessage()]


async def test_reading_is_committed_described_once_and_acknowledged() -> None:
    with mosquitto() as broker:
        gateway = Gateway()
        async with running(broker.port, gateway) as adapter:
            await publish(broker, ("street/1/presence", "true"), ("street/1/temperature", "21.5"))
            await publish(broker, ("street/1/presence", "false"))
            await until(lambda: adapter.counters.committed == 3)
            assert gateway.values() == ["true", "21.5", "false"]
            assert len(gateway.descriptions()) == 2
            assert "gateway#Stream>" in gateway.durable[0]
            assert adapter.counters.received == 3
        assert await session_is_empty(broker)


async def test_message_comes_again_when_the_adapter_ends_before_the_commit() -> None:
    with mosquitto() as broker:
        before = Gateway()
        before.open.clear()
        async with running(broker.port, before):
            await publish(broker, ("street/1/temperature", "1"), ("street/1/temperature", "2"))
            await until(lambda: bool(before.batches))
        after = Gateway()
        async with running(broker.port, after) as adapter:
            await until(lambda: adapter.counters.committed == 2)
        assert before.values() == []
        assert after.values() == ["1", "2"]
        assert await session_is_empty(broker)


async def test_message_published_while_the_adapter_is_away_comes() -> None:
    with mosquitto() as broker:
        async with running(broker.port, Gateway()):
            pass
        await publish(broker, ("street/1/temperature", "1"))
        gateway = Gateway()
        async with running(broker.port, gateway):
            await until(lambda: gateway.values() == ["1"])


async def test_message_redelivered_while_its_update_is_under_way_is_committed_once() -> None:
    with mosquitto() as broker:
        gateway = Gateway()
        gateway.open.clear()
        async with running(broker.port, gateway) as adapter:
            await publish(broker, *[("street/1/temperature", str(number)) for number in range(5)])
            await until(lambda: adapter.counters.received == 5)
            await take_session_over(broker)
            await until(lambda: adapter.counters.redelivered == 5)
            gateway.open.set()
            await until(lambda: adapter.counters.committed == 5)
            await publish(broker, ("street/1/temperature", "5"))
            await until(lambda: adapter.counters.committed == 6)
            assert gateway.values() == ["0", "1", "2", "3", "4", "5"]
        assert await session_is_empty(broker)


async def test_message_redelivered_after_its_commit_is_acknowledged_at_once() -> None:
    with mosquitto(settings=PERSISTENT) as broker:
        gateway = Gateway()
        gateway.open.clear()
        async with running(broker.port, gateway) as adapter:
            await publish(broker, ("street/1/temperature", "1"))
            await until(lambda: bool(gateway.batches))
            broker.stop()
            await until(lambda: not subscribed(adapter).is_set())
            gateway.open.set()
            await until(lambda: adapter.counters.committed == 1)
            broker.start()
            await until(lambda: adapter.counters.redelivered == 1)
            await publish(broker, ("street/1/temperature", "2"))
            await until(lambda: adapter.counters.committed == 2)
            assert gateway.values() == ["1", "2"]
        assert await session_is_empty(broker)


async def test_broken_and_unmapped_messages_are_warned_of_once_counted_and_acknowledged(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with mosquitto() as broker:
        (tmp_path / "wide.toml").write_text(
            "[[stream]]\ntopic = 'street/{post}/{what}'\nproperty = 'lighting:presence'\npayload = 'text'\n"
        )
        wide = load_mapping(tmp_path, "http://gateway.example/")
        async with running(broker.port, Gateway(), mapping=wide):
            pass  # leaves a wider subscription behind in the session
        gateway = Gateway()
        async with running(broker.port, gateway) as adapter:
            await publish(broker, *[("street/1/temperature", b"warm \xff")] * 3, ("street/1/humidity", "1"))
            await publish(broker, ("street/2/temperature", b""))
            await publish(broker, ("street/1/temperature", "warm"), ("street/1/temperature", "20"))
            await until(lambda: adapter.counters.committed == 1)
            assert gateway.values() == ["20"]
            assert adapter.counters.dropped_payload == 5
            assert adapter.counters.dropped_unmapped == 1
        assert said(caplog, 'topic=street/1/temperature reason="payload is not UTF-8"') == ["WARNING"]
        assert said(caplog, 'topic=street/1/temperature reason="not a number"') == ["WARNING"]
        assert said(caplog, 'topic=street/1/humidity reason="no mapping rule') == ["WARNING"]
        assert said(caplog, "topic=street/2/temperature") == [], "an empty message deletes a retained one"
        assert await session_is_empty(broker)


async def test_message_that_the_adapter_fails_to_read_is_dropped_and_acknowledged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usual = Mapping.readings

    def failing(mapping: Mapping, topic: str, payload: bytes, **more: Any) -> Any:
        if payload == b"1":
            raise ZeroDivisionError
        return usual(mapping, topic, payload, **more)

    monkeypatch.setattr(Mapping, "readings", failing)
    with mosquitto() as broker:
        gateway = Gateway()
        async with running(broker.port, gateway) as adapter:
            await publish(broker, *[("street/1/temperature", value) for value in ("1", "1", "2")])
            await until(lambda: gateway.values() == ["2"])
            assert adapter.counters.dropped_payload == 2
        assert said(caplog, "mqtt message failed") == ["ERROR"]
        assert await session_is_empty(broker)


async def test_topic_writes_no_line_of_its_own_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with mosquitto() as broker:
        async with running(broker.port, Gateway()) as adapter:
            await publish(broker, ("street/1\u2028ERROR all is lost/temperature", "warm"))
            await until(lambda: adapter.counters.dropped_payload == 1)
    assert said(caplog, 'topic="street/1\\u2028ERROR all is lost/temperature"') == ["WARNING"]
    assert not said(caplog, "\u2028")


async def test_broker_away_at_start_and_later_is_said_once_and_got_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with mosquitto() as broker:
        broker.stop()
        gateway = Gateway()
        async with running(broker.port, gateway, connected=False) as adapter:
            await until(lambda: bool(said(caplog, "not connected")))
            broker.start()
            await subscribed(adapter).wait()
            await publish(broker, ("street/1/temperature", "1"))
            await until(lambda: adapter.counters.committed == 1)
            assert said(caplog, "not connected") == ["WARNING"]
            assert said(caplog, "broker connected") == ["INFO"]

            attempts = adapter.counters.attempts
            broker.stop()
            await until(lambda: adapter.counters.attempts >= attempts + 2)
            broker.start()  # without its sessions: subscribes again
            await subscribed(adapter).wait()
            await publish(broker, ("street/1/temperature", "2"))
            await until(lambda: adapter.counters.committed == 2)
            assert said(caplog, "not connected") == ["WARNING", "WARNING"]
            assert said(caplog, "broker connected") == ["INFO", "INFO"]
            assert gateway.values() == ["1", "2"]
            assert len(gateway.descriptions()) == 1


async def test_repeated_failure_to_connect_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async with running(free_port(), Gateway(), connected=False) as adapter:
        await until(lambda: adapter.counters.attempts > 3)
    assert said(caplog, "not connected") == ["WARNING"]


async def test_retained_message_is_marked_and_the_live_one_is_not() -> None:
    with mosquitto() as broker:
        await publish(broker, ("street/1/presence", "true"), retain=True)
        gateway = Gateway()
        async with running(broker.port, gateway) as adapter:
            await until(lambda: adapter.counters.committed == 1)
            await publish(broker, ("street/1/presence", "true"), retain=True)
            await until(lambda: adapter.counters.committed == 2)
            marks = ["FILTER NOT EXISTS" in text for text in gateway.durable if "hasSimpleResult" in text]
            assert marks == [True, False]


async def test_kept_session_has_no_retained_message_sent_again() -> None:
    with mosquitto() as broker:
        await publish(broker, ("street/1/presence", "true"), retain=True)
        gateway = Gateway()
        async with running(broker.port, gateway) as adapter:
            # A message whose acknowledgement the broker does not have is sent again.
            await until(lambda: any("Received PUBACK" in line for line in broker.log))
            await take_session_over(broker)
            await until(lambda: adapter.counters.connections >= 2 and subscribed(adapter).is_set())
            await publish(broker, ("street/2/presence", "false"))
            await until(lambda: adapter.counters.committed == 2)
            assert gateway.values() == ["true", "false"]


async def test_full_queue_stops_reading_and_nothing_is_lost() -> None:
    with mosquitto() as broker:
        gateway = Gateway()
        gateway.open.clear()
        async with running(broker.port, gateway, queue_max=3, batch_max=2) as adapter:
            await publish(broker, ("street/1/temperature", "0"))
            await until(lambda: len(gateway.batches) == 1)
            await publish(broker, *[("street/1/temperature", str(number)) for number in range(1, 60)])
            most = 1 + 3  # one under way, three in the queue
            await until(lambda: adapter.counters.received >= most)
            await turns()
            assert adapter.counters.received == most
            gateway.open.set()
            await until(lambda: adapter.counters.committed == 60)
            assert gateway.values() == [str(number) for number in range(60)]
            assert max(len(batch) for batch in gateway.batches) <= 2 + 1  # and the description
        assert await session_is_empty(broker)


async def test_long_wait_for_the_gateway_gives_the_connection_up_and_loses_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with mosquitto() as broker:
        gateway = Gateway()
        gateway.open.clear()
        async with running(broker.port, gateway, queue_max=3, batch_max=2, keepalive_s=5) as adapter:
            await publish(broker, *[("street/1/temperature", str(number)) for number in range(30)])
            await until(lambda: not subscribed(adapter).is_set())
            async with running(free_port(), Gateway(), connected=False) as restless:
                await until(lambda: restless.counters.attempts > 3)
            assert adapter.counters.attempts == 1  # none is made as long as the queue is full
            gateway.open.set()
            await until(lambda: adapter.counters.committed == 30)
            # The session may be open again only then. What it sends again is in front of what is new.
            await publish(broker, ("street/1/temperature", "30"))
            await until(lambda: adapter.counters.committed == 31)
            assert gateway.values() == [str(number) for number in range(31)]
        assert said(caplog, "the gateway does not take readings") == ["WARNING"]
        assert await session_is_empty(broker)


async def test_what_arrives_during_a_commit_is_the_next_batch() -> None:
    with mosquitto() as broker:
        gateway = Gateway()
        async with running(broker.port, gateway) as adapter:
            await publish(broker, ("street/1/temperature", "0"))
            await until(lambda: adapter.counters.committed == 1)
            gateway.open.clear()
            await publish(broker, ("street/1/temperature", "1"))
            await until(lambda: len(gateway.batches) == 2)
            await publish(broker, *[("street/1/temperature", str(number)) for number in range(2, 12)])
            await until(lambda: adapter.counters.received == 12)
            gateway.open.set()
            await until(lambda: adapter.counters.committed == 12)
            assert [len(batch) for batch in gateway.batches] == [2, 1, 10]


async def test_long_texts_are_sent_in_portions(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(
        "[[stream]]\ntopic = 't/{x}'\nproperty = 'lighting:presence'\npayload = 'text'\n"
    )
    mapping = load_mapping(tmp_path, "http://gateway.example/")
    texts = [f"{number:03}" + "x" * 8_000 for number in range(100)]
    with mosquitto() as broker:
        gateway = Gateway()
        gateway.open.clear()
        async with running(broker.port, gateway, mapping=mapping) as adapter:
            await publish(broker, ("t/1", "first"))
            await until(lambda: len(gateway.batches) == 1)
            await publish(broker, *[("t/1", text) for text in texts])
            gateway.open.set()
            await until(lambda: adapter.counters.committed == 101)
            assert gateway.values() == ["first", *texts]
            assert max(len("".join(batch)) for batch in gateway.batches) <= UPDATE_CHARS_MAX


async def test_reading_that_a_throttle_holds_back_is_written_when_it_is_due(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(
        "[[stream]]\ntopic = 't/{x}'\nproperty = 'lighting:temperature'\npayload = 'number'\nthrottle_s = 1.5\n"
    )
    mapping = load_mapping(tmp_path, "http://gateway.example/")
    with mosquitto() as broker:
        gateway = Gateway()
        async with running(broker.port, gateway, mapping=mapping) as adapter:
            await publish(broker, *[("t/1", str(number)) for number in range(20)])
            await until(lambda: gateway.values() == ["0", "19"])
            assert adapter.counters.committed == 2
            assert adapter.counters.repeated == 18


async def test_members_of_one_message_are_one_batch_and_partial_messages_are_no_warning(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "rules.toml").write_text(
        "[[stream]]\ntopic = 'z/{x}'\npayload = 'number'\n"
        "[[stream.read]]\nmember = 'a'\nproperty = 'lighting:temperature'\n"
        "[[stream.read]]\nmember = 'b'\nproperty = 'lighting:presence'\n"
    )
    mapping = load_mapping(tmp_path, "http://gateway.example/")
    with mosquitto() as broker:
        gateway = Gateway()
        async with running(broker.port, gateway, mapping=mapping) as adapter:
            await publish(broker, ("z/1", '{"a": 1, "b": 2}'), ("z/1", '{"c": 5}'), ("z/1", '{"b": 3}'))
            await until(lambda: gateway.values() == ["1", "2", "3"])
            assert (adapter.counters.dropped_payload, adapter.counters.dropped_unmapped) == (0, 0)
    assert said(caplog, "dropped") == []


async def test_messages_with_thousands_of_readings_are_written_in_parts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sizes: list[int] = []
    usual = ReadingCommits.write

    async def noting(self: ReadingCommits, readings: Sequence[Reading], *more: Any) -> None:
        sizes.append(len(readings))
        await usual(self, readings, *more)

    monkeypatch.setattr(ReadingCommits, "write", noting)
    monkeypatch.setattr("lamplighter.adapters.mqtt.adapter.BATCH_READINGS_MAX", 50)
    mapping = rules(tmp_path, 'topic = "many/+"\npayload = "number"\nmember = "{n}"\nproperty = "gateway:temperature"')
    payload = msgspec.json.encode({f"m{number}": number for number in range(20)})
    with mosquitto() as broker:
        gateway = Gateway()
        async with running(broker.port, gateway, mapping=mapping) as adapter:
            gateway.open.clear()
            await publish(broker, *[(f"many/{number}", payload) for number in range(20)])
            await until(lambda: adapter.counters.received == 20)
            gateway.open.set()
            await until(lambda: adapter.counters.committed == 400)
        assert sum(sizes) == 400 and max(sizes) <= 60
        assert await session_is_empty(broker)


async def test_event_model_writes_graphs_and_untrusted_clock_marks_them() -> None:
    with mosquitto() as broker:
        gateway = Gateway()
        async with running(broker.port, gateway, trusted=False, model="event", events_kept=2) as adapter:
            await publish(broker, *[("street/1/temperature", str(number)) for number in range(4)])
            await until(lambda: adapter.counters.committed == 4)
        readings = [text for text in gateway.durable if "GRAPH" in text]
        assert len(readings) == 4
        assert all('timeProblem> "clock"' in text for text in readings)
        assert [text.startswith("DROP SILENT GRAPH") for text in readings] == [False, False, True, True]


async def test_second_topic_of_a_stream_is_refused(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(
        "[[stream]]\ntopic = '{a}/+/t'\nproperty = 'lighting:temperature'\npayload = 'number'\n"
        "sensor = 's/{a}'\nfeature = 'f/{a}'\n"
    )
    mapping = load_mapping(tmp_path, "http://gateway.example/")
    with mosquitto() as broker:
        gateway = Gateway()
        async with running(broker.port, gateway, mapping=mapping) as adapter:
            await publish(broker, ("a/1/t", "1"), ("a/2/t", "2"), ("a/2/t", "3"), ("a/1/t", "4"), ("b/2/t", "5"))
            await until(lambda: adapter.counters.committed == 3)
            assert gateway.values() == ["1", "4", "5"]
            assert adapter.counters.refused == 2
    assert said(caplog, "topic=a/2/t") == ["WARNING"]


async def test_number_of_streams_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    with mosquitto() as broker:
        gateway = Gateway()
        async with running(broker.port, gateway, streams_max=2) as adapter:
            await publish(broker, *[(f"street/{post}/temperature", str(post)) for post in (1, 2, 3, 4, 1)])
            await until(lambda: adapter.counters.received == 5 and adapter.counters.committed == 3)
            assert gateway.values() == ["1", "2", "1"]
            assert adapter.counters.refused == 2
    assert said(caplog, "mqtt.streams_max") == ["WARNING"]


async def test_refused_for_now_is_sent_again_and_the_newest_reading_of_a_stream_stays_last() -> None:
    with mosquitto() as broker:
        gateway = Gateway()
        async with running(broker.port, gateway) as adapter:
            await publish(broker, ("street/1/temperature", "0"), ("street/2/temperature", "10"))
            await until(lambda: adapter.counters.committed == 2)
            gateway.open.clear()
            await publish(broker, ("street/1/presence", "true"))
            await until(lambda: bool(gateway.batches) and "presence" in gateway.batches[-1][-1])
            gateway.errors = [{}, {"1": QueueFullError("full")}]
            await publish(
                broker, ("street/1/temperature", "1"), ("street/2/temperature", "11"), ("street/1/temperature", "2")
            )
            await until(lambda: adapter.counters.received == 6)
            gateway.open.set()
            await until(lambda: adapter.counters.committed == 6)
            assert gateway.values() == ["0", "10", "true", "11", "2", "1", "2"]
        assert await session_is_empty(broker)


@asynccontextmanager
async def one_batch_under_way() -> AsyncIterator[tuple[Mosquitto, Gateway, MqttAdapter]]:
    """One reading is committed, and the next one waits for its answer. A full batch has two messages."""
    with mosquitto() as broker:
        gateway = Gateway()
        async with running(broker.port, gateway, batch_max=2) as adapter:
            await publish(broker, ("street/1/temperature", "0"))
            await until(lambda: adapter.counters.committed == 1)
            gateway.open.clear()
            await publish(broker, ("street/1/temperature", "1"))
            await until(lambda: len(gateway.batches) == 2)
            yield broker, gateway, adapter
        assert await session_is_empty(broker)


async def test_full_batch_is_sent_before_the_one_before_it_is_answered() -> None:
    async with one_batch_under_way() as (broker, gateway, adapter):
        await publish(broker, *[("street/1/temperature", str(number)) for number in range(2, 7)])
        await until(lambda: len(gateway.batches) == 3 and adapter.counters.received == 7)
        await turns()
        assert len(gateway.batches) == 3  # no third one is under way
        gateway.open.set()
        await until(lambda: adapter.counters.committed == 7)
        assert gateway.values() == [str(number) for number in range(7)]


async def test_batch_that_has_overtaken_a_refused_one_is_written_again() -> None:
    async with one_batch_under_way() as (broker, gateway, adapter):
        await publish(broker, ("street/1/temperature", "2"), ("street/1/temperature", "3"))
        await until(lambda: len(gateway.batches) == 3)
        gateway.errors = [{"1": QueueFullError("full")}]
        gateway.open.set()
        await until(lambda: gateway.values()[-3:] == ["1", "2", "3"])
        await until(lambda: adapter.counters.committed == 4)
        assert gateway.values() == ["0", "2", "3", "1", "2", "3"]


async def test_reading_that_the_gateway_refuses_for_good_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with mosquitto() as broker:
        gateway = Gateway()
        gateway.errors = [{"1": StoreError("no")}]
        async with running(broker.port, gateway) as adapter:
            await publish(broker, ("street/1/temperature", "1"))
            await until(lambda: adapter.counters.rejected == 1)
            await publish(broker, ("street/1/temperature", "2"))
            await until(lambda: adapter.counters.committed == 1)
            assert gateway.values() == ["2"]
        assert said(caplog, "the gateway refused it: no") == ["ERROR"]
        assert await session_is_empty(broker)


async def test_closed_engine_client_ends_the_adapter() -> None:
    with mosquitto() as broker:
        gateway = Gateway()
        gateway.closed = True
        settings = MqttSettings(host="127.0.0.1", port=broker.port)
        adapter = MqttAdapter(settings, STREET, AdapterContext(cast(Any, gateway)))
        task = asyncio.create_task(adapter.run())
        await subscribed(adapter).wait()
        await publish(broker, ("street/1/temperature", "1"))
        with pytest.raises(ExceptionGroup) as raised:
            await task
        assert raised.group_contains(UpstreamError)


async def test_refused_credentials_are_said_and_right_ones_are_taken(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    passwords, password = tmp_path / "passwords", tmp_path / "password"
    subprocess.run(
        [require_command("mosquitto_passwd"), "-b", "-c", str(passwords), "lamplighter", "right"],
        check=True,
        timeout=60,
    )
    with mosquitto(settings=["allow_anonymous false", f"password_file {passwords}"]) as broker:
        password.write_text("wrong\n")
        keys: dict[str, Any] = {"username": "lamplighter", "password_file": str(password)}
        async with running(broker.port, Gateway(), connected=False, **keys) as adapter:
            await until(lambda: bool(said(caplog, "check username and password_file")))
            assert not subscribed(adapter).is_set()
        password.write_text("right\n")
        async with running(broker.port, Gateway(), **keys):
            pass
    assert said(caplog, "check username and password_file") == ["WARNING"]
    assert not said(caplog, "wrong")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed certificate of 127.0.0.1; its key is beside it as key.pem."""
    file = tmp_path / "certificate.pem"
    command = (
        f"{require_command('openssl')} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        f" -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 -keyout {file.with_name('key.pem')} -out {file}"
    )
    subprocess.run(command.split(), check=True, capture_output=True, timeout=60)
    return file


def encrypted(certificate: Path) -> list[str]:
    return ["allow_anonymous true", f"certfile {certificate}", f"keyfile {certificate.with_name('key.pem')}"]


async def test_tls_record_of_many_messages_is_read_to_its_end_and_acknowledged_in_order(certificate: Path) -> None:
    acknowledged: list[int] = []

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """As much of MQTT 3.1.1 as it takes to send 40 messages in one write (mosquitto writes one by one)."""
        with suppress(asyncio.IncompleteReadError):
            while True:
                kind, size = await reader.readexactly(2)
                body = await reader.readexactly(size)
                if kind >> 4 == 1:  # CONNECT
                    writer.write(b"\x20\x02\x00\x00")
                elif kind >> 4 == 8:  # SUBSCRIBE to two filters
                    writer.write(b"\x90\x04" + body[:2] + b"\x01\x01")
                    topic = b"street/1/temperature"
                    parts = [len(topic).to_bytes(2, "big") + topic + bytes([0, mid, 0x37]) for mid in range(1, 41)]
                    writer.write(b"".join(b"\x32" + bytes([len(part)]) + part for part in parts))
                elif kind >> 4 == 4:  # PUBACK
                    acknowledged.append(int.from_bytes(body, "big"))
        writer.close()

    port = free_port()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    async with await asyncio.start_server(broker, "127.0.0.1", port, ssl=context):
        settings = MqttSettings(host="127.0.0.1", port=port, tls=True, ca_file=str(certificate), queue_max=7)
        gateway = Gateway()
        gateway.open.clear()
        adapter = MqttAdapter(settings, STREET, AdapterContext(cast(Any, gateway)))
        task = asyncio.create_task(adapter.run())
        await until(lambda: adapter.counters.received >= 7)
        await turns()
        assert acknowledged == []
        gateway.open.set()
        await until(lambda: len(acknowledged) == 40)
        task.cancel()
        await asyncio.wait([task])
    assert acknowledged == list(range(1, 41))
    assert gateway.values() == ["7"] * 40


async def test_connection_that_fails_while_the_adapter_ends_is_nobodys_error(monkeypatch: pytest.MonkeyPatch) -> None:
    connecting, go_on = threading.Event(), threading.Event()

    def connect(*_: object) -> None:
        connecting.set()
        go_on.wait()
        raise ConnectionRefusedError

    monkeypatch.setattr(mqtt.Client, "connect", connect)
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, about: told.append(about))
    task = asyncio.create_task(
        MqttAdapter(MqttSettings(host="127.0.0.1", port=1), STREET, AdapterContext(cast(Any, Gateway()))).run()
    )
    await until(connecting.is_set)
    task.cancel()
    await turns()
    go_on.set()
    await asyncio.wait([task])
    assert task.cancelled()
    del task
    gc.collect()
    await turns()
    assert not told


async def test_tls_broker_is_read(certificate: Path) -> None:
    plain = free_port()
    with mosquitto(settings=[*encrypted(certificate), f"listener {plain} 127.0.0.1"]) as broker:
        gateway = Gateway()
        async with running(broker.port, gateway, tls=True, ca_file=str(certificate)) as adapter:
            messages = [("street/1/temperature", str(number)) for number in range(300)]
            await asyncio.to_thread(partial(broker.publish, *messages, port=plain))
            await until(lambda: adapter.counters.committed == 300)
            assert gateway.values() == [str(number) for number in range(300)]


# paho leaves the socket of a failed handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
async def test_broker_with_an_unknown_certificate_is_not_trusted(
    certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        with mosquitto(settings=encrypted(certificate)) as broker:
            async with running(broker.port, Gateway(), connected=False, tls=True) as adapter:
                await until(lambda: bool(said(caplog, "certificate verify failed")))
                assert not subscribed(adapter).is_set()
    finally:
        gc.collect()  # here, and not in a test that comes later


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"password_file": "/nowhere/password"}, "mqtt.password_file"),
        ({"tls": True, "ca_file": "/nowhere/ca.pem"}, "mqtt.ca_file"),
    ],
)
async def test_settings_that_cannot_work_stop_the_start(changes: dict[str, object], named: str) -> None:
    settings = msgspec.convert({"host": "127.0.0.1"} | changes, MqttSettings)

    with pytest.raises(ConfigurationError, match=named):
        await MqttAdapter(settings, STREET, AdapterContext(cast(Any, Gateway()))).run()


async def test_broker_without_rules_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"mapping/\*\.toml"):
        mapping = load_mapping(tmp_path, "http://gateway.example/")
        await MqttAdapter(MqttSettings(host="127.0.0.1"), mapping, AdapterContext(cast(Any, Gateway()))).run()


async def take_session_over(broker: Mosquitto) -> None:
    """Another client with our identifier connects for a moment, so that the broker ends our connection."""

    def connect() -> None:
        rival = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=MqttSettings().session, clean_session=False, manual_ack=True
        )
        accepted = []
        rival.on_connect = lambda *_: accepted.append(True)
        rival.connect("127.0.0.1", broker.port)
        while not accepted:
            assert rival.loop(1.0) == 0
        rival.disconnect()
        while rival.loop(0.1) == 0:
            pass

    await asyncio.to_thread(connect)


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
async def test_session_is_kept_by_both_protocols(protocol: str) -> None:
    with mosquitto() as broker:
        gateway = Gateway()
        async with running(broker.port, gateway, protocol=protocol):
            pass
        await publish(broker, ("street/1/temperature", "20"), ("street/1/temperature", "21"))
        async with running(broker.port, gateway, protocol=protocol) as adapter:
            await until(lambda: adapter.counters.committed == 2)
        assert gateway.values() == ["20", "21"]
        gateway.open.clear()
        async with running(broker.port, gateway, protocol=protocol):
            await publish(broker, ("street/1/temperature", "22"))
            await until(lambda: bool(gateway.batches) and "22" in gateway.batches[-1][-1])
        gateway.open.set()
        async with running(broker.port, gateway, protocol=protocol) as adapter:
            await until(lambda: adapter.counters.committed == 1)
        assert gateway.values() == ["20", "21", "22"]


async def test_time_of_a_reading_can_be_an_mqtt_5_user_property(tmp_path: Path) -> None:
    table = 'topic = "meter/{meter}"\nproperty = "lighting:power"\npayload = "number"\ntime = "property at"'
    mapping = rules(tmp_path, table)
    message = ["-t", "meter/1", "-m", "7", "-D", "publish", "user-property", "at", "2026-01-02T03:04:05Z"]
    with mosquitto() as broker:
        gateway = Gateway()
        async with running(broker.port, gateway, mapping=mapping, protocol="5") as adapter:
            await asyncio.to_thread(
                subprocess.run,
                [require_command("mosquitto_pub"), "-V", "5", "-p", str(broker.port), "-q", "1", *message],
                check=True,
                timeout=60,
            )
            await until(lambda: adapter.counters.committed == 1)
        assert "2026-01-02T03:04:05" in gateway.durable[-1]


async def test_reading_that_is_older_by_its_own_time_is_counted_and_not_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    table = 'topic = "t/{n}"\nproperty = "lighting:power"\npayload = "number"\nmember = "v"\ntime = "member at"'
    with mosquitto() as broker:
        gateway = Gateway()
        async with running(broker.port, gateway, mapping=rules(tmp_path, table)) as adapter:
            for value, second in (1, 10), (2, 5), (3, 11):
                await publish(broker, ("t/1", f'{{"v": {value}, "at": "2026-01-02T03:04:{second:02}Z"}}'))
            await until(lambda: adapter.counters.committed == 2)
            assert adapter.counters.outdated == 1
        assert gateway.values() == ["1", "3"]
    assert said(caplog, "mqtt reading outdated") == ["DEBUG"]


async def test_brokers_are_read_side_by_side_and_rules_may_name_one(tmp_path: Path) -> None:
    mapping = rules(
        tmp_path,
        'topic = "both/{n}"\nproperty = "lighting:power"\npayload = "number"\nsensor = "sensor/both/{n}"',
        'topic = "one/{n}"\nproperty = "lighting:power"\npayload = "number"\nbroker = "barn"',
    )
    with mosquitto() as house, mosquitto() as barn:
        gateway = Gateway()
        barn_table = {"host": "127.0.0.1", "port": barn.port}
        async with running(house.port, gateway, mapping=mapping, brokers={"barn": barn_table}) as adapter:
            async with asyncio.timeout(TIMEOUT_S):
                await adapter.tried.wait()
            await publish(house, ("both/1", "1"), ("one/1", "2"))
            await publish(barn, ("both/2", "3"), ("one/1", "4"))
            await until(lambda: adapter.counters.committed == 3)
            await publish(house, ("both/1", "5"))
            await until(lambda: adapter.counters.committed == 4)
            assert f"broker 127.0.0.1:{barn.port} connected" in adapter.status()
            await asyncio.to_thread(barn.stop)
            await until(lambda: f"broker 127.0.0.1:{barn.port} is not connected, retrying" in adapter.status())
            assert f"broker 127.0.0.1:{house.port} connected" in adapter.status()
        assert sorted(gateway.values()) == ["1", "3", "4", "5"]


async def test_shared_subscription_gives_each_message_to_one_of_the_group() -> None:
    with mosquitto() as broker:
        gateway = Gateway()
        async with (
            running(broker.port, gateway, shared="readers", client_id="a") as first,
            running(broker.port, gateway, shared="readers", client_id="b") as second,
        ):
            messages = [("street/1/temperature", str(number)) for number in range(100)]
            await publish(broker, *messages)
            await until(lambda: first.counters.committed + second.counters.committed >= 100)
            assert min(first.counters.received, second.counters.received) > 0
        assert sorted(map(int, gateway.values())) == list(range(100))


async def test_broker_sees_whether_the_adapter_is_online() -> None:
    def status(broker: Mosquitto) -> str:
        command = [require_command("mosquitto_sub"), "-p", str(broker.port), "-t", "lamplighter/lamp/status"]
        return subprocess.run(
            [*command, "-C", "1", "-W", "60"], check=True, capture_output=True, text=True, timeout=90
        ).stdout.strip()

    with mosquitto() as broker:
        async with running(broker.port, Gateway(), client_id="lamp") as adapter:
            assert await asyncio.to_thread(status, broker) == "online"
            connection = adapter.brokers["default"].inbox._connection
            assert connection is not None
            sock = connection.client.socket()
            assert sock is not None
            sock.shutdown(socket.SHUT_RDWR)
            await until(lambda: adapter.counters.connections == 2 and subscribed(adapter).is_set())
            await until(lambda: any("lamplighter/lamp/status" in line for line in broker.log))
            assert await asyncio.to_thread(status, broker) == "online"
        assert await asyncio.to_thread(status, broker) == "offline"


async def test_subscriptions_that_the_broker_lost_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client takes the session over and ends its subscriptions; the broker still says that it has it."""
    monkeypatch.setattr(connection, "ANSWER_S", 1.0)
    with mosquitto() as broker:
        gateway = Gateway()
        async with running(broker.port, gateway, client_id="lamp", canary_s=1) as adapter:
            await publish(broker, ("street/1/temperature", "1"))
            await until(lambda: adapter.counters.committed == 1)
            await asyncio.to_thread(end_subscriptions, broker.port, "lamp")
            await until(lambda: adapter.counters.connections >= 2)
            numbers = itertools.count(2)
            async with asyncio.timeout(TIMEOUT_S):
                while adapter.counters.committed == 1:  # until it is subscribed again, these go nowhere
                    await publish(broker, ("street/1/temperature", str(next(numbers))))
                    await asyncio.sleep(0.2)


def end_subscriptions(port: int, client_id: str) -> None:
    """As a client of the same identifier, which makes the broker disconnect the other one."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=False)
    ended = threading.Event()
    client.on_connect = lambda *_: client.unsubscribe(
        ["street/+/presence", "street/+/temperature", f"lamplighter/{client_id}/canary"]
    )
    client.on_unsubscribe = lambda *_: ended.set()
    client.connect("127.0.0.1", port)
    client.loop_start()
    assert ended.wait(TIMEOUT_S)
    client.disconnect()
    client.loop_stop()
    client.on_connect = client.on_unsubscribe = None  # the cycle would keep paho's sockets open


async def test_broker_without_permission_for_the_canary_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ANSWER_S", 0.5)
    (tmp_path / "acl").write_text("topic read street/#\ntopic write street/#\n")
    with mosquitto(settings=["allow_anonymous true", f"acl_file {tmp_path / 'acl'}"]) as broker:
        gateway = Gateway()
        async with running(broker.port, gateway, canary_s=1) as adapter:
            await until(lambda: adapter.brokers["default"].inbox._canary.given_up)
            await until(lambda: subscribed(adapter).is_set())
            await publish(broker, ("street/1/temperature", "1"))
            await until(lambda: adapter.counters.committed == 1)


async def test_broker_that_asks_for_a_certificate_gets_the_adapters(certificate: Path) -> None:
    """The broker trusts one certificate, its own, which the adapter shows as well."""
    asking = [*encrypted(certificate), f"cafile {certificate}", "require_certificate true"]
    plain = free_port()
    with mosquitto(settings=[*asking, f"listener {plain} 127.0.0.1"]) as broker:
        gateway = Gateway()
        keys = {"certificate_file": str(certificate), "key_file": str(certificate.with_name("key.pem"))}
        async with running(broker.port, gateway, tls=True, ca_file=str(certificate), **keys) as adapter:
            await asyncio.to_thread(partial(broker.publish, ("street/1/temperature", "7"), port=plain))
            await until(lambda: adapter.counters.committed == 1)
        async with running(broker.port, gateway, connected=False, tls=True, ca_file=str(certificate)) as adapter:
            await until(lambda: adapter.counters.attempts >= 2)
            assert not subscribed(adapter).is_set()

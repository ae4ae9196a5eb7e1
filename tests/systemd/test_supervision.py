"""Processes under a systemd that the test plays."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lamplighter.adapters.model.last_messages import LastMessages
from lamplighter.adapters.parts import AdapterContext
from lamplighter.cloud_sync.settings import GatewayKeys
from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.addresses import local_url, plain_addresses
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.gates.opening import Protection
from lamplighter.gateway.monitoring.adapter_services import AdapterServices
from lamplighter.gateway.service.adapter_process import (
    FIRST_STEP_S,
    AdapterConfiguration,
    AdapterService,
    ended_by_signals,
    read_configuration,
    stop_on_signals,
    turn_s,
)
from lamplighter.gateway.service.configuration import Configuration
from lamplighter.gateway.service.enabled import DISABLED
from lamplighter.gateway.service.enabled import main as wanted_main
from lamplighter.gateway.service.reload import LIVE, change
from lamplighter.gateway.service.supervision import GatewayService, status_line
from lamplighter.gateway.settings import GatewaySettings, Settings
from lamplighter.gateway.systemd import Passed, Supervisor
from tests.support.brokers import free_port
from tests.support.fork_server import ADAPTER
from tests.support.gateway_parts import FakeClock
from tests.support.places import ROOT
from tests.support.running_gateway import TIMEOUT_S, until
from tests.support.tables import each_row
from tests.systemd.played import PlayedSystemd

PLAIN = """
[gateway]
durability = "off"
clock_trusted = "always"
[http]
port = {http}
[websocket]
port = {ws}
"""


def tcp() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=64)


def port(listening: socket.socket) -> int:
    return int(listening.getsockname()[1])


def configure(folder: Path, text: str = PLAIN, **ports: int) -> None:
    (folder / "lamplighter.toml").write_text(text.format(**ports))


def asked(at: int, path: str = "/health") -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", at, timeout=60)
    try:
        connection.request("GET", path)
        return json.load(connection.getresponse())
    finally:
        connection.close()


def test_a_gateway_from_its_first_step_to_its_last(tmp_path: Path) -> None:
    """One process for the whole story: ready, alive, reloaded, killed, taken up again without a refused connection."""
    http_socket, ws_socket = tcp(), tcp()
    configure(tmp_path, http=port(http_socket), ws=port(ws_socket))
    with PlayedSystemd(tmp_path, ("http", http_socket), ("ws", ws_socket)) as systemd:
        systemd.start()
        assert "STATUS=0 subscriptions, 0.0 updates/s, log not synced" in systemd.heard("READY=1")
        assert asked(port(http_socket))["status"] == "ok"
        systemd.heard("WATCHDOG=1")

        # Stopped, it is silent; then it goes on.
        assert systemd.process is not None
        systemd.process.send_signal(signal.SIGSTOP)
        os.waitpid(systemd.process.pid, os.WUNTRACED)  # until it has stopped
        systemd.forget()
        assert systemd.silent_for(1.5, "WATCHDOG")
        systemd.process.send_signal(signal.SIGCONT)
        systemd.heard("WATCHDOG=1")

        # What cannot be taken up is refused, and what was before holds.
        text = PLAIN.format(http=port(http_socket), ws=port(ws_socket))
        mistakes = {
            "[query]\nrows_max = 0\n": "query.rows_max",
            # With these it would not start again.
            '[security]\ngrant_read = ["no iri"]\n': "security.grant_read",
            '[security]\nenabled = true\nlocal_users = ["nobody-here"]\n': "security.local_users",
        }
        for mistake, told in mistakes.items():
            (tmp_path / "lamplighter.toml").write_text(text + mistake)
            systemd.process.send_signal(signal.SIGHUP)
            systemd.heard("RELOADING=1")
            systemd.heard("READY=1")
            last = systemd.output.splitlines()[-1]
            assert "configuration refused, keeping the previous one" in last and told in last
        (tmp_path / "lamplighter.toml").write_text(text + "[query]\nconcurrent_max = 1\n[log]\nsegment_s_max = 7\n")
        systemd.process.send_signal(signal.SIGHUP)
        systemd.heard("RELOADING=1")
        systemd.heard("READY=1")
        assert "applied=query.concurrent_max" in systemd.output
        assert "need a restart keys=log.segment_s_max" in systemd.output

        # Whoever connects while there is no process waits for the next one.
        systemd.end(signal.SIGKILL)
        answers: list[Any] = []
        waiting = threading.Thread(target=lambda: answers.append(asked(port(http_socket))))
        waiting.start()
        time.sleep(0.3)
        assert not answers
        systemd.forget()
        systemd.start()
        waiting.join(TIMEOUT_S)
        assert answers and answers[0]["status"] == "ok"
        systemd.heard("READY=1")
        systemd.process.send_signal(signal.SIGTERM)
        systemd.heard("STOPPING=1")
        assert systemd.process.wait(60) == 0


def test_unix_sockets_that_were_passed_stay(tmp_path: Path) -> None:
    """Also on Python 3.13, whose servers remove the socket that they were given a path of."""
    paths = {name: tmp_path / f"{name}.sock" for name in ("http", "ws")}
    passed = []
    for name, path in paths.items():
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(path))
        listening.listen(8)
        passed.append((name, listening))
    security = 'enabled = true\nhost = "127.0.0.1"\nhttps_port = 0\nwss_port = 0\n'
    text = f'[gateway]\ndurability = "off"\n[security]\n{security}socket_folder = "{tmp_path}"\n'
    configure(tmp_path, text)
    inodes = {path: path.stat().st_ino for path in paths.values()}
    with PlayedSystemd(tmp_path, *passed) as systemd:
        systemd.start()
        systemd.heard("READY=1")  # its own first query came by the Unix socket
        assert f"http here      {paths['http']}" in systemd.output
        assert systemd.end(signal.SIGTERM) == 0
        assert {path: path.stat().st_ino for path in paths.values()} == inodes


def test_an_adapter_is_ready_though_its_broker_is_away(tmp_path: Path) -> None:
    http_socket, ws_socket = tcp(), tcp()
    broker = free_port()  # nobody is there
    mapping = tmp_path / "mapping"
    mapping.mkdir()
    rule = '[[stream]]\ntopic = "street/{post}/presence"\nproperty = "lighting:presence"\npayload = "boolean"\n'
    (mapping / "street.toml").write_text(rule)
    configure(
        tmp_path,
        PLAIN + f'[mqtt]\nhost = "127.0.0.1"\nport = {broker}\n',
        http=port(http_socket),
        ws=port(ws_socket),
    )
    with PlayedSystemd(tmp_path, ("http", http_socket), ("ws", ws_socket)) as systemd:
        systemd.start()
        systemd.heard("READY=1")
        other = tmp_path / "adapter"
        other.mkdir()
        (other / "lamplighter.toml").symlink_to(tmp_path / "lamplighter.toml")
        (other / "mapping").symlink_to(mapping)
        with PlayedSystemd(other, watchdog_s=6) as adapter:
            adapter.start("-m", "lamplighter.gateway.service.adapter_process", "mqtt")
            adapter.heard("WATCHDOG=1")
            assert f"broker 127.0.0.1:{broker} is not connected" in adapter.heard("READY=1")
            (mapping / "street.toml").write_text(rule.replace("street", "road"))
            assert adapter.process is not None
            adapter.process.send_signal(signal.SIGHUP)
            adapter.heard("RELOADING=1")
            adapter.heard("READY=1")
            assert "configuration reloaded applied=mapping" in adapter.output
            adapter.process.send_signal(signal.SIGHUP)
            adapter.heard("RELOADING=1")
            adapter.heard("READY=1")
            assert "applied=nothing" in adapter.output
            assert adapter.end(signal.SIGTERM) == 0


RECOVERY = """
import sys, time
from lamplighter.gateway.__main__ import main
from lamplighter.gateway.loop.runner import Runner

def recover(self, progress):
    for count in range(120):
        progress(1000)
        time.sleep(1)

Runner.recover = recover
sys.exit(main(["run", *sys.argv[1:]]))
"""
"""A gateway that recovers for two minutes, as one with much log behind its newest snapshot."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_recovery_is_over_when_it_is_told_to_be(tmp_path: Path, number: signal.Signals) -> None:
    configure(tmp_path, http=0, ws=0)
    with PlayedSystemd(tmp_path) as systemd:
        systemd.start("-c", RECOVERY)
        systemd.heard("EXTEND_TIMEOUT_USEC")
        assert systemd.end(number) == -number, "which systemd takes for an orderly end"


def adapters_folder(folder: Path, text: str) -> Path:
    """With settings in which the gateway is nowhere, and a rule of the MQTT adapter's."""
    (folder / "mapping").mkdir()
    rule = '[[stream]]\ntopic = "street/{post}/presence"\nproperty = "lighting:presence"\npayload = "boolean"\n'
    (folder / "mapping/street.toml").write_text(rule)
    settings = folder / "lamplighter.toml"
    settings.write_text(f"[websocket]\nport = {free_port()}\n{text}")
    return settings


@each_row(
    ("adapter", "wanted", "unwanted"),
    [
        ("mqtt", '[mqtt]\nhost = "127.0.0.1"\nport = 1\n', '[mqtt]\nhost = ""\n'),  # nobody is there
        ("coap", "", "[coap]\nenabled = false\n"),
        ("http-devices", "[http_devices]\nenabled = true\n", ""),
        ("modbus", "[modbus]\nenabled = true\n", ""),
    ],
)
def test_an_adapter_that_is_not_wanted_any_more_ends_and_is_left_out(
    tmp_path: Path, adapter: str, wanted: str, unwanted: str
) -> None:
    settings = adapters_folder(tmp_path, wanted)
    with PlayedSystemd(tmp_path, watchdog_s=6) as systemd:
        systemd.start("-m", "lamplighter.gateway.service.adapter_process", adapter)
        systemd.heard("WATCHDOG=1")
        settings.write_text(unwanted)
        assert systemd.process is not None
        systemd.process.send_signal(signal.SIGHUP)
        systemd.heard("RELOADING=1")
        assert "disabled by the configuration" in systemd.heard("READY=1")
        systemd.heard("STOPPING=1")
        assert systemd.process.wait(60) == 0
        assert "configuration reloaded, adapter stops reason=" in systemd.output
        assert "ERROR" not in systemd.output
    assert wanted_main([adapter, str(settings)]) == DISABLED


@each_row(
    ("adapter", "unwanted", "told"),
    [
        ("mqtt", "", "mqtt.host is empty"),
        ("coap", "[coap]\nenabled = false\n", "coap.enabled is false"),
        ("http-devices", "", "http_devices.enabled is false"),
        ("modbus", "", "modbus.enabled is false"),
    ],
    is_amount=True,
)
def test_an_adapter_that_is_not_wanted_does_not_start(tmp_path: Path, adapter: str, unwanted: str, told: str) -> None:
    settings = adapters_folder(tmp_path, unwanted)
    command = [sys.executable, "-m", "lamplighter.gateway.service.adapter_process", adapter, "--config", str(settings)]
    for supervised in ({}, {"NOTIFY_SOCKET": "@nobody"}):
        environment = {**os.environ, **supervised}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert told in done.stderr


# --- the parts ---


@pytest.mark.parametrize(
    ("command", "file", "text", "told"),
    [
        (("-m", "lamplighter.gateway", "run"), "data/security/keys.json", "{", "keys.json is damaged"),
        (("-m", ADAPTER, "mqtt"), "mapping/wrong.toml", '[[stream]]\ntopic = "a"\nnonsense = 1\n', "nonsense"),
    ],
    ids=["gateway", "adapter"],
)
def test_a_start_that_fails_says_why(tmp_path: Path, command: tuple[str, ...], file: str, text: str, told: str) -> None:
    secure = '[security]\nenabled = true\nhost = "127.0.0.1"\nhttps_port = 0\nwss_port = 0\n'
    configure(tmp_path, secure + '[mqtt]\nhost = "127.0.0.1"\n')
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    with PlayedSystemd(tmp_path) as systemd:
        systemd.start(*command)
        assert told in systemd.heard("STATUS=failed: ")


def test_a_long_error_is_short_enough_for_systemd(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(tmp_path / "notify"))
        supervisor = Supervisor({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        with pytest.raises(ValueError, match="é"), supervisor.failures():
            raise ValueError("\n".join(f"é 🙂 {number}" for number in range(5000)))
        message = told.recv(1_000_000)
    assert message.startswith("STATUS=failed: é 🙂 0 é".encode()) and len(message) <= 4096


async def test_signals_end_the_process_only_while_nobody_hears_them() -> None:
    stop = stop_on_signals()
    heard = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with ended_by_signals():
        assert {signal.getsignal(number) for number in heard} == {signal.SIG_DFL}
    assert {number: signal.getsignal(number) for number in heard} == heard
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(stop.wait(), TIMEOUT_S)


def test_turns_come_three_times_in_what_the_watchdog_waits() -> None:
    def service(limit_s: float) -> Supervisor:
        return Supervisor({"WATCHDOG_USEC": str(int(limit_s * 1e6))})

    assert turn_s(service(3)) == 1.0
    assert turn_s(service(60)) == 10.0
    assert turn_s(Supervisor({})) == 10.0


class StuckRunner:
    """Takes steps and never finishes one, though the loop turns."""

    def __init__(self) -> None:
        self.asked = 0
        self.figures = self
        self.adapter_services = AdapterServices(Settings, Counter({"coap": 1}))

    def status(self) -> dict[str, Any]:
        return {**FIGURES, "counters": {"updates": 0}}

    def probe(self) -> asyncio.Future[None]:
        self.asked += 1
        return asyncio.get_running_loop().create_future()


async def test_a_queue_that_gets_nothing_done_does_not_feed_the_watchdog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamplighter.gateway.service.supervision.check_answer", lambda place, path: None)
    runner: Any = StuckRunner()
    nothing: Any = None
    addresses = plain_addresses(Settings(), 8000, 9000)

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        service = Supervisor({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000"})
        gateway = GatewayService(service, runner, nothing, addresses, Settings(), None)
        listening.setblocking(False)
        heard = b""

        async def ready() -> bool:
            nonlocal heard
            with contextlib.suppress(BlockingIOError):
                while True:
                    heard += listening.recv(1000)
            return b"READY=1" in heard and runner.asked > 0

        running = asyncio.ensure_future(gateway.run())
        await until(ready)
        await asyncio.sleep(0.3)  # ten times what the watchdog waits
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await ready()
    assert b"READY=1" in heard
    assert runner.asked == 1
    assert b"WATCHDOG" not in heard


FIGURES = {"status": "ok", "problems": [], "subscriptions": 12}


@each_row(
    ("figures", "rate", "line"),
    [
        (FIGURES, 3.14, "12 subscriptions, 3.1 updates/s, log synced"),
        ({**FIGURES, "subscriptions": 1}, 0, "1 subscription, 0.0 updates/s, log synced"),
        (
            {**FIGURES, "status": "refusing", "problems": ["updates are refused: the disk is full"]},
            0,
            "updates are refused: the disk is full; 12 subscriptions, 0.0 updates/s",
        ),
        (
            {
                **FIGURES,
                "status": "damaged",
                "problems": ["log failed: it was damaged", "clock degraded: it is not set"],
            },
            1,
            "log failed: it was damaged (and 1 more); 12 subscriptions, 1.0 updates/s",
        ),
    ],
)
def test_the_line_for_people_says_what_matters(figures: dict[str, Any], rate: float, line: str) -> None:
    assert status_line(figures, rate, "fsync") == line


def test_a_change_is_applied_or_waits() -> None:
    before = Settings()
    after = msgspec.convert(
        {"limits": {"evaluation_ms_max": 9, "delta_quads_max": 9}, "gateway": {"data": "x"}, "mqtt": {"host": "b"}},
        Settings,
    )
    found = change(before, after)
    assert found.applied == ["limits.evaluation_ms_max"]
    assert found.waiting == ["gateway.data", "limits.delta_quads_max"]
    assert found.settings.limits.evaluation_ms_max == 9
    assert found.settings.limits.delta_quads_max == before.limits.delta_quads_max
    assert found.settings.gateway == before.gateway
    assert change(found.settings, after).applied == []


def test_keys_that_are_applied_are_keys() -> None:
    for table, keys in LIVE.items():
        assert keys <= set(getattr(Settings(), table).__struct_fields__), table


def test_a_process_of_an_adapter_loads_neither_store_nor_gates() -> None:
    heavy = (
        "pyoxigraph",
        "starlette",
        "cryptography",
        "lamplighter.gateway.loop.runner",
        "lamplighter.adapters.mqtt.adapter",
        "paho",
    )
    script = (
        "import sys, lamplighter.gateway.service.adapter_process; "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_adapters_and_the_gateway_read_one_model(tmp_path: Path) -> None:
    (tmp_path / "lamplighter.toml").write_text("[websocket]\nhost = '::1'\nport = 9001\n[coap]\nconcurrency_max = 5\n")
    configuration = Configuration.read(tmp_path / "lamplighter.toml", None)
    url = local_url(configuration.settings, configuration.data)
    assert url == "ws://[::1]:9001/subscribe"
    assert read_configuration(tmp_path / "lamplighter.toml") == AdapterConfiguration.of(
        configuration.settings, tmp_path, url
    )


def test_a_mistake_in_another_table_stops_no_adapter(tmp_path: Path) -> None:
    config = tmp_path / "lamplighter.toml"
    config.write_text("[http]\nport = -1\n[nonsense]\nkey = 1\n")
    assert read_configuration(config).base_iri == Settings().gateway.base_iri
    config.write_text("[websocket]\nport = -1\n")
    with pytest.raises(ConfigurationError, match=re.escape("websocket.port")):
        read_configuration(config)


def test_the_shipper_and_the_gateway_share_their_keys() -> None:
    assert issubclass(GatewaySettings, GatewayKeys)
    assert not set(GatewayKeys.__struct_fields__) & set(GatewaySettings.__annotations__), "declared once"


class FakeAdapter:
    """Ends when it is told to."""

    def __init__(self) -> None:
        self.tried = asyncio.Event()
        self.over = asyncio.Event()

    async def run(self) -> None:
        await self.over.wait()
        raise ConfigurationError("it cannot work")

    def status(self) -> str:
        return "fine"


class FakeParts:
    """Makes this adapter."""

    def __init__(self, adapter: FakeAdapter) -> None:
        self._made = adapter

    def adapter(self, context: AdapterContext, before: object) -> FakeAdapter:
        return self._made

    def adopt(self, running: object, before: object) -> bool:
        return False


def context(client: Any) -> AdapterContext:
    return AdapterContext(client, LastMessages(), lambda: True)


class FakeClient:
    connected = True

    async def ask(self, query: str) -> bool:
        return True


async def test_an_adapter_that_ends_takes_its_service_with_it() -> None:
    adapter = FakeAdapter()
    parts = FakeParts(adapter)
    service = AdapterService(Supervisor({}), context(FakeClient()), lambda: parts)
    running = asyncio.ensure_future(service.run(parts))
    await asyncio.sleep(0)
    adapter.over.set()
    with pytest.raises(ConfigurationError):
        await asyncio.wait_for(running, TIMEOUT_S)


class AwayClient:
    """Of a gateway that does not answer. connected: though it may be connected."""

    def __init__(self, *, connected: bool) -> None:
        self.connected = connected
        self.back = asyncio.Event()

    async def ask(self, query: str) -> bool:
        await self.back.wait()
        self.connected = True
        return True


@pytest.mark.parametrize("connected", [True, False])
async def test_an_adapter_whose_gateway_does_not_answer_is_ready_and_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connected: bool
) -> None:
    assert FIRST_STEP_S == 60, "as documented"
    monkeypatch.setattr("lamplighter.gateway.service.adapter_process.FIRST_STEP_S", 0.2)
    client: Any = AwayClient(connected=connected)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        service = Supervisor({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "3000000"})
        parts = FakeParts(FakeAdapter())
        running = asyncio.ensure_future(AdapterService(service, context(client), lambda: parts).run(parts))
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(TIMEOUT_S):
            assert await loop.sock_recv(listening, 1000) == b"WATCHDOG=1"
            assert await loop.sock_recv(listening, 1000) == b"STATUS=waiting for the gateway; fine"
            while (said := await loop.sock_recv(listening, 1000)) == b"WATCHDOG=1":
                pass
        assert said == b"READY=1\nSTATUS=waiting for the gateway; fine"
        client.back.set()
        async with asyncio.timeout(TIMEOUT_S):
            while (said := await loop.sock_recv(listening, 1000)) != b"STATUS=fine":
                assert said == b"WATCHDOG=1"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


# --- listeners ---


def protection(folder: Path, **tables: Any) -> Protection:
    (folder / "data").mkdir(exist_ok=True)
    return Protection(msgspec.convert(tables, Settings), folder, folder / "data", FakeClock(), Disk())


def test_plain_mode_serves_nothing_on_the_network_that_systemd_has_opened(tmp_path: Path) -> None:
    everywhere = socket.create_server(("0.0.0.0", 0))
    tables = {"http": {"port": 0}, "websocket": {"port": 0}}
    with pytest.raises(ConfigurationError, match=r"security\.enabled is false.*disable --now lamplighter-http.socket"):
        protection(tmp_path, **tables).open([Passed("http", everywhere)])
    everywhere.close()


def test_a_socket_elsewhere_is_served_besides(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    elsewhere = tcp()
    where = port(elsewhere)
    gates = protection(tmp_path, http={"port": 0}, websocket={"port": 0}).open([Passed("http", elsewhere)])
    ports = [listener.port for listener in gates.http]
    assert ports[0] != where and ports[1] == where
    assert f":{ports[0]}/" in gates.addresses.query
    assert "systemd socket served besides the configured address table=http" in caplog.text
    for listener in (*gates.http, *gates.websocket):
        listener.socket.close()


def test_a_socket_of_another_name_is_not_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = tcp()
    gates = protection(tmp_path, http={"port": 0}, websocket={"port": 0}).open([Passed("unknown", other)])
    assert other.fileno() == -1
    assert "systemd socket not served" in caplog.text
    for listener in (*gates.http, *gates.websocket):
        listener.socket.close()

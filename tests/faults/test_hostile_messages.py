"""Hostile messages to both gates: no fault, no growth, and well-behaved clients are served all the time.

60,000 of them; `HOSTILE_MESSAGES=204000` in the environment sends more.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import select
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import pytest
from websockets.frames import CloseCode
from websockets.sync.client import connect

from benchmarks.gateway_process import ROOT, Gateway, gateway_process
from tests.support.hostile import BINARY, CLOSE, TEXT, Hostile, RawSocket, frame

pytestmark = pytest.mark.faults

SENT = int(os.environ.get("HOSTILE_MESSAGES", "60000"))
MESSAGES, REQUESTS, TORN, FRAMES = (SENT * share // 204 for share in (132, 51, 15, 6))
PARTS = 3
AT_ONCE, PER_SOCKET, SOCKETS = 50, 1_000, 2
WEBSOCKET = "/subscribe"
DEFLATE = "Sec-WebSocket-Extensions: permessage-deflate\r\n"
MODE_MESSAGES, MODE_REQUESTS, MODE_TORN, MODE_FRAMES = 1_000, 400, 100, 100
"""For each other mode of the gateway."""
DISCONNECTED, DISCONNECTED_MAX = "disconnected", 40
"""Sockets that the gateway may close because more waits for them than the outbox holds, of 130."""
BROKEN_OFF, BROKEN_OFF_MAX = "broken off", 50
"""Answers to queries that reach their limit of time when a part was sent, of 50,000."""
UNKNOWN_MESSAGES, UNKNOWN_REQUESTS, UNKNOWN_AT_ONCE = 20_000, 4_000, 50
"""In secure mode, without credentials."""
_ENDED = (ConnectionError, ssl.SSLError)
"""What a connection that the gateway closed raises."""
IDLE_S = 15
"""Longer than any pause in which a busy machine runs neither side, and what is well-behaved seems idle: a gateway that
is held for 1 s of processor time does not answer for 5 s there."""
STALLED = 60
GROWTH_BYTES_MAX, GROWTH_OF_PEAK_MAX = 50 * 1024 * 1024, 1 / 16
"""Of resident memory from the first third of the messages on, each time with an empty dataset: a number, and a share of
the most that was resident in between. A page goes back to the system when nothing on it lives, so what is left grows
with the peak: 10 MB at one of 240 MB, 55 MB at 1.2 GB, of which 5 MB went during the next part."""
PEAK_BYTES_MAX = 1536 * 1024 * 1024
"""The most that may be resident in between: 700,000 quads that a message may have made are 200 MB of it. 760 MB in a
run beside other work."""
HELD_MS_MAX = 1_000.0
"""Processor time for which the gateway may be kept from everything else at a time. 250 ms is the aim, and 225 ms were
measured at a load of 12. The release of a replaced store of 720,000 quads, one native call, takes 160 to 290 ms, and up
to 400 ms if they were removed and added again, and 600 ms beside other work."""
LOG = "gateway.log"
COUNT = "SELECT (COUNT(*) AS ?n) { { ?s ?p ?o } UNION { GRAPH ?g { ?s ?p ?o } } }"
USUAL = ("browser refused", "client disconnected", "subscription expired", "subscription ended")
REST_S = 300.0
"""Longer than upkeep takes to renew the store, let the old one go, collect garbage and give memory back."""
REFUSED_MAX = 20
"""Updates of the well-behaved client that may have to be sent again while the queue is full."""
PAUSE_S, SERVED_S_MAX = 0.03, 120.0
"""Seconds between two updates of the well-behaved client, and for one of them: 3 s behind all kinds at once, 30 s when
the machine has six times as much to do as it can."""
ANSWERED_S_MAX = 120.0  # what is costly is tried in forks, two at a time


@dataclass(frozen=True)
class Target:
    """A gateway, and how it is reached. token: of a client in secure mode."""

    gateway: Gateway
    tls: ssl.SSLContext | None = None
    token: str = ""

    @property
    def _header(self) -> str:
        return f"Authorization: Bearer {self.token}\r\n" if self.token else ""

    def websocket(self, headers: str = "") -> RawSocket:
        port = self.gateway.websocket[1]
        return RawSocket(port, websocket=WEBSOCKET, tls=self.tls, headers=self._header + headers)

    def http(self) -> RawSocket:
        return RawSocket(self.gateway.http[1], tls=self.tls)

    def signed(self, request: bytes) -> bytes:
        """A request with the token, if there is one."""
        return request.replace(b"\r\n", b"\r\n" + self._header.encode(), 1)


class Wellbehaved(Thread):
    """Replaces a value again and again beside the others, and is notified of each."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(name="well-behaved client")
        self._gateway = gateway
        self._ended = Event()
        self._round_lock = Lock()
        self.failed: BaseException | None = None
        self.rounds = 0
        self.refused = 0
        self.longest_s = 0.0

    def run(self) -> None:
        try:
            with connect(self._gateway.urls["subscribe"], ping_interval=None) as client:
                query = "SELECT ?v { GRAPH <http://good> { <http://good/s> <http://good/p> ?v } }"
                client.send(json.dumps({"subscribe": {"sparql": query, "alias": "good"}}))
                told = json.loads(client.recv(SERVED_S_MAX))["notification"]
                assert (told["alias"], told["sequence"]) == ("good", 0)
                while not self._ended.is_set():
                    with self._round_lock:
                        self._round(client)
                    self._ended.wait(PAUSE_S)  # it is to be served, not to be the load
        except BaseException as error:
            self.failed = error

    def _round(self, client: Any) -> None:
        """Each notification goes on from the one before, and the value is in one of them."""
        self.rounds += 1
        begun = time.monotonic()
        text = (
            "DELETE WHERE { GRAPH <http://good> { <http://good/s> <http://good/p> ?v } } ; "
            f"INSERT DATA {{ GRAPH <http://good> {{ <http://good/s> <http://good/p> {self.rounds} }} }}"
        )
        request = urllib.request.Request(
            self._gateway.urls["update"], text.encode(), {"Content-Type": "application/sparql-update"}
        )
        while not self._accepted(request):
            self.refused += 1
            self._ended.wait(PAUSE_S)
        added: list[str] = []
        while str(self.rounds) not in added:
            told = json.loads(client.recv(SERVED_S_MAX))["notification"]
            added = [row["v"]["value"] for row in told["addedResults"]["results"]["bindings"]]
        assert added == [str(self.rounds)]
        self.longest_s = max(self.longest_s, time.monotonic() - begun)

    def _accepted(self, request: urllib.request.Request) -> bool:
        """Whether an update was executed; otherwise the queue was full, and it is to be sent again."""
        try:
            with urllib.request.urlopen(request, timeout=SERVED_S_MAX) as answer:
                assert answer.status == 200
            return True
        except urllib.error.HTTPError as error:
            with error:
                if error.code == HTTPStatus.TOO_MANY_REQUESTS and self.refused < REFUSED_MAX:
                    return False
                raise AssertionError(f"{error.code}: {error.read().decode()}") from error

    def away(self) -> Lock:
        """It asks for nothing while this is held."""
        return self._round_lock

    def end(self) -> None:
        self._ended.set()
        self.join(60)
        if self.failed is not None:
            raise self.failed


@contextmanager
def wellbehaved(gateway: Gateway) -> Iterator[Wellbehaved]:
    client = Wellbehaved(gateway)
    client.start()
    try:
        yield client
    finally:
        client.end()


def check_error(members: Any, status: int | None = None) -> None:
    """An error in the three-member form; status: that of the HTTP answer."""
    assert isinstance(members, dict), members
    assert set(members) - {"alias", "spuid"} == {"error", "status_code", "error_description"}, members
    assert isinstance(members["error"], str) and members["error"], members
    assert isinstance(members["error_description"], str) and members["error_description"], members
    assert isinstance(members["status_code"], int) and 400 <= members["status_code"] < 600, members
    assert status is None or members["status_code"] == status
    assert members["error"] != "internal", members


def hostile_messages(target: Target, hostile: Hostile, count: int, seen: Counter[str]) -> None:
    """WebSocket messages: each that has an alias is answered with it, and the socket goes on, unless its answers and
    notifications are more than the client takes in; then it is another socket that goes on."""
    while count > 0:
        with target.websocket() as one:
            told = one.messages()
            try:
                for start in range(0, min(count, PER_SOCKET), AT_ONCE):
                    answered(one, told, hostile, start, seen)
            except _ENDED:
                seen[DISCONNECTED] += 1
        count -= PER_SOCKET


def answered(one: RawSocket, told: Iterator[bytes], hostile: Hostile, start: int, seen: Counter[str]) -> None:
    """Sends some messages at once, and waits until each that has an alias is answered."""
    due: dict[Any, bytes] = {f"end {start}": b""}
    data = bytearray()
    for number in range(AT_ONCE):
        alias = f"{start} {number}"
        payload, has_answer = hostile.message(alias)
        data += frame(TEXT, payload)
        if has_answer:
            due[alias] = payload
    data += frame(BINARY, json.dumps({"unsubscribe": {"spuid": "none", "alias": f"end {start}"}}).encode())
    one.send(bytes(data))
    deadline = time.monotonic() + ANSWERED_S_MAX
    while due:
        assert time.monotonic() < deadline, [payload[:500] for payload in due.values()]
        text = next(told, None)
        if text is None:
            # By a reset as a rule, which overtakes what says why.
            assert one.closed is not None and one.closed[0] == CloseCode.TRY_AGAIN_LATER, one.closed
            raise ConnectionAbortedError(one.closed[1])
        if not text:
            continue
        message = json.loads(text)
        kind = next(iter(message))
        if kind == "error":
            check_error(message)
            kind, body = message["error"], message
        else:
            assert kind in ("notification", "updated", "answer", "resumed", "unsubscribed"), message
            body = message[kind]
        seen[kind] += 1
        alias = body.get("alias")
        due.pop(alias if isinstance(alias, str) else None, None)


def hostile_requests(target: Target, hostile: Hostile, count: int, seen: Counter[str]) -> None:
    """HTTP requests that are framed well: each is answered, errors in the three-member form. An answer that is long may
    break off at its limit of time."""
    with ExitStack() as stack:
        one: RawSocket | None = None
        for _ in range(count):
            one = one or stack.enter_context(target.http())
            request = target.signed(hostile.request())
            try:
                one.send(request)
                status, headers, body = one.answer()
            except _ENDED:
                seen[BROKEN_OFF] += 1
                stack.close()
                one = None
                continue
            seen[str(status)] += 1
            if status >= 400:
                check_error(json.loads(body), status)
            if headers.get("connection") == "close":
                stack.close()
                one = None


def torn_requests(target: Target, hostile: Hostile, count: int, seen: Counter[str]) -> None:
    """Bytes that are no whole request: refused, or left without an answer, and the connection ends."""
    for _ in range(count):
        with target.http() as one:
            with suppress(*_ENDED):  # it may be closed before all is sent
                one.send(hostile.torn())
                if target.tls is not None:
                    continue  # it cannot be shut in one direction
                one.shut()
            answer = one.drained()
            if answer:
                assert answer.startswith(b"HTTP/1.1 "), answer
            seen[answer[9:12].decode() or "nothing"] += 1


def torn_frames(target: Target, hostile: Hostile, count: int) -> None:
    """Bytes that are no frames: the socket is closed, which the others do not notice."""
    for _ in range(count):
        with target.websocket(hostile.random.choice(("", DEFLATE))) as one:
            with suppress(*_ENDED):
                one.send(hostile.frames())
                if target.tls is not None:
                    continue
                one.shut()
            one.drained()


class Stalled:
    """Connections that begin something and do not go on; the gateway has to end them."""

    def __init__(self, gateway: Gateway, stack: ExitStack) -> None:
        begun = (
            b"POST /update HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
            b"POST /update HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/sparql-update\r\n"
            b"Content-Length: 10000\r\n\r\nCLEAR",
            b"GET /subscribe HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nX-Slow: ",
            b"",
        )
        self._open: list[socket.socket] = []
        for number in range(STALLED):
            for address in (gateway.http, gateway.websocket):
                one = stack.enter_context(socket.create_connection(address))
                one.sendall(begun[number % len(begun)])
                self._open.append(one)
            lost = RawSocket(gateway.websocket[1], websocket=WEBSOCKET)  # answers no ping
            stack.callback(lost.__exit__)
            lost.send(frame(TEXT, json.dumps({"subscribe": {"sparql": "SELECT * { ?s ?p ?o }"}}).encode()))
            self._open.append(lost.socket)

    def wait(self, limit_s: float) -> None:
        """Returns when all of them were ended, each given another byte now and then."""
        deadline = time.monotonic() + limit_s
        while self._open:
            assert time.monotonic() < deadline, f"{len(self._open)} connections are open still"
            for one in select.select(self._open, [], [], 0.2)[0]:
                with suppress(ConnectionError):
                    if one.recv(1 << 16):
                        continue
                self._open.remove(one)
            for one in self._open[: 2 * STALLED : 2]:
                with suppress(ConnectionError):
                    one.send(b"x")


def settled(gateway: Gateway, sockets: int) -> dict[str, Any]:
    """The gateway's figures once the connections that were closed have gone."""
    for _ in range(1200):
        found = gateway.figures()
        if found["websocket"]["sockets"] == sockets and found["spu_manager"]["subscribers"] == sockets:
            return found
        time.sleep(0.05)  # polling another process
    raise AssertionError(f"{found['websocket']}, {found['spu_manager']}")


def lamplighter(*arguments: str, config: Path) -> subprocess.CompletedProcess[str]:
    """A command of the gateway's machine, with what it printed."""
    command = [sys.executable, "-m", "lamplighter.gateway", *arguments, "--config", str(config)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def resident_bytes(gateway: Gateway) -> int:
    found = re.search(r"VmRSS:\s*(\d+) kB", Path(f"/proc/{gateway.process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def count_quads(gateway: Gateway) -> int:
    """How many quads the store has, by a query."""
    request = urllib.request.Request(
        gateway.urls["query"], COUNT.encode(), {"Content-Type": "application/sparql-query"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return int(json.load(answer)["results"]["bindings"][0]["n"]["value"])


def rested(gateway: Gateway, good: Wellbehaved, enough_bytes: float = 0) -> dict[str, Any]:
    """The gateway's figures without messages or data, when upkeep has given everything back, or when no more than
    `enough_bytes` are resident. Nothing is asked meanwhile, since upkeep waits for a quiet moment."""
    settled(gateway, 1)
    request = urllib.request.Request(gateway.urls["update"], b"DROP ALL", {"Content-Type": "application/sparql-update"})
    with good.away():
        with urllib.request.urlopen(request, timeout=SERVED_S_MAX) as answer:
            assert answer.status == 200
        end = time.monotonic() + REST_S
        while True:
            found = settled(gateway, 1)
            if not found["engine"]["upkeep_backlog"] or found["engine"]["resident_bytes"] <= enough_bytes:
                return found
            assert time.monotonic() < end, f"{found['engine']['upkeep_backlog']} works of upkeep wait still"
            time.sleep(0.1)  # polling another process


@pytest.fixture(autouse=True)
def noteworthy(tmp_path: Path) -> Iterator[None]:
    """Prints what the gateway logged besides what each hostile message causes, the last lines of it. An exception that
    nobody expected is logged with its traceback, and its request refused."""
    yield
    lines = (tmp_path / LOG).read_text().splitlines()
    print(*[line for line in lines if not any(usual in line for usual in USUAL)][-40:], sep="\n")
    assert not any(line.startswith("Traceback") for line in lines)


def test_hostile_messages_break_nothing(tmp_path: Path) -> None:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    told = [Counter[str]() for _ in range(SOCKETS)]  # each thread counts by itself
    answers, torn = Counter[str](), Counter[str]()
    tables: dict[str, dict[str, int | str]] = {
        "gateway": {"durability": "off", "clock_trusted": "always"},
        "http": {"port": 0, "idle_s": IDLE_S},
        # Longer: a client of this process may read late on a busy machine.
        "websocket": {"port": 0, "ping_s": 4 * IDLE_S, "compression": True},
        "limits": {"evaluation_ms_max": 100},
        "query": {"time_ms_max": 2_000},
        "delayed": {"pending_max": 1_000},
    }
    with gateway_process(tmp_path, tmp_path / LOG, **tables) as gateway, ExitStack() as stack:
        good = stack.enter_context(wellbehaved(gateway))
        target = Target(gateway)

        def messages(seen: Counter[str], hostile: Hostile) -> None:
            hostile_messages(target, hostile, MESSAGES // PARTS // SOCKETS, seen)

        def torn_ones(hostile: Hostile) -> None:
            torn_requests(target, hostile, TORN // PARTS, torn)
            torn_frames(target, hostile, FRAMES // PARTS)

        def send(part: int) -> None:
            """All kinds beside each other: what one waits for, a trial above all, is time for the others."""
            works: list[Callable[[Hostile], None]] = [
                *(partial(messages, seen) for seen in told),
                lambda hostile: hostile_requests(target, hostile, REQUESTS // PARTS, answers),
                torn_ones,
            ]
            with ThreadPoolExecutor(len(works)) as threads:
                hostiles = (Hostile(seed + 10 * part + number) for number in range(len(works)))
                for sent in [threads.submit(work, hostile) for work, hostile in zip(works, hostiles, strict=True)]:
                    sent.result()

        send(0)  # the text caches are nearly full now
        warm = rested(gateway, good)
        stalled = Stalled(gateway, stack)
        send(1)
        stalled.wait(120)
        enough = warm["engine"]["resident_bytes"] + GROWTH_BYTES_MAX
        middle = rested(gateway, good, enough)
        send(2)
        end = rested(gateway, good, enough)
        print(sum(told, Counter()), answers, torn, sep="\n")
        print(f"{good.rounds} rounds of the well-behaved client, the longest {good.longest_s:.3f} s")
        print(f"{good.refused} of its updates were sent again")
        for name in ("resident_bytes", "open_files"):
            print(name, [part["engine"][name] for part in (warm, middle, end)])
        peak = gateway.resident_bytes_max()
        print(f"the loop was held {end['engine']['loop_held_ms']}")
        print(f"{peak} bytes were resident at most; the gateway took {gateway.cpu_s():.0f} s of a processor")
        disconnected = sum(seen[DISCONNECTED] for seen in told)
        assert end["engine"]["status"] == "ok", end["engine"]["problems"]
        assert end["engine"]["loop_held_ms"]["processor_max"] <= HELD_MS_MAX
        assert answers[BROKEN_OFF] <= BROKEN_OFF_MAX
        assert disconnected <= min(end["websocket"]["disconnected"], DISCONNECTED_MAX)
        assert end["engine"]["open_files"] <= warm["engine"]["open_files"] + 2
        grown = end["engine"]["resident_bytes"] - warm["engine"]["resident_bytes"]
        assert grown <= GROWTH_BYTES_MAX + GROWTH_OF_PEAK_MAX * peak
        assert peak <= PEAK_BYTES_MAX
        assert good.rounds > 100
        assert good.longest_s < SERVED_S_MAX
        hostile_messages(target, Hostile(seed + 10 * PARTS), PER_SOCKET, told[0])  # for the recovery
        quads = count_quads(gateway)
    assert gateway.process.returncode == 0
    with gateway_process(tmp_path, tmp_path / LOG, **tables) as gateway:  # recovery of all that they wrote
        assert gateway.figures()["engine"]["status"] == "ok", gateway.figures()["engine"]["problems"]
        assert count_quads(gateway) == quads
    assert gateway.process.returncode == 0
    verified = lamplighter("verify", config=tmp_path / "lamplighter.toml")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def registered(gateway: Gateway, tls: ssl.SSLContext) -> str:
    """The token of a new client, which may do what the settings grant."""
    headers = {"Content-Type": "application/json", "Accept": "application/json"}

    def ask(name: str, body: bytes, **more: str) -> Any:
        url = gateway.urls["update"].replace("/secure/update", f"/oauth/{name}")
        request = urllib.request.Request(url, body, headers | more)
        with urllib.request.urlopen(request, timeout=60, context=tls) as answer:
            return json.load(answer)

    body = {"register": {"client_identity": "hostile", "grant_types": ["client_credentials"]}}
    found = ask("register", json.dumps(body).encode())["credentials"]
    secret = base64.b64encode(f"{found['client_id']}:{found['client_secret']}".encode()).decode()
    return str(ask("token", b"", Authorization=f"Basic {secret}")["token"]["access_token"])


@pytest.mark.parametrize("mode", ["store on disk", "secure"])
def test_hostile_messages_break_nothing_in_other_modes(tmp_path: Path, mode: str) -> None:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    seen, config = Counter[str](), tmp_path / "lamplighter.toml"
    tables: dict[str, dict[str, Any]] = {
        "gateway": {"durability": "off", "clock_trusted": "always"},
        "limits": {"evaluation_ms_max": 100},
        "query": {"time_ms_max": 2_000},
    }
    tls = None
    if mode == "secure":
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        grants = {name: ["*"] for name in ("grant_read", "grant_write", "grant_subscribe")}
        tables["security"] = {"enabled": True, "host": "127.0.0.1", "https_port": 0, "wss_port": 0, **grants}
        tables["security"] |= {"registration": "open", "attempts_per_min": 1_000_000, "requests_per_s": 1_000_000}
    else:
        tables["store"] = {"path": "store"}

    def status(gateway: Gateway) -> dict[str, Any]:
        if tls is None:
            return gateway.figures()
        asked = lamplighter("status", "--json", config=config)
        assert asked.returncode == 0, asked.stdout + asked.stderr
        return dict(json.loads(asked.stdout))

    def count(gateway: Gateway) -> str:
        if tls is None:
            return str(count_quads(gateway))
        asked = lamplighter("query", COUNT, config=config)
        assert asked.returncode == 0, asked.stdout + asked.stderr
        return asked.stdout

    with gateway_process(tmp_path, tmp_path / LOG, **tables) as gateway:
        target = Target(gateway, tls, registered(gateway, tls) if tls else "")
        works: list[Callable[[Hostile], None]] = [
            lambda hostile: hostile_messages(target, hostile, MODE_MESSAGES, seen),
            lambda hostile: hostile_requests(target, hostile, MODE_REQUESTS, Counter()),
            lambda hostile: torn_requests(target, hostile, MODE_TORN, Counter()),
            lambda hostile: torn_frames(target, hostile, MODE_FRAMES),
        ]
        with ThreadPoolExecutor(len(works)) as threads:
            for sent in [threads.submit(work, Hostile(seed + number)) for number, work in enumerate(works)]:
                sent.result()
        found = status(gateway)
        print(seen, found["engine"]["loop_held_ms"], sep="\n")
        assert found["engine"]["status"] == "ok", found["engine"]["problems"]
        assert found["engine"]["loop_held_ms"]["processor_max"] <= HELD_MS_MAX
        assert gateway.resident_bytes_max() <= PEAK_BYTES_MAX
        quads = count(gateway)
    assert gateway.process.returncode == 0
    with gateway_process(tmp_path, tmp_path / LOG, **tables) as gateway:
        found = status(gateway)
        assert found["engine"]["status"] == "ok", found["engine"]["problems"]
        assert count(gateway) == quads
    assert gateway.process.returncode == 0
    verified = lamplighter("verify", config=config)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_hostile_messages_without_credentials_change_nothing(tmp_path: Path) -> None:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    told, answers = Counter[str](), Counter[str]()
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE  # an attacker does not mind whom he attacks
    tables: dict[str, dict[str, int | str]] = {
        "gateway": {"durability": "off", "clock_trusted": "always"},
        "security": {
            "enabled": True,
            "host": "127.0.0.1",
            "https_port": 0,
            "wss_port": 0,
            "attempts_per_min": 1_000_000,  # the tokens themselves are to be judged
        },
    }
    config = tmp_path / "lamplighter.toml"
    with gateway_process(tmp_path, tmp_path / LOG, **tables) as gateway:

        def messages(hostile: Hostile, count: int) -> None:
            """Each socket is refused message by message, until it is closed."""
            while count > 0:
                with RawSocket(gateway.websocket[1], websocket="/secure/subscribe", tls=tls) as one:
                    with suppress(*_ENDED):
                        for number in range(UNKNOWN_AT_ONCE):
                            one.send(frame(TEXT, hostile.without_permission(str(number))))
                        one.send(frame(CLOSE, b""))
                    with suppress(*_ENDED):
                        for text in filter(None, one.messages()):
                            message = json.loads(text)
                            check_error(message)
                            told[message["error"]] += 1
                count -= UNKNOWN_AT_ONCE

        def requests(hostile: Hostile, count: int) -> None:
            with ExitStack() as stack:
                one: RawSocket | None = None
                for _ in range(count):
                    one = one or stack.enter_context(RawSocket(gateway.http[1], tls=tls))
                    try:
                        one.send(hostile.request())
                        status, headers, body = one.answer()
                    except _ENDED:
                        headers = {"connection": "close"}
                    else:
                        answers[str(status)] += 1
                        if status >= 400 and body:
                            check_error(json.loads(body), status)
                    if headers.get("connection") == "close":
                        stack.close()
                        one = None

        def send(half: int) -> None:
            messages(Hostile(seed + half), UNKNOWN_MESSAGES // 2)
            requests(Hostile(seed + 10 + half), UNKNOWN_REQUESTS // 2)

        send(0)
        warm = resident_bytes(gateway)
        send(1)
        end = resident_bytes(gateway)
        print(told, answers, f"resident {warm} {end}", sep="\n")
        assert end <= warm + GROWTH_BYTES_MAX
        asked = lamplighter("query", "SELECT * { { ?s ?p ?o } UNION { GRAPH ?g { ?s ?p ?o } } } LIMIT 1", config=config)
        assert asked.returncode == 0 and "urn:" not in asked.stdout, asked.stdout + asked.stderr
    assert gateway.process.returncode == 0

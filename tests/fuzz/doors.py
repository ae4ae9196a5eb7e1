"""Random texts of the grammar at every door that takes a query or an update: ``python -m tests.fuzz.doors``.

``--seconds 2700`` bounds a run, ``--seed`` repeats one, ``--file`` sends the texts of a file only. It looks for

- holds: processor time of the gateway's event loop beside which a small request waits, and an honest update,
- contradictions: query, subscription, notifications and update that have different rows, or one of which knows a text
  that another one does not,
- faults: errors of the gateway itself, and connections that it ends.

Processor time is that of the gateway's threads without the watchdog's, so other work on the machine does not count.
What is found is printed, and kept in build/fuzz: the text, what was asked before it, and what the gateway's threads
were doing meanwhile.
"""

from __future__ import annotations

import argparse
import http.client
import json
import secrets
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from benchmarks.gateway_process import Gateway, gateway_process
from benchmarks.sockets import Socket
from tests.fuzz.watchdog import cpu_s, holds, stacks
from tests.support.grown_texts import GrownTexts, data
from tests.support.receivers import HttpReceiver

HELD_S_MAX = 0.25
"""Processor time that anything may take while others wait."""
SESSION_S = 90.0
"""A gateway is replaced after that, and after each hold, since the longest one is what it remembers."""
WAIT_S = 120.0
KEPT = Path("build/fuzz")
IDLE_S = 2.0
"""A gateway may close a connection that is not used for a while."""
CALLS_MAX = 12
"""Calls before the one that is told, which are kept with it."""
_MCP = "2026-07-28"
_MCP_META = {
    "io.modelcontextprotocol/protocolVersion": _MCP,
    "io.modelcontextprotocol/clientCapabilities": {},
}
_TOGGLED = "<urn:s1> <urn:p0> 6 . <urn:s2> <urn:p1> <urn:s1> ; <urn:q> 9 . <urn:s30> <urn:p2> 'text 1'"
CHANGES = (
    f"INSERT DATA {{ {_TOGGLED} }}",
    f"DELETE DATA {{ {_TOGGLED} }}",
    "DELETE WHERE { <urn:s1> <urn:p0> ?o }",
)
"""What happens while a text is subscribed to."""
_HONEST = {"update": {"sparql": "INSERT DATA { <urn:s0> <urn:p0> 0 }", "alias": "honest"}}
"""What is there already: it waits for its turn as any other, and changes nothing."""
Rows = Counter[frozenset[tuple[str, str]]]


class RefusedError(Exception):
    """code: of the gateway's answer."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(f"{status} {code}: {text[:200]}")
        self.status, self.code, self.text = status, code, text


def rows(results: Any) -> Rows:
    """The bag of results in JSON. Blank nodes are alike."""

    def term(member: dict[str, Any]) -> str:
        if member["type"] == "bnode":
            return "_"
        if member["type"] == "triple":
            return json.dumps(member["value"], sort_keys=True)
        return "|".join(str(member.get(name, "")) for name in ("type", "value", "datatype", "xml:lang"))

    return Counter(
        frozenset((name, term(member)) for name, member in row.items()) for row in results["results"]["bindings"]
    )


@dataclass
class Waits:
    """The longest waits of small requests beside a door's call, in processor time of the gateway.

    loop: of one that needs the event loop only, in the loop's thread; update: of an honest update, in all threads;
    update_wall: the same by the clock.
    """

    loop: float = 0.0
    update: float = 0.0
    update_wall: float = 0.0
    periods: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Of the longest ones, by time.monotonic."""

    def count(self, kind: str, seconds: float, since: float) -> None:
        if seconds > getattr(self, kind):
            setattr(self, kind, seconds)
            self.periods[kind] = since, time.monotonic()

    def seconds(self) -> dict[str, float]:
        return {name: round(getattr(self, name), 3) for name in _WAITS}


_WAITS = ("loop", "update", "update_wall")


class Canary:
    """Sends small requests all the time, in a thread."""

    def __init__(self, gateway: Gateway, folder: Path) -> None:
        self._gateway, self._folder = gateway, folder
        self._main = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/schedstat")
        self.waits = Waits()
        self._ended = False
        self._threads = [
            threading.Thread(target=self._ask, daemon=True),
            threading.Thread(target=self._tell, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._ended = True
        for thread in self._threads:
            thread.join(WAIT_S)

    def _loop_s(self) -> float:
        return int(self._main.read_text().split()[0]) / 1e9

    def _all_s(self) -> float:
        return self._gateway.cpu_s() - cpu_s(self._folder, self._gateway.process.pid)

    def _ask(self) -> None:
        with suppress(OSError, http.client.HTTPException, RuntimeError):
            connection = http.client.HTTPConnection(*self._gateway.http, timeout=WAIT_S)
            while not self._ended:
                begun, since = self._loop_s(), time.monotonic()
                connection.request("GET", "/nothing")
                connection.getresponse().read()
                self.waits.count("loop", self._loop_s() - begun, since)
                time.sleep(0.01)

    def _tell(self) -> None:
        with suppress(OSError, ValueError):
            honest = Socket(self._gateway.websocket)
            while not self._ended:
                begun, since = self._all_s(), time.monotonic()
                honest.ask(_HONEST)
                self.waits.count("update", self._all_s() - begun, since)
                self.waits.count("update_wall", time.monotonic() - since, since)
                time.sleep(0.01)


@dataclass
class Doors:
    """The doors of one gateway."""

    gateway: Gateway
    receiver: HttpReceiver
    random: Random
    _number: int = 0
    _used: float = 0.0  # when the connection had an answer last
    _http: http.client.HTTPConnection = field(init=False)
    _socket: Socket = field(init=False)
    _messages: deque[bytes] = field(default_factory=deque)
    _followed: str = "none"  # the spuid of the present subscription, empty when it has ended

    def __post_init__(self) -> None:
        self._http = http.client.HTTPConnection(*self.gateway.http, timeout=WAIT_S)
        self._socket = self._connected()

    def _connected(self) -> Socket:
        found = Socket(self.gateway.websocket)
        found._socket.settimeout(WAIT_S)
        return found

    def request(self, method: str, target: str, body: bytes = b"", **headers: str) -> Any:
        """The body of an answer, as JSON if it is. Raises RefusedError."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if time.monotonic() - self._used > IDLE_S:
            self._http.close()  # it is opened again
        self._http.request(method, target, body, named)
        answer = self._http.getresponse()
        content = answer.read()
        self._used = time.monotonic()
        if answer.status >= 400:
            found: Any = {}
            with suppress(ValueError):
                found = json.loads(content)
            error = found.get("error", found.get("title", "")) if isinstance(found, dict) else ""
            raise RefusedError(answer.status, str(error), content.decode(errors="replace"))
        with suppress(ValueError):
            return json.loads(content)
        return content

    # --- queries ---

    def query(self, text: str) -> Rows:
        accept = "application/sparql-results+json"
        return rows(
            self.request("POST", "/query", text.encode(), Content_Type="application/sparql-query", Accept=accept)
        )

    def tool(self, text: str) -> None:
        """As a tool of the Model Context Protocol."""
        call = {"name": "sparql-query", "arguments": {"query": text}, "_meta": _MCP_META}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()
        self.request(
            *("POST", "/mcp", body),
            Content_Type="application/json",
            Accept="application/json, text/event-stream",
            MCP_Protocol_Version=_MCP,
            Mcp_Method="tools/call",
            Mcp_Name="sparql-query",
        )

    def search(self, text: str) -> None:
        """The search of the Web of Things' directory."""
        self.request("GET", f"/search/sparql?query={quote(text)}")

    def page(self, text: str) -> None:
        self.request("GET", f"/page/query.json?query={quote(text)}")

    def past(self, text: str) -> None:
        self.request("GET", f"/query?query={quote(text)}&at=1")

    # --- subscriptions ---

    def socket_query(self, text: str) -> Rows:
        self._number += 1
        answer = self._socket_answer("query", {"sparql": text, "alias": f"q{self._number}"})
        return rows(answer["results"])

    def _socket_answer(self, kind: str, members: dict[str, Any], followed: Rows | None = None) -> dict[str, Any]:
        """The answer to a message. followed: takes the notifications before it."""
        self._socket.tell({kind: members})
        return self._answer(members["alias"], followed)

    def _answer(self, alias: str, followed: Rows | None = None) -> dict[str, Any]:
        while True:
            if not self._messages:
                self._messages.extend(self._socket.hear()[0])
                continue
            message = json.loads(self._messages.popleft())
            if "error" in message and message.get("spuid") == self._followed:
                self._followed = ""  # a commit has ended it, since it would cost too much; that is an answer, too
            elif "error" in message and alias not in (message.get("alias", alias), message.get("spuid")):
                continue  # of a call that had an error before
            if "error" in message:
                raise RefusedError(message.get("status_code", 0), message["error"], json.dumps(message))
            body = next(iter(message.values()))
            if "notification" in message and body["sequence"] and followed is not None:
                followed.update(rows(body["addedResults"]))
                followed.subtract(rows(body["removedResults"]))
            elif alias == body["spuid" if "unsubscribed" in message else "alias"]:
                return dict(body)

    def subscription(self, text: str, change: Callable[[Callable[[str], None]], None]) -> Rows:
        """The rows that a subscriber has after some updates."""
        self._number += 1
        first = self._socket_answer("subscribe", {"sparql": text, "alias": f"s{self._number}"})
        followed = rows(first["addedResults"])
        self.first, self._followed = Counter(followed), first["spuid"]

        def update(text: str) -> None:
            self._number += 1
            self._socket_answer("update", {"sparql": text, "alias": f"u{self._number}"}, followed)

        try:
            change(update)
        finally:
            if self._followed:
                self._followed = ""
                self._socket.tell({"unsubscribe": {"spuid": first["spuid"]}})
                self._answer(first["spuid"], followed)
        return +followed

    def stream(self, text: str) -> None:
        """By Server-Sent Events, until its first result."""
        host, port = self.gateway.http
        with socket.create_connection((host, port), timeout=WAIT_S) as one:
            one.sendall(f"GET /subscribe?query={quote(text)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            found = b""
            while b"\ndata: " not in found and b"event:" not in found:
                part = one.recv(65536)
                found += part
                if not part or (b"\r\n\r\n" in found and b" 200 " not in found.partition(b"\r\n")[0]):
                    status = int(found.split(b" ")[1]) if found else 0
                    raise RefusedError(status, "", found.decode(errors="replace")[-300:])

    def webhook(self, text: str) -> None:
        body = json.dumps({"query": text, "callback": self.receiver.url()}).encode()
        made = self.request("POST", "/webhooks", body, Content_Type="application/json")
        target = f"/webhooks/{made['id']}"
        for _ in range(200):
            if self.request("GET", target)["state"] not in ("verifying", "new", "pending"):
                break
            time.sleep(0.02)
        self.request("DELETE", target)

    # --- updates ---

    def update(self, text: str) -> None:
        self.request("POST", "/update", text.encode(), Content_Type="application/sparql-update")

    def socket_update(self, text: str) -> None:
        self._number += 1
        self._socket_answer("update", {"sparql": text, "alias": f"u{self._number}"})

    def socket_updates(self, text: str) -> None:
        """Two in one message."""
        self._number += 2
        aliases = [f"u{self._number}", f"u{self._number + 1}"]
        self._socket.tell({"updates": [{"sparql": text, "alias": alias} for alias in aliases]})
        for alias in aliases:
            self._answer(alias)

    def delayed(self, text: str) -> None:
        self.request("POST", "/update?delay=PT0S", text.encode(), Content_Type="application/sparql-update")
        while self.request("GET", "/delayed")["delayed"]:
            time.sleep(0.01)

    # --- languages of their own ---

    def entities(self) -> str:
        """A target of NGSI-LD with a condition."""
        random = self.random
        count = random.choice((1, 3, 30, 300, 2000))
        piece = random.choice(("p0>#", "p0==#,2", "p1!=#", "p0~=x#", "p0", "p0==1..#"))
        texts = [piece.replace("#", str(number)) for number in range(count)]
        if random.random() < 0.3:
            text = "(" * count + piece.replace("#", "1") + ")" * count
        else:
            text = random.choice(";|").join(texts)
        return f"/ngsi-ld/v1/entities?type=*&q={quote(text)}"

    def observations(self) -> str:
        """A target of SensorThings with a filter."""
        random = self.random
        count = random.choice((1, 3, 30, 300, 2000))
        piece = random.choice(("result gt #", "not (result eq #)", "Datastream/id eq '#'", "result add # lt 5"))
        texts = [piece.replace("#", str(number)) for number in range(count)]
        if random.random() < 0.3:
            text = random.choice(("(", "not (")) * count + "result gt 1" + ")" * count
        else:
            text = random.choice((" and ", " or ")).join(texts)
        return f"/v1.1/Observations?$filter={quote(text)}"


class Search:
    """Sends texts and notes what is wrong. seen: what happened how often."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.texts = GrownTexts(random)
        self.seen: Counter[str] = Counter()
        self.found: list[dict[str, Any]] = []
        self.longest: dict[str, Waits] = {}
        self.pattern = ""
        self.calls = deque[tuple[float, str, str]](maxlen=CALLS_MAX)
        self.folder = Path()  # of the present gateway

    def note(
        self, kind: str, door: str, text: str, periods: dict[str, tuple[float, float]] | None = None, **more: Any
    ) -> None:
        """periods: of what is told; what the gateway was doing then is kept with it."""
        self.seen[kind] += 1
        self.found.append({"kind": kind, "door": door, "text": text, "pattern": self.pattern, **more})
        doing: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            for name, (since, until) in dict(periods or {}).items():  # another thread adds some
                doing[name] = {"since": since, "until": until, "stacks": stacks(self.folder, since, until)}
            doing["by its own figures"] = holds(self.folder)
        KEPT.mkdir(parents=True, exist_ok=True)
        path = KEPT / f"doors-{time.time_ns()}.json"
        kept = self.found[-1] | {"calls": list(self.calls), "doing": doing}
        path.write_text(json.dumps(kept, indent=1))
        print(f"{kind} at {door}: {path} {more}", flush=True)

    def applications(self, folder: Path) -> list[str]:
        """Declares some aggregators. Their reactions are not seen by other texts."""
        apps = folder / "apps"
        apps.mkdir()
        texts = []
        for number in range(4):
            query = self.texts.select(self.texts.pattern())
            update = f"DELETE {{ <urn:no> <urn:no> ?s }} WHERE {{ {self.texts.pattern()} }}"
            update = {"sparql": update} | ({"delay": "PT0S"} if number % 2 else {})
            aggregator = {"a": {"query": "Q", "added": "U"}}
            document = {
                "queries": {"Q": {"sparql": query}},
                "updates": {"U": update},
                "extended": {"lamplighter": {"aggregators": aggregator}},
            }
            (apps / f"app{number}.jsap").write_text(json.dumps(document))
            texts += [query, str(update["sparql"])]
        return texts

    @contextmanager
    def watched(self, canary: Canary, door: str, text: str) -> Iterator[None]:
        """Within the context, a door is called."""
        canary.waits = waits = Waits()
        self.calls.append((time.monotonic(), door, text))
        try:
            yield
        except RefusedError as error:
            self.seen[f"{door} {error.status}"] += 1
            if error.status >= 500 and error.status not in (503, 504):
                self.note("fault", door, text, answer=str(error))
            raise
        except (OSError, http.client.HTTPException) as error:
            self.note("fault", door, text, answer=repr(error))
            raise
        else:
            self.seen[f"{door} done"] += 1
        finally:
            longest = self.longest.setdefault(door, Waits())
            for name in _WAITS:
                setattr(longest, name, max(getattr(longest, name), getattr(waits, name)))
            if waits.loop > HELD_S_MAX:
                self.note("hold", door, text, waits.periods, **waits.seconds())
            elif waits.update > HELD_S_MAX:
                self.note("wait", door, text, waits.periods, **waits.seconds())

    def text(self, doors: Doors, canary: Canary, pattern: str) -> None:
        """Sends one to several doors."""
        random = self.random
        query = self.texts.select(pattern)
        results: dict[str, Rows] = {}
        refused: dict[str, RefusedError] = {}

        def change(update: Callable[[str], None]) -> None:
            for text in random.sample(CHANGES, 2):
                update(text)

        def asked(door: str, work: Callable[[], Rows | None], text: str = query) -> None:
            try:
                with self.watched(canary, door, text):
                    found = work()
                if found is not None:
                    results[door] = found
            except RefusedError as error:
                refused[door] = error

        asked("query", lambda: doors.query(query))
        before = results.pop("query", None)
        asked("subscription", lambda: doors.subscription(query, change))
        if before is not None and "subscription" in results and before != doors.first:
            self.note("contradiction", "first result", query, query=len(before), other=len(doors.first))
        door = random.choice(("query", "socket query"))
        asked(door, lambda: doors.query(query) if door == "query" else doors.socket_query(query))
        if door in results and "subscription" in results and results[door] != results["subscription"]:
            self.note("contradiction", "notifications", query, query=len(results[door]))
        unknown = {name for name, error in refused.items() if error.status == 400}
        unknown = {name for name in unknown if "unsupported" not in refused[name].text}
        if unknown and (results or before is not None):
            self.note("contradiction", "/".join(unknown), query, answer=str(refused[min(unknown)]))

        # Updates: the values of one variable, as quads.
        updated = random.choice(("update", "socket update", "socket updates", "delayed"))
        update = f"INSERT {{ GRAPH <urn:out> {{ <urn:row> <urn:has> ?s }} }} WHERE {{ {pattern} }}"
        call = {
            "update": doors.update,
            "socket update": doors.socket_update,
            "socket updates": doors.socket_updates,
            "delayed": doors.delayed,
        }[updated]
        asked(updated, lambda: call(update), update)
        expected = f"SELECT DISTINCT ?s {{ {pattern} }}"
        values: Rows | None = None
        out = Counter[Any]()
        with suppress(RefusedError):
            out = doors.query("SELECT DISTINCT ?s { GRAPH <urn:out> { <urn:row> <urn:has> ?s } }")
            doors.update("DROP SILENT GRAPH <urn:out>")
            values = doors.query(expected)
        if values is not None and updated not in refused:
            values.pop(frozenset(), None)
            if out != values and not (updated == "delayed" and not out):  # a due one may exceed its limit
                self.note("contradiction", updated, update, query=len(values), update=len(out))

        other = random.choice(("stream", "webhook", "tool", "search", "page", "past", "entities", "observations"))
        if other in ("entities", "observations"):
            target = getattr(doors, other)()
            with suppress(RefusedError), self.watched(canary, other, target):
                doors.request("GET", target)
        else:
            asked(other, lambda: getattr(doors, other)(query))

    def session(self, seconds: float, texts: list[str] | None = None) -> None:
        """Texts at one gateway."""
        until = time.monotonic() + min(seconds, SESSION_S)
        with TemporaryDirectory() as temporary, HttpReceiver() as receiver:
            self.folder = folder = Path(temporary)
            declared = self.applications(folder) if texts is None and self.random.random() < 0.5 else []
            log = folder / "gateway.log"
            doors_on = {
                "gateway": {"durability": "off", "clock_trusted": "always"},
                "websocket": {"ping_s": 3600},  # the socket waits for other doors, and does not answer then
                "webhooks": {"enabled": True, "networks": ["127.0.0.0/8"], "ports": []},
                "mcp": {"enabled": True, "sparql": True},
                "sensorthings": {"enabled": True},
                "ngsild": {"enabled": True},
                "wot": {"enabled": True},
            }
            with gateway_process(folder, log, module="tests.fuzz.watchdog", **doors_on) as gateway:
                doors = Doors(gateway, receiver, self.random)
                doors.update(data())
                canary = Canary(gateway, folder)
                count = len(self.found)
                try:
                    while time.monotonic() < until and (texts is None or texts):
                        self.pattern = texts.pop() if texts else self.texts.pattern()
                        self.text(doors, canary, self.pattern)
                        self.seen["texts"] += 1
                        if len(self.found) > count:
                            break
                except (OSError, http.client.HTTPException, ValueError) as error:
                    print(f"the gateway is replaced: {error!r}", flush=True)
                finally:
                    canary.end()
                held: Any = {}
                with suppress(OSError):
                    held = gateway.figures()["engine"]["loop_held_ms"]
                busiest = held.get("processor_max") or 0
                if busiest > HELD_S_MAX * 1000 and len(self.found) == count:
                    self.note("hold by its own figures", "session", "\n".join(declared), **held)
            told = log.read_text()
            if "Traceback" in told or gateway.process.returncode:
                self.note("fault", "log", "\n".join(declared), log=told[-4000:])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.doors", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9))
    parser.add_argument("--file", type=Path, help="the patterns of this file, one a line")
    options = parser.parse_args()
    search = Search(Random(options.seed))
    print(f"seed {options.seed}", flush=True)
    until = time.monotonic() + options.seconds
    if options.file is not None:
        search.session(options.seconds, options.file.read_text().splitlines()[::-1])
    else:
        while (left := until - time.monotonic()) > 0:
            search.session(left)
    print(dict(sorted(search.seen.items())))
    for door, waits in search.longest.items():
        print(door, waits.seconds())
    return min(len(search.found), 1)


if __name__ == "__main__":
    sys.exit(main())

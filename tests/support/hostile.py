"""Hostile messages to the two gates, made from a seed, and the raw sockets that they are sent by."""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import struct
import zlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any
from urllib.parse import quote

from benchmarks import sockets
from lamplighter.engine.protocol import BESIDES_BYTES_MAX
from tests.properties.sparql_texts import Writer, written_case
from tests.support.hostile_texts import Costly, Step

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
TIMEOUT_S = 120.0
CONVERSATIONS = 0.005
"""How often a message begins a conversation of `Costly`; these have five steps or so."""
DOCUMENTS = 0.02
"""How often a request writes a graph."""
PLACES = 0.03
"""How often a request is to the web page, the past, devices or rules on trial."""
FLOODS = 0.005
"""How often frames are very many, and how often they are compressed ones that expand a thousand times."""
_MIB = 1024 * 1024

_ODD = ("", "\0", "\ud800", "💡" * 20, "a" * 70_000, "\\u0000", "' OR 1=1", "?x", "<>", "%00", "\r\n\r\n", "\u202e")
_SOUP = (
    *("SELECT", "ASK", "CONSTRUCT", "WHERE", "{", "}", "(", ")", "?s", "?p", "$o", "<http://a>", "<", ">", "'", '"'),
    *("OPTIONAL", "UNION", "MINUS", "FILTER", "EXISTS", "GRAPH", "SERVICE", "VALUES", "BIND", "AS", "GROUP", "BY"),
    *("INSERT", "DELETE", "DATA", "WITH", "USING", "CLEAR", "ALL", "LOAD", ";", ".", ",", "a", "*", "+", "/", "|"),
    *(
        "1",
        "-1.0e309",
        "true",
        "'x'@en",
        "'1'^^<http://www.w3.org/2001/XMLSchema#integer>",
        "_:b",
        "[]",
        "PREFIX",
        "x:",
    ),
    *(
        "COUNT(*)",
        "NOW()",
        "UUID()",
        "#",
        "\\",
        "\n",
        "LIMIT",
        "OFFSET",
        "99999999999999999999",
        "IN",
        "NOT",
        "!",
        "&&",
    ),
)


_HEADERS = ("Accept", "Authorization", "Access-Control-Request-Method", "X-Odd")
_HOSTS = (
    "evil.example",
    "localhost.evil.example",
    "[::1",
    "a" * 5_000,
    "127.1",
    "\xff",
    "user@localhost",
    "localhost:x",
)


class Hostile:
    """Writes messages. Each is meant to be refused, or at least to do no harm."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._texts: list[str] = []  # good ones
        self._costly = Costly(self.random)
        self._steps: list[Step] = []  # of a conversation, the last first

    def value(self, depth: int = 0) -> Any:
        """Any JSON value."""
        random = self.random
        kinds: list[Callable[[], Any]] = [
            lambda: None,
            lambda: random.choice((True, False)),
            lambda: random.choice((0, -1, 10**30, 1.5, -1e300)),
            lambda: random.choice(_ODD[:2] + _ODD[3:]),
        ]
        if depth < 3:
            kinds.append(lambda: [self.value(depth + 1) for _ in range(random.randrange(4))])
            kinds.append(lambda: {random.choice(("sparql", "alias", "x", "")): self.value(depth + 1)})
        return random.choice(kinds)()

    def soup(self) -> str:
        """SPARQL's words in no order."""
        return " ".join(self.random.choices(_SOUP, k=self.random.randrange(1, 40)))

    def nested(self) -> str:
        """Groups or parentheses, deeper than anybody needs."""
        depth = self.random.choice((5, 300, 5_000, 50_000))
        opening, closing = self.random.choice((("{", "}"), ("(", ")"), ("{ OPTIONAL {", "}}"), ("[ <http://p> ", "]")))
        return f"SELECT * {{ {opening * depth} ?s ?p ?o {closing * self.random.choice((depth, depth - 1, 0))} }}"

    def sparql(self, kind: str) -> str:
        """A text of about that kind: ``subscribe``, ``query`` or ``update``."""
        random = self.random
        choice = random.random()
        if choice < 0.4:
            return self.soup()
        if choice < 0.41:
            return self.nested()
        if choice < 0.45:
            return str(random.choice(_ODD))
        if not self._texts:
            self._texts = [step.text for step in written_case(Writer(random.choice)).steps]
        text = self._texts.pop()
        return self.mutated(text) if random.random() < 0.85 else text

    def mutated(self, text: str) -> str:
        """Some characters gone, doubled, swapped or replaced."""
        random = self.random
        characters = list(text)
        for _ in range(random.randrange(1, 5)):
            if not characters:
                break
            place = random.randrange(len(characters))
            characters[place : place + 1] = random.choice(
                ([], [characters[place]] * 2, [chr(random.randrange(1, 0x250))], list(random.choice('{}"\\<>;,')))
            )
        return "".join(characters)

    def large(self, kind: str, alias: str) -> tuple[bytes, bool]:
        """A message that is large where it need not be, or as long as it may be; as `message`."""
        random = self.random
        if kind in ("query", "subscribe") and random.random() < 0.5:
            term = random.choice(("1 ", ":a ", "<a:b> ", '"a" ', "(1 2) "))
            names = "(?x ?y)" if term.startswith("(") else "?x"
            terms = term * (random.choice((50_000, 2_000_000)) // len(term))
            text = f"PREFIX : <a:> SELECT * {{ VALUES {names} {{ {terms} }} ?x :p ?z }}"
            return json.dumps({kind: {"sparql": text, "alias": alias}}).encode(), True
        many = random.choice((b"1,", b"[],", b"{},", b'"a:",', b'{"sparql":""},')) * 500_000 + b"1"
        if kind == "updates":
            return b'{"updates":[' + many + b"]}", False
        name = random.choice(("authorization", "class", "default-graph-uri", "alias", "resume", "x")).encode()
        return b'{"%b":{"sparql":"ASK {}","%b":[%b]}}' % (kind.encode(), name, many), False

    def message(self, alias: str) -> tuple[bytes, bool]:
        """A WebSocket message, and whether something with that alias has to be answered."""
        random = self.random
        kind = random.choice(("subscribe", "unsubscribe", "update", "query", "updates"))
        if self._steps or random.random() < CONVERSATIONS:
            return self._step(alias), True
        choice = random.random()
        if choice < 0.1:
            return json.dumps({kind: self.value()}).encode(), False
        if choice < 0.15:
            return json.dumps(self.value()).encode(), False
        if choice < 0.151:
            depth = random.choice((500, 20_000, 200_000))
            return random.choice((b"[", b'{"a":', b'{"subscribe":')) * depth, False
        if choice < 0.1515:
            kind = "update" if kind == "updates" else kind
            return json.dumps({kind: {"sparql": "x" * 1_000_000, "alias": alias}}).encode(), True
        if choice < 0.1517:
            return self.large(kind, alias)
        if kind == "unsubscribe":
            member: Any = {"spuid": random.choice((*_ODD[:2], 17, "sepa://subscription/1", None)), "alias": alias}
        elif kind == "updates":
            member = [{"sparql": self.sparql("update"), "alias": alias} for _ in range(random.randrange(3))]
        else:
            member = {"sparql": self.sparql(kind), "alias": alias}
            if random.random() < 0.3:
                odd = ("delay", "at", "missed", "cause", "resume", "request_id", "default-graph-uri", "authorization")
                member[random.choice(odd)] = self.value()
        text = json.dumps({kind: member})
        if random.random() < 0.3:
            return self.mutated(text).encode(errors="surrogatepass"), False
        # Half of a pair is no JSON, and of what is too long no alias is read.
        return text.encode(), member != [] and "\\ud800" not in text and len(text) <= BESIDES_BYTES_MAX

    def _step(self, alias: str) -> bytes:
        """The next one of a conversation, which begins when there is none."""
        self._steps = self._steps or self._costly.conversation()[::-1]
        step = self._steps.pop()
        return json.dumps({step.kind: {**step.more, "sparql": step.text, "alias": alias}}).encode()

    def document(self) -> bytes:
        """An HTTP request that writes a graph."""
        media_type, data = self._costly.body()
        graph = self.random.choice(("default", "graph=urn:hostile:graph", "graph=urn:hostile:other"))
        method = self.random.choice(("PUT", "POST"))
        return (
            f"{method} /graphs?{graph} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media_type}\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        ).encode() + data

    def of_operators(self) -> bytes:
        """A request to the web page, the past, devices or rules on trial."""
        random = self.random
        odd = quote(str(self._odd()), safe="")
        number = random.choice(("-1", "0", "1", "1000", "9" * 12, "9/0", "1/" + "9" * 12, "1e3", odd))
        view = random.choice(("now", "query", "timers", "subscriptions", "health", "log", "devices", "explain"))
        wide = " ".join(f"?v{name}" for name in range(random.choice((1, 1_000))))
        values = " ".join(str(value) for value in range(random.choice((2, 60))))
        query = random.choice((f"SELECT {wide} {{ VALUES ?x {{ {values} }} VALUES ?y {{ {values} }} }}", self.soup()))
        read = (
            f"/page/{view}.{random.choice(('json', 'csv', 'html', odd))}?query={quote(query)}",
            f"/page/{random.choice(('session.json', 'assets/', 'assets/..%2findex.html', '%2e%2e/', odd))}",
            f"/log?{random.choice(('last', 'from', 'to', 'after', 'quads'))}={number}",
            f"/log?after={number}&wait={random.choice(('0', '0.01', 'nan', '31', odd))}",
            f"/explain?{random.choice(('actuation', 'last', 'at'))}={random.choice((odd, number, '%3Cx%3E'))}",
            f"/query?query={quote(query)}&at={random.choice((number, '2026-01-01T00:00:00Z', odd))}",
            f"/devices/{odd}",
            f"/settings/check{random.choice(('', odd))}",
        )
        written = (
            (f"/devices/{random.choice(('actuator/', ''))}{odd}", {"action": "set", "state": self.value()}),
            (f"/devices/{odd}", {"action": self.value(), "name": self._odd(), "area": self.value()}),
            ("/page/login", {"client": self._odd(), "secret": self.value()}),
            ("/page/logout", self.value()),
            ("/mapping/try", {"topic": self._odd(), "payload": self._odd(), "rule": self._rule()}),
            ("/mapping/try", {"topic": "a/b", "payload_base64": random.choice(("A" * 100_000, "=", "\u00e9"))}),
        )
        if random.random() < 0.6:
            return f"GET {random.choice(read)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        target, members = random.choice(written)
        body = json.dumps(members).encode()
        own = random.choice(("", "X-Lamplighter-Page: 1\r\nCookie: __Host-lamplighter=x.y.z\r\n"))
        return f"POST {target} HTTP/1.1\r\nHost: localhost\r\n{own}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def _odd(self) -> str:
        """An odd text that a URL has room for and UTF-8 can hold."""
        return str(self.random.choice([text for text in _ODD if len(text) < 1_000 and text != "\ud800"]))

    def _rule(self) -> str:
        """A mapping rule in TOML, more or less."""
        depth = self.random.choice((3, 3_000))
        rule = '[[stream]]\ntopic = "a/{x}"\npayload = "number"\nproperty = "urn:p"\n'
        return self.random.choice(
            (
                rule,
                rule * self.random.choice((2, 100)),
                f"a = {'[' * depth}",
                f"a = {'{a = ' * depth}",
                f"{'a.' * depth}a = 1",
                rule.replace("{x}", "{x:(a|a)*b}"),
                self.mutated(rule),
                self.soup(),
            )
        )

    def credentials(self) -> str:
        """An authorization that is none."""
        random = self.random
        header, claims = (
            _part({"alg": random.choice(("none", "HS256", "ES256", "", None)), "typ": "JWT"}),
            _part(
                {
                    "sub": random.choice(("operator", "root", "", None, 7)),
                    "exp": random.choice((0, 2**70, "never", -1)),
                    "iss": self.value(),
                    "aud": ["all"],
                }
            ),
        )
        token = random.choice(
            (
                "a.b.c",
                f"{header}.{claims}.",
                f"{header}.{claims}.{base64.urlsafe_b64encode(random.randbytes(64)).decode().rstrip('=')}",
                f"{header}.{header}.{claims}.{claims}",
                "." * random.choice((2, 3, 60_000)),
                base64.b64encode(b"root:root").decode(),
                "\u00e9\u202e",
                "",
            )
        )
        return random.choice(("Bearer ", "bearer\t", "Basic ", "", "Bearer Bearer ")) + token

    def without_permission(self, alias: str) -> bytes:
        """A WebSocket message whose credentials are none, or that has none."""
        payload, _ = self.message(alias)
        if self.random.random() < 0.3:
            return payload
        try:
            message = json.loads(payload)
            next(iter(message.values()))["authorization"] = self.credentials()
            return json.dumps(message).encode()
        except (ValueError, RecursionError, AttributeError, TypeError, StopIteration):
            return payload

    def request(self) -> bytes:
        """An HTTP request that is framed well and hostile otherwise."""
        random = self.random
        if random.random() < DOCUMENTS:
            return self.document()
        if random.random() < PLACES:
            return self.of_operators()
        operation = random.choice(("query", "update"))
        body = self.sparql(operation).encode(errors="surrogatepass")
        media_type = random.choice(
            (
                *("application/sparql-query", "application/sparql-update", "application/x-www-form-urlencoded"),
                *("text/plain", "application/sparql-update;charset=latin-1", "", "application/json"),
            )
        )
        if media_type.endswith("urlencoded"):
            body = f"{operation}=".encode() + body
        if random.random() < 0.1:
            body = bytes(random.randrange(256) for _ in range(random.randrange(200)))
        target = random.choice(
            (
                *(
                    "/query",
                    "/update",
                    "/query?default-graph-uri=%ff",
                    "/update?delay=P9Y",
                    "/update?at=never",
                    "/health",
                ),
                *("/graphs?default", "/graphs?graph=%00", "/delayed/x", "/query?query=%7B", "/../../etc/passwd", "//"),
                *(
                    "/restore",
                    "/update?using-graph-uri=x&using-graph-uri=",
                    "/" + "a" * 2000,
                    "/subscriptions/",
                    "/echo",
                ),
            )
        )
        method = random.choice(("POST", "POST", "POST", "GET", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"))
        headers = [f"{method} {target} HTTP/1.1", f"Content-Length: {len(body)}"]
        if random.random() < 0.95:
            headers.append("Host: localhost")
        else:
            headers += random.choice(([], *([f"Host: {host}"] for host in _HOSTS), ["Host: localhost", "Host: [::1]"]))
        if media_type:
            headers.append(f"Content-Type: {media_type}")
        for name in ("Origin", "Sec-Fetch-Site", *_HEADERS):
            if random.random() < (0.2 if name in _HEADERS else 0.05):
                headers.append(f"{name}: {random.choice(('*', 'null', 'a' * 300, 'Bearer x.y.z', 'text/turtle;q=x'))}")
        return "\r\n".join([*headers, "", ""]).encode() + body

    def torn(self) -> bytes:
        """Bytes that are no HTTP request, or not all of one, or two readings of one (request smuggling)."""
        random = self.random
        inner = b"GET /restore HTTP/1.1\r\nHost: localhost\r\n\r\n"
        head = b"POST /update HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/sparql-update\r\n"
        shapes = (
            head + b"Content-Length: 5\r\nContent-Length: 50\r\n\r\n" + inner,
            head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner,
            head + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + inner,
            head + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + inner,
            head + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nx\r\n",
            head + b"Transfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n",
            head + b"Transfer-Encoding: chunked\r\n\r\n5\r\nCLEAR",
            head + b"Content-Length: -1\r\n\r\n" + inner,
            head + b"Content-Length: 99999999999999999999\r\n\r\nCLEAR ALL",
            head + b"Content-Length: 0x10\r\n\r\nCLEAR ALL",
            head + b"Content-Length: 100\r\n\r\nCLEAR ALL",
            head + b" folded: x\r\n\r\n",
            head + b"X" * 70_000 + b": y\r\n\r\n",
            head + b"".join(b"X-%d: y\r\n" % number for number in range(3_000)) + b"\r\n",
            b"GET /query?query=" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET /query HTTP/1.1\nHost: localhost\n\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            os.urandom(1),
            random.randbytes(300),
            self.request()[: random.randrange(1, 120)],
        )
        found = bytearray(random.choice(shapes))
        if random.random() < 0.3:
            found[random.randrange(len(found))] = random.randrange(256)
        return bytes(found)

    def flood(self) -> bytes:
        """Many small frames in one packet, whose answers nobody reads."""
        random = self.random
        count, small = random.choice((300, 40_000)), random.choice((b"", b"x", b"[]"))
        subscription = {"sparql": f"SELECT * {{ ?s <urn:hostile:p{random.randrange(9)}> ?o }}"}
        return random.choice(
            (
                frame(TEXT, small, last=False) + frame(CONTINUATION, small, last=False) * count,
                frame(TEXT, small, last=False) + frame(PING, small) * count + frame(CONTINUATION, b""),
                frame(PING, small) * count,
                frame(PING, b"p" * 125) * (count // 10),
                frame(PONG, small) * count,
                frame(TEXT, small) * count,
                frame(TEXT, json.dumps({"subscribe": subscription}).encode()) * (count // 40),
                frame(CLOSE, b"") + frame(TEXT, small) * count,
            )
        )

    def bomb(self) -> bytes:
        """Compressed messages that expand a thousand times; without the extension, frames of no such kind."""
        random = self.random
        squeeze = zlib.compressobj(9, wbits=-15)
        content = random.choice((b" ", b"[", b'{"a":')) * _MIB
        size = random.choice((1, 15, 40))
        squeezed = b"".join(squeeze.compress(content[:_MIB]) for _ in range(size))
        squeezed += squeeze.flush(random.choice((zlib.Z_SYNC_FLUSH, zlib.Z_FINISH)))[: random.choice((-4, -1, None))]
        half = random.randrange(len(squeezed))
        message = random.choice(
            (
                frame(TEXT, squeezed, compressed=True),
                frame(TEXT, squeezed[:half], last=False, compressed=True) + frame(CONTINUATION, squeezed[half:]),
                frame(TEXT, random.randbytes(half), compressed=True),
                frame(PING, squeezed[:100], compressed=True),
            )
        )
        return message * random.choice((1, 20))

    def frames(self) -> bytes:
        """Bytes that are no WebSocket frames of a client, not all of one, or too many."""
        random = self.random
        chance = random.random()
        if chance < FLOODS:
            return self.flood()
        if chance < 2 * FLOODS:
            return self.bomb()
        return random.choice(
            (
                b"\x81\x05hello",  # not masked
                b"\x81\xfe\x00\x01\0\0\0\0x",  # a length in more bytes than it needs
                b"\x81\xff" + b"\xff" * 12,
                b"\x83\x80\0\0\0\0",  # no such kind
                b"\xf1\x80\0\0\0\0",
                frame(TEXT, b"\xff\xfe invalid"),
                frame(TEXT, b"\xed\xa0\x80"),
                frame(BINARY, random.randbytes(100)),
                frame(0x0, b"goes on with nothing"),
                b"\x01" + frame(TEXT, b"first")[1:] + frame(TEXT, b"another"),
                frame(PING, b"x" * 126),
                frame(CLOSE, b"\x00"),
                frame(CLOSE, struct.pack("!H", 999)),
                frame(TEXT, b'{"query":{"sparql":"ASK {}"}}')[: random.randrange(1, 20)],
                random.randbytes(random.randrange(1, 60)),
            )
        )


def _part(members: Any) -> str:
    """A part of a JSON Web Token."""
    return base64.urlsafe_b64encode(json.dumps(members).encode()).decode().rstrip("=")


def frame(kind: int, payload: bytes, *, last: bool = True, compressed: bool = False) -> bytes:
    """last: whether its message ends with it."""
    made = sockets.frame(kind, payload, b"\x12\x34\x56\x78")
    return bytes([kind | 0x80 * last | 0x40 * compressed]) + made[1:]


class RawSocket:
    """A TCP connection to a gate, and what it reads of WebSocket frames and HTTP answers."""

    def __init__(self, port: int, *, websocket: str = "", tls: ssl.SSLContext | None = None, headers: str = "") -> None:
        """websocket: path of the handshake, if it is to be one. tls: how it is secured. headers: more of the handshake,
        each with its end of line."""
        plain = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = plain if tls is None else tls.wrap_socket(plain)
        self._buffer = b""
        self.closed: tuple[int, str] | None = None
        """Code and reason with which the gate closed the WebSocket (RFC 6455 section 7.4)."""
        if websocket:
            head = (
                f"GET {websocket} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{headers}\r\n"
            )
            self.send(head.encode())
            answer = self._until(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 101"), answer

    def __enter__(self) -> RawSocket:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    @property
    def socket(self) -> socket.socket:
        return self._socket

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def shut(self) -> None:
        """Nothing more is sent."""
        self._socket.shutdown(socket.SHUT_WR)

    def _more(self) -> None:
        part = self._socket.recv(1 << 18)
        if not part:
            raise ConnectionResetError("closed")
        self._buffer += part

    def _until(self, end: bytes) -> bytes:
        while end not in self._buffer:
            self._more()
        head, _, self._buffer = self._buffer.partition(end)
        return head

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._more()
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def messages(self) -> Iterator[bytes]:
        """The WebSocket messages, until the gate closes, which leaves its reason in `closed`; empty ones for its pings,
        which are answered."""
        begun = b""
        while True:
            kind, size = self._exactly(2)
            if size == 126:
                (size,) = struct.unpack("!H", self._exactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self._exactly(8))
            payload = self._exactly(size)
            if kind & 0xF == PING:
                self.send(frame(PONG, payload))
                yield b""
            elif kind & 0xF == CLOSE:
                self.closed = int.from_bytes(payload[:2], "big"), payload[2:].decode()
                return
            else:  # a text, or what goes on with one: a long message comes in fragments
                begun += payload
                if kind & 0x80:
                    yield begun
                    begun = b""

    def answer(self, *, head_only: bool = False) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (names in lower case) and body of the next HTTP answer."""
        status, headers = self.head()
        return status, headers, b"" if head_only else self.body(headers)

    def head(self) -> tuple[int, dict[str, str]]:
        first, *lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return int(first.split()[1]), headers

    def body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return self._exactly(int(headers.get("content-length", 0)))
        body = b""
        while size := int(self._until(b"\r\n"), 16):
            body += self._exactly(size)
            self._exactly(2)
        self._exactly(2)
        return body

    def drained(self) -> bytes:
        """Everything until the gate closes the connection."""
        try:
            while True:
                self._more()
        except ConnectionResetError:
            return self._buffer

"""Notifications by POST, to real servers that answer as the test says."""

import asyncio
import base64
import hashlib
import hmac
import json
import re
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from lamplighter.cloud_sync.fleet.delivery.notifications import Match, MatchNotification, MatchPosition
from lamplighter.cloud_sync.fleet.delivery.sinks import UndeliveredError, webhook
from lamplighter.cloud_sync.fleet.delivery.sinks.webhook import WebhookNotifications, signature_headers
from lamplighter.cloud_sync.fleet.subscriptions.records import WebhookSink
from lamplighter.engine.client.outward import retry_after_s
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.networks import public_refusal
from tests.cloud_sync.fleet.delivery.made_up_matches import match
from tests.support.places import ROOT

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
NOW = 1_782_907_200.5
Request = tuple[bytes, dict[str, str], bytes]
Answer = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """An HTTP server of the test: each request is noted, and answered by `answer`."""

    def __init__(self, answer: Answer | bytes) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.port = 0
        self._answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *fields = head.split(b"\r\n")[:-2]
                headers = {
                    name.lower().decode(): value.strip().decode()
                    for name, _, value in (f.partition(b":") for f in fields)
                }
                request = first, headers, await reader.readexactly(int(headers["content-length"]))
                self.requests.append(request)
                if isinstance(self._answer, bytes):
                    writer.write(self._answer)
                else:
                    await self._answer(request, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def server(answer: Answer | bytes = OK, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    made = Server(answer)
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=tls)
    made.port = listening.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        listening.close()


def notifications(*sequences: int) -> list[MatchNotification]:
    rows = [{**match(seq=seq), "ts": 0} for seq in sequences]
    return [MatchNotification(Match(**row), MatchPosition("000000000001", row["seq"])) for row in rows]


async def post(port: int, *sequences: int, path: str = "/in?x=1", scheme: str = "http", **members) -> None:
    allow = members.pop("allow_private", True)
    sink = WebhookNotifications(
        WebhookSink(url=f"{scheme}://127.0.0.1:{port}{path}", **members), allow_private=allow, wall=lambda: NOW
    )
    try:
        await sink.deliver(notifications(*sequences or (1,)))
    finally:
        await sink.close()


async def test_each_notification_is_a_signed_post(tmp_path: Path) -> None:
    for name, text in (
        ("key", "whsec_" + base64.b64encode(b"secret!").decode() + "\n"),
        ("headers", "Authorization: Bearer abc\n\nX-Site: 7\n"),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    async with server() as peer:
        await post(peer.port, 1, 2, secret_file=str(tmp_path / "key"), headers_file=str(tmp_path / "headers"))
    assert peer.connections == 1
    assert [json.loads(body)["sequence"] for _, _, body in peer.requests] == [1, 2]
    first, headers, body = peer.requests[0]
    assert first == b"POST /in?x=1 HTTP/1.1"
    assert headers["host"] == f"127.0.0.1:{peer.port}"
    assert headers["content-type"] == "application/json"
    assert (headers["authorization"], headers["x-site"]) == ("Bearer abc", "7")
    assert headers["webhook-id"] == headers["idempotency-key"] == json.loads(body)["id"]
    # As the specification of Standard Webhooks says, in other words.
    signed = b".".join([headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body])
    expected = base64.b64encode(hmac.digest(b"secret!", signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert headers["webhook-timestamp"] == "1782907200"


async def test_without_a_key_nothing_is_signed() -> None:
    async with server() as peer:
        await post(peer.port)
    assert "webhook-signature" not in peer.requests[0][1]


FOR_GOOD = 400, 401, 404, 410, 422, 499
AGAIN = 408, 425, 429, 500, 503, 302, 304


@pytest.mark.parametrize(
    ("status", "permanent"), [*((status, True) for status in FOR_GOOD), *((status, False) for status in AGAIN)]
)
async def test_which_answers_are_for_good(status: int, permanent: bool) -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        second = json.loads(request[2])["sequence"] == 2
        text = b"not\x1b[31m now"
        writer.write(
            b"HTTP/1.1 %d No\r\nRetry-After: 7\r\nContent-Length: %d\r\n\r\n%s" % (status, len(text), text)
            if second
            else OK
        )

    async with server(answer) as peer:
        with pytest.raises(UndeliveredError, match=f"answered {status}") as raised:
            await post(peer.port, 1, 2, 3)
    assert (raised.value.accepted, raised.value.permanent, raised.value.wait_s) == (1, permanent, 7.0)
    assert len(peer.requests) == 2


async def test_redirects_are_not_followed() -> None:
    async with server() as inner:
        location = f"http://127.0.0.1:{inner.port}/latest/meta-data".encode()
        for status in (301, 302, 303, 307, 308):
            answer = b"HTTP/1.1 %d Moved\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % (status, location)
            async with server(answer) as outer:
                with pytest.raises(UndeliveredError, match=str(status)):
                    await post(outer.port)
        assert inner.requests == []


async def test_a_huge_answer_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    written = 0

    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")
        while True:
            writer.write(bytes(65536))
            await writer.drain()
            written += 65536

    async with server(answer) as peer:
        await asyncio.wait_for(post(peer.port), 60)
        await post(peer.port)
    assert written < 50_000_000


async def test_endless_headers_and_nonsense_are_refused() -> None:
    async def endless(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X-More: " + b"x" * 1000 + b"\r\n")
            await writer.drain()

    for answer in (endless, b"SSH-2.0-OpenSSH_9.9\r\n\r\n", b"\x16\x03\x01" * 100):
        async with server(answer) as peer:
            with pytest.raises(UndeliveredError) as raised:
                await post(peer.port)
        assert not raised.value.permanent


async def test_a_slow_answer_ends_after_its_time_even_if_bytes_keep_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "TOTAL_S", 0.3)

    async def answer(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with server(answer) as peer:
        with pytest.raises(UndeliveredError, match="no answer within") as raised:
            await post(peer.port)
    assert not raised.value.permanent


async def test_nobody_there_is_not_for_good() -> None:
    async with server() as peer:
        pass
    with pytest.raises(UndeliveredError) as raised:
        await post(peer.port)
    assert not raised.value.permanent


async def test_private_addresses_are_refused_unless_allowed() -> None:
    async with server() as peer:
        with pytest.raises(
            ConfigurationError, match=r"127\.0\.0\.1 is not a public address; run deliver with --allow-private"
        ):
            await post(peer.port, allow_private=False)
        assert peer.connections == 0


async def test_a_name_is_resolved_once_and_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that answers with another address the second time (DNS rebinding)."""
    answers = [["8.8.8.8"], ["127.0.0.1"]]
    asked = []

    def getaddrinfo(host, port, **_):
        asked.append(host)
        return [(None, None, None, "", (address, port)) for address in answers.pop(0)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    gone_to = []

    async def connect_tcp(self, host, port, *_):
        gone_to.append((host, port))
        raise OSError("no network here")

    import httpcore

    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect_tcp)
    sink = WebhookNotifications(WebhookSink(url="https://hooks.example.org/x"), allow_private=False, wall=lambda: NOW)
    with pytest.raises(UndeliveredError, match="no network"):
        await sink.deliver(notifications(1))
    assert gone_to == [("8.8.8.8", 443)]
    with pytest.raises(ConfigurationError, match="not a public address"):
        await sink.deliver(notifications(1))
    await sink.close()
    assert len(gone_to) == 1
    assert asked == ["hooks.example.org"] * 2


NOT_PUBLIC = """
    127.0.0.1 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 100.100.100.200 0.0.0.0 224.0.0.1
    255.255.255.255 168.63.129.16 192.0.2.1 240.0.0.1 ::1 :: fe80::1 fc00::1 fec0::1 ff02::1 ::ffff:127.0.0.1
    ::ffff:10.0.0.1 2002:7f00:1:: 2002:a00:1::1 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 2001:db8::1
    ::127.0.0.1 ::10.0.0.1 ::ffff:0:127.0.0.1 64:ff9b:1::a00:1 64:ff9b:1::8.8.8.8 3fff::1 5f00::1 192.0.0.8 192.88.99.1
"""


@pytest.mark.parametrize("address", NOT_PUBLIC.split())
def test_addresses_that_are_not_public(address: str) -> None:
    assert public_refusal(ip_address(address))


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.215.14", "2606:4700:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"]
)
def test_addresses_that_are_public(address: str) -> None:
    assert public_refusal(ip_address(address)) == ""


async def test_the_certificate_is_checked_against_the_name(tmp_path: Path) -> None:
    def certificate(name: str) -> tuple[ssl.SSLContext, str]:
        pem, key = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-keyout", key, "-out", pem, "-days", "2", "-subj", "/CN=x", "-addext", f"subjectAltName={name}"]
        subprocess.run(command, check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem, key)
        return context, str(pem)

    right, ca = certificate("IP:127.0.0.1")
    async with server(tls=right) as peer:
        await post(peer.port, scheme="https", ca_file=ca)
        with pytest.raises(UndeliveredError, match="CERTIFICATE_VERIFY_FAILED"):
            await post(peer.port, scheme="https")
    wrong, ca = certificate("DNS:other.example.org")
    async with server(tls=wrong) as peer:
        with pytest.raises(UndeliveredError, match="CERTIFICATE_VERIFY_FAILED"):
            await post(peer.port, scheme="https", ca_file=ca)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("headers_file", "Host: x\n", "line 1: write one header"),
        ("headers_file", "A: b\nno colon\n", "line 2: write one header"),
        ("headers_file", "A: b\x00c\n", "line 1: write one header"),
        ("secret_file", "\nabc", "the first line is empty"),
        ("secret_file", "whsec_!!", "goes on in Base64"),
    ],
)
async def test_broken_files_are_said(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match=message):
        await post(1, **{name: str(path)})
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="world-readable; chmod 600"):
        await post(1, **{name: str(path)})
    path.unlink()
    with pytest.raises(ConfigurationError, match=f"No such file or directory; correct {name} of sink webhook"):
        await post(1, **{name: str(path)})
    with pytest.raises(ConfigurationError, match="name of a credential of systemd"):
        await post(1, **{name: "plain"})


def test_retry_after() -> None:
    assert retry_after_s("120", NOW) == 120
    assert retry_after_s("999999", NOW) == 3600
    assert retry_after_s("Wed, 01 Jul 2026 12:01:00 GMT", 1_782_907_200.0) == 60
    assert retry_after_s("Wed, 01 Jul 2020 12:01:00 GMT", NOW) == 0
    for text in ("", "soon", "-5", "1e9", "١٢"):
        assert retry_after_s(text, NOW) == 0


def test_the_check_in_the_document_takes_what_is_sent_and_nothing_else() -> None:
    document = (ROOT / "docs" / "fleet-subscriptions.md").read_text()
    [block] = re.findall(r"```python\n(.*?is_genuine.*?)```", document, re.S)
    names: dict = {}
    exec(block, names)
    check = names["is_genuine"]
    [one] = notifications(1)
    now = int(time.time())
    headers = signature_headers(one, b"key", now)
    assert check(b"key", headers, one.body)
    assert not check(b"kez", headers, one.body)
    assert not check(b"key", headers, one.body + b" ")
    assert not check(b"key", {**headers, "webhook-id": "other"}, one.body)
    assert not check(b"key", signature_headers(one, b"key", now - 1000), one.body)

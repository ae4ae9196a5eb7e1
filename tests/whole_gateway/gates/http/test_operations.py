"""Endpoints for operators and for monitoring."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lamplighter.gateway.addresses import Addresses
from tests.support.running_gateway import http, running_gateway, update

INSERT = "INSERT DATA { <http://x> <http://p> 1 }"


async def test_echo_says_what_came_but_no_credentials(gateway: Addresses) -> None:
    url = gateway.query.replace("/query", "/echo")
    headers = {"X-Thing": "7", "Authorization": "Bearer secret", "Cookie": "__Host-lamplighter=secret"}
    answer = await http(url, "POST", "ვაიმეე", headers)
    assert (answer.status, answer.media_type) == (200, "application/json")
    assert (answer.json["method"], answer.json["protocol"], answer.json["body"]) == ("POST", "HTTP", "ვაიმეე")
    assert answer.json["headers"]["x-thing"] == "7"
    assert b"secret" not in answer.body
    assert (await http(url, "GET")).json["body"] == ""
    assert (await http(url, "POST", "x" * 65_537)).status == 403


async def test_ready_is_told_once_updates_are_taken_and_not_while_the_disk_refuses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with running_gateway(tmp_path) as at:
        url = at.query.replace("/query", "/ready")
        ready = await http(url)
        assert (ready.status, ready.json) == (200, {"ready": True})
        monkeypatch.setattr("lamplighter.gateway.disk.os.write", full)
        assert (await update(at, INSERT)).status == 507
        refusing = await http(url)
        assert (refusing.status, refusing.json) == (503, {"ready": False, "component": "log"})
        monkeypatch.setattr("lamplighter.gateway.disk.os.write", write)
        assert (await update(at, INSERT)).status == 200
        assert (await http(url)).status == 200

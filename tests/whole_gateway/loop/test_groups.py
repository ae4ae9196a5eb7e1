"""Group commit: nothing is released before its records are durable, and the order is kept."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from lamplighter.engine.change_log import decode
from lamplighter.engine.change_log.frames import FrameReader
from lamplighter.engine.errors import ChangeLogError
from tests.support.gateway_parts import segments
from tests.support.held_disk import stepped_disk
from tests.support.running_gateway import ask, health, hear, http, running_gateway, tell, until, update

ALL = "SELECT ?s ?o { ?s <http://p> ?o }"


def insert(number: int) -> str:
    return f"INSERT DATA {{ <http://s{number}> <http://p> {number} }}"


async def test_nothing_leaves_before_its_record_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        running_gateway(tmp_path, gateway={"durability": "fsync"}) as at,
        connect(at.subscribe) as socket,
    ):
        await ask(socket, {"subscribe": {"sparql": ALL}})
        with stepped_disk(monkeypatch) as disk:
            hearing = asyncio.create_task(hear(socket))
            answers = [asyncio.create_task(update(at, insert(1)))]
            await disk.begun()
            answers.append(asyncio.create_task(update(at, insert(2))))
            for number in (1, 2):
                await health(at)  # a round trip, in which something could leave too early
                assert not hearing.done()
                assert not any(answer.done() for answer in answers[number - 1 :])
                disk.go_on()
                message = await hearing
                assert message["notification"]["sequence"] == number
                assert (await answers[number - 1]).json["sequence"] == number
                [path] = segments(tmp_path / "data")
                whole = list(FrameReader(path.read_bytes()[: disk.durable]))
                assert decode(whole[-1]).seq >= number, "what was told is on the disk"
                if number == 1:
                    hearing = asyncio.create_task(hear(socket))
                    await disk.begun()


async def test_many_clients_are_told_in_order_without_gaps(tmp_path: Path) -> None:
    clients, updates = 4, 30
    async with running_gateway(tmp_path, gateway={"durability": "fsync"}) as at:

        async def client(number: int) -> None:
            async with connect(at.subscribe, max_queue=None) as socket:  # who leaves much unread cannot close in order
                await ask(socket, {"subscribe": {"sparql": ALL}})
                for one in range(updates):
                    text = insert(number * updates + one)
                    await tell(socket, {"update": {"sparql": text, "alias": str(one)}})
                told, answered = [], []
                while len(answered) < updates or (told and told[-1] < updates):
                    message = await hear(socket)
                    if "notification" in message:
                        told.append(message["notification"]["sequence"])
                    else:
                        answered.append(message["updated"]["alias"])
                assert told == list(range(1, len(told) + 1))
                assert answered == [str(one) for one in range(updates)]

        await asyncio.gather(*(client(number) for number in range(clients)))


async def test_a_disk_that_fails_ends_the_gateway_whoever_waits_for_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second client has as many requests as one may have, so that nothing more of it is read."""
    with pytest.raises(ChangeLogError):
        async with (
            running_gateway(tmp_path, gateway={"durability": "fsync", "queue_max": 20}) as at,
            connect(at.subscribe) as socket,
        ):
            with stepped_disk(monkeypatch) as disk:

                def broken(descriptor: int) -> None:
                    disk.sync(descriptor)
                    raise OSError(errno.EIO, os.strerror(errno.EIO))

                monkeypatch.setattr("lamplighter.gateway.disk.os.fdatasync", broken)
                first = asyncio.create_task(update(at, insert(0)))
                await disk.begun()
                for number in range(1, 20):
                    await tell(socket, {"update": {"sparql": insert(number), "alias": str(number)}})

                async def full() -> bool:
                    figures = (await http(at.query.replace("/query", "/figures"))).json
                    return 2 * int(figures["scheduler"]["pending"]) > 20 - int(figures["scheduler"]["pending"])

                await until(full, "a full share")
            first.cancel()

"""Our consumer reads our inbox: by the library and by `lamplighter notifications`, in secure mode with a token."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from lamplighter.engine.client import InboxReader
from lamplighter.gateway.addresses import Addresses
from tests.support.commands import command
from tests.support.receivers import HttpReceiver, Reply
from tests.support.running_gateway import http, running_gateway, until, update
from tests.support.secure_gateway import SecureGateway

ON: dict[str, object] = {"enabled": True, "networks": ["127.0.0.0/8"], "ports": []}
AS = "https://www.w3.org/ns/activitystreams"
GATEWAY = "http://lamplighter.example/ns/gateway#"
NOTE = {"@context": AS, "id": "", "type": "Announce", "actor": "http://e/anna"}


async def sent(addresses: Addresses, note: object) -> str:
    """Its URL."""
    body, headers = json.dumps(note), {"Content-Type": "application/ld+json"}
    answer = await http(f"{addresses.page}inbox/", "POST", body, headers)
    assert answer.status == 201, answer.body
    return answer.headers["location"]


async def test_the_library_reads_notifications_and_delivered_subscriptions(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, ldn=ON) as addresses, InboxReader(addresses.query) as reader:
        assert await reader.inbox() == f"{addresses.page}inbox/"
        assert await reader.urls() == []
        url = await sent(addresses, {"@context": AS, "id": "", "type": "Announce", "object": "http://e/report"})
        assert await reader.urls() == [url]
        assert set(await reader.notification(url)) == {
            (f"<{url}>", "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type>", f"<{AS}#Announce>"),
            (f"<{url}>", f"<{AS}#object>", "<http://e/report>"),
        }
        wanted = json.dumps({"query": "SELECT ?v { <http://e/s> <http://e/p> ?v }", "target": addresses.page})
        assert (await http(f"{addresses.page}ldn", "POST", wanted)).status == 201
        assert (await update(addresses, "INSERT DATA { <http://e/s> <http://e/p> 'on' }")).status == 200

        async def delivered() -> bool:
            return len(await reader.urls()) == 3

        await until(delivered, "the two notifications of the subscription")
        first, second = [await reader.notification(one) for one in (await reader.urls())[1:]]
        assert {o for _, p, o in first + second if p == f"<{GATEWAY}sequence>"} == {
            f'"{number}"^^<http://www.w3.org/2001/XMLSchema#integer>' for number in (0, 1)
        }
        assert '"on"' in {o for _, _, o in second}


async def test_the_command_prints_a_table_lines_of_json_and_what_cannot_be_read(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, ldn=ON) as addresses:
        urls = [await sent(addresses, NOTE | {"object": f"http://e/{number}"}) for number in range(3)]

        async def ran(*arguments: str, code: int = 0) -> tuple[list[str], str]:
            done = await asyncio.to_thread(command, "notifications", *arguments)
            assert done.returncode == code, done.stderr
            return done.stdout.splitlines(), done.stderr

        table, errors = await ran(addresses.page, "--limit", "2")
        assert errors == "lamplighter: 1 further notification; see --limit\n"
        assert [line.split() for line in table] == [
            ["NOTIFICATION", "TYPE", "ACTOR", "OBJECT", "TRIPLES"],
            *(
                [url.rpartition("/")[2], "Announce", "http://e/anna", f"http://e/{number}", "3"]
                for number, url in enumerate(urls[:2])
            ),
        ]
        lines, errors = await ran(f"{addresses.page}inbox/", "--inbox", "--json")
        assert [json.loads(line)["url"] for line in lines] == urls
        assert len(json.loads(lines[0])["triples"]) == 3
        assert errors == ""
        with HttpReceiver() as site:
            replies = {
                "/": Reply(200, {"Link": '</in/>; rel="http://www.w3.org/ns/ldp#inbox"'}),
                "/in/": _turtle(f"<> <http://www.w3.org/ns/ldp#contains> <bad>, <good>, <{urls[0]}> ."),
                "/in/good": _turtle(f"[] a <http://e/a#Citation> ; <{AS}#actor> '\x1b[31m' ."),
                "/in/bad": Reply(200, {"Content-Type": "text/html"}),
            }
            site.confirm = lambda request: replies[request.path]
            table, errors = await ran(site.url("/"), "--allow", addresses.page, code=1)
            assert [line.split()[:3] for line in table[1:]] == [
                ["good", "Citation", "\\u001B[31m"],
                [urls[0], "Announce", "http://e/anna"],
            ]
            assert [line.split(": ")[1] for line in errors.splitlines()] == [site.url("/in/bad")]


def _turtle(text: str) -> Reply:
    return Reply(200, {"Content-Type": "text/turtle"}, text.encode())


def test_the_command_reads_an_inbox_in_secure_mode_as_a_client(tmp_path: Path) -> None:
    with SecureGateway(tmp_path, {"ldn": {"enabled": True}}) as gateway:
        token = tmp_path / "token"
        reading = {"read": ["http://lamplighter.local/inbox/"]}
        token.write_text(gateway.bearer("reader", gateway.client("reader", **reading)).removeprefix("Bearer "))
        target = f"https://localhost:{gateway.port}/"
        refused = command("notifications", target, "--ca", gateway.authority)
        assert (refused.returncode, "401" in refused.stderr) == (4, True), refused.stderr
        read = command("notifications", target, "--ca", gateway.authority, "--token", token)
        assert (read.returncode, read.stdout.split()) == (0, ["NOTIFICATION", "TYPE", "ACTOR", "OBJECT", "TRIPLES"])

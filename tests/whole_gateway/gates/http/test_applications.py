"""Applications over HTTP and from the command line: put, changed and removed while the gateway runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from lamplighter.gateway.addresses import Addresses
from tests.support.commands import command
from tests.support.running_gateway import Answer, http, rows, running_gateway, update
from tests.whole_gateway.cli.test_devices_commands import settings_of


def profile(result: str = "seen", **members: Any) -> dict[str, Any]:
    return {
        "namespaces": {"e": "http://e/"},
        "queries": {"THINGS": {"sparql": "SELECT ?thing { ?thing a e:Thing }"}},
        "updates": {
            "NOTE": {
                "sparql": f"INSERT {{ ?thing e:{result} true }} WHERE {{}}",
                "forcedBindings": {"thing": {"type": "uri", "value": ""}},
                **members,
            }
        },
        "extended": {"lamplighter": {"aggregators": {"note": {"query": "THINGS", "added": "NOTE"}}}},
    }


async def ask(addresses: Addresses, method: str, name: str = "", body: Any = None, **parameters: str) -> Answer:
    root = addresses.query.removesuffix("/query")
    content = None if body is None else json.dumps(body)
    return await http(f"{root}/applications{name and f'/{name}'}", method, content, None, **parameters)


async def come(addresses: Addresses, name: str) -> None:
    assert (await update(addresses, f"INSERT DATA {{ <http://e/{name}> a <http://e/Thing> }}")).status == 200


async def seen(addresses: Addresses, result: str = "seen") -> list[str]:
    found = await rows(addresses, f"SELECT ?x {{ ?x <http://e/{result}> true }} ORDER BY ?x")
    return [row["x"].removeprefix("http://e/") for row in found]


async def test_put_changed_and_removed_across_a_restart(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        assert (await ask(addresses, "GET")).json == {"total": 0, "applications": []}
        done = await ask(addresses, "PUT", "porch", profile())
        assert (done.status, done.headers["cache-control"]) == (201, "no-store")
        assert done.json.items() >= {"created": True, "changed": True, "record": "1/1", "state": "running"}.items()
        await come(addresses, "one")
        assert await seen(addresses) == ["one"]
        again = await ask(addresses, "PUT", "porch", profile())
        assert (again.status, again.json["changed"], again.json["record"]) == (200, False, "1/3")
    async with running_gateway(tmp_path) as addresses:
        [listed] = (await ask(addresses, "GET")).json["applications"]
        assert listed.items() >= {"name": "porch", "origin": "stored", "state": "running", "problem": None}.items()
        one = (await ask(addresses, "GET", "porch")).json
        assert (one["profile"], one["values"], one["delayed"]) == (profile(), None, 0)
        changed = await ask(addresses, "PUT", "porch", profile("later", delay="P1D"))
        assert (changed.status, changed.json["changed"]) == (200, True)
        await come(addresses, "two")
        assert (await seen(addresses), await seen(addresses, "later")) == (["one"], [])
        removed = (await ask(addresses, "DELETE", "porch")).json
        assert (removed["removed"], removed["delayed"]) == (True, 1)
        assert (await ask(addresses, "DELETE", "porch")).status == 404
        assert (await ask(addresses, "GET")).json["total"] == 0


async def test_faults_have_a_place_and_change_nothing(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        refused = await ask(addresses, "PUT", "porch", profile(dealy="PT5S"))
        assert (refused.status, refused.json["error"]) == (400, "bad_application")
        [fault] = refused.json["faults"]
        assert (fault["place"], fault["line"]) == ("updates.NOTE.dealy", 1)
        assert 'did you mean "delay"?' in fault["problem"] and fault["problem"] in refused.json["error_description"]
        broken = profile()
        broken["queries"]["THINGS"]["sparql"] = "SELECT ?thing {"
        [fault] = (await ask(addresses, "PUT", "porch", broken)).json["faults"]
        assert fault["place"] == "queries.THINGS.sparql" and "▶" in fault["problem"]
        not_json = await http(f"{addresses.query.removesuffix('/query')}/applications/porch", "PUT", "{")
        assert not_json.status == 400 and not_json.json["faults"][0]["line"] is None
        assert (await ask(addresses, "PUT", "porch", profile(), check="true")).json["created"] is True
        assert (await ask(addresses, "GET")).json["total"] == 0
        assert (await ask(addresses, "PUT", "por%2Fch", profile())).status == 400
        assert (await ask(addresses, "PUT", "x" * 101, profile())).status == 400
        await ask(addresses, "PUT", "porch", profile())
        unknown = await ask(addresses, "GET", "proch")
        assert unknown.status == 404 and 'did you mean "porch"?' in unknown.json["error_description"]


async def test_one_of_a_file_is_shown_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "apps").mkdir()
    (tmp_path / "apps" / "porch.jsap").write_text(json.dumps(profile()))
    async with running_gateway(tmp_path) as addresses:
        [listed] = (await ask(addresses, "GET")).json["applications"]
        assert (listed["origin"], listed["changed"], listed["template"]) == ("file", None, None)
        assert (await ask(addresses, "GET", "porch")).json["profile"] == profile()
        for answer in (await ask(addresses, "PUT", "porch", profile("x")), await ask(addresses, "DELETE", "porch")):
            assert (answer.status, answer.json["error"]) == (409, "conflict")
            assert "apps/porch.jsap" in answer.json["error_description"]


async def test_what_fails_is_named_with_a_remedy_for_a_stored_one(tmp_path: Path) -> None:
    document = profile(sparql="DROP GRAPH <http://e/none>")
    async with running_gateway(tmp_path) as addresses:
        await ask(addresses, "PUT", "porch", document)
        await come(addresses, "one")
        [listed] = (await ask(addresses, "GET")).json["applications"]
        assert listed["state"] == "failed" and "note/added fails" in listed["problem"]
        assert (listed["reactions"], listed["failed"]) == (1, 1)
        assert listed["remedy"] == "correct it, and put it again: lamplighter apps put porch"
        assert (await ask(addresses, "PUT", "porch", document)).json["state"] == "failed"
        assert (await ask(addresses, "PUT", "porch", profile())).json["state"] == "running"


async def test_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "porch.jsap"
    file.write_text(json.dumps(profile()))
    async with running_gateway(tmp_path) as addresses:
        toml = settings_of(tmp_path, addresses)

        async def apps(*arguments: object, code: int = 0) -> str:
            done = await asyncio.to_thread(command, "apps", *map(str, arguments), "--config", toml)
            assert done.returncode == code, done
            return done.stderr if code else done.stdout

        assert "no applications" in await apps()
        assert await apps("put", "porch", file, "--check") == "it has no faults\n"
        assert await apps("put", "porch", file) == "porch runs since record 1/1\n"
        assert await apps("put", "porch", file) == "porch is unchanged, and running\n"
        assert (await apps("list")).splitlines()[1].split()[:4] == ["porch", "stored", "running", "0"]
        assert json.loads(await apps("show", "porch")) == profile()
        assert json.loads(await apps("--json"))["total"] == 1
        assert 'did you mean "porch"?' in await apps("show", "porhc", code=4)
        file.write_text(json.dumps(profile(dealy="PT5S")))
        assert "updates.NOTE.dealy: unknown member" in await apps("put", "porch", file, code=4)
        assert "add --yes to confirm" in await apps("remove", "porch", code=2)
        assert await apps("remove", "porch", "--yes") == "porch ended with record 1/2\n"
        assert "No such file" in await apps("put", "porch", tmp_path / "none", code=2)


async def test_a_backup_has_them(tmp_path: Path) -> None:
    async with running_gateway(tmp_path / "one") as addresses:
        await ask(addresses, "PUT", "porch", profile())
        backup = await http(addresses.query.removesuffix("/query") + "/backup")
    offline = tmp_path / "offline.zst"
    toml = tmp_path / "one" / "lamplighter.toml"
    toml.write_text("[http]\nport = 1\n")
    done = await asyncio.to_thread(command, "backup", offline, "--config", toml)
    assert "1 stored application" in done.stdout, done
    for number, content in enumerate((backup.body, offline.read_bytes())):
        async with running_gateway(tmp_path / f"two{number}") as addresses:
            await ask(addresses, "PUT", "gone", profile("gone"))
            root = addresses.query.removesuffix("/query")
            restored = (await http(f"{root}/restore", "POST", content)).json
            assert restored["applications"] == 1
            assert [one["name"] for one in (await ask(addresses, "GET")).json["applications"]] == ["porch"]
            await come(addresses, "one")
            assert (await seen(addresses), await seen(addresses, "gone")) == (["one"], [])

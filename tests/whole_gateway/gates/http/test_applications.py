"""Applications over HTTP and from the command line: put, changed and removed while the gateway runs."""

from __future__ import annotations

import asyncio
import json
import secrets
from pathlib import Path
from typing import Any

import pytest

from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.cli.check_command import REPLAYED_BYTES_MAX
from tests.support.commands import command
from tests.support.running_gateway import Answer, http, rows, running_gateway, update
from tests.support.secure_gateway import SecureGateway
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
        assert (await ask(addresses, "PUT", "porch", profile("x"), check="true")).status == 409, "as without check"


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


@pytest.mark.parametrize("name", ["a%2Fb", "..", "%2e%2e%2Fx", "k%C3%BCche", "a%00b", "a%0A", "x" * 200, "a%40b", ""])
async def test_what_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    async with running_gateway(tmp_path) as addresses:
        place = f"{addresses.query.removesuffix('/query')}/applications/{name}"
        for method, status in (("PUT", 400), ("GET", 404), ("DELETE", 404)):
            body = json.dumps(profile()) if method == "PUT" else None
            assert (await http(place, method, body)).status == status, method
        assert (await ask(addresses, "GET")).json["total"] == 0


def test_only_operators_see_and_change_applications_templates_and_names(tmp_path: Path) -> None:
    everything = {"read": ["*"], "write": ["*"], "subscribe": ["*"]}
    values = json.dumps({"values": {"light": "urn:lamp"}, "put": True})
    requests = [
        ("GET", "/secure/applications", ""),
        ("GET", "/secure/applications/porch", ""),
        ("PUT", "/secure/applications/hall", json.dumps(profile())),
        ("PUT", "/secure/applications/hall?check=true", json.dumps(profile())),
        ("DELETE", "/secure/applications/porch", ""),
        ("GET", "/secure/templates", ""),
        ("POST", "/secure/templates/motion-light", values),
        ("GET", "/secure/names", ""),
    ]
    with SecureGateway(tmp_path) as gateway:
        assert gateway.local("PUT", "/applications/porch", json.dumps(profile())).status == 201
        client = gateway.bearer("anna", gateway.client("anna", **everything))
        for method, path, body in requests:
            for answer in (
                gateway.https(method, path, body),
                gateway.https(method, path.removeprefix("/secure"), body),
                gateway.https(method, path, body, Authorization=client),
                gateway.https(method, path.removeprefix("/secure"), body, Authorization=client),
            ):
                assert answer.status in (401, 403), (method, path, answer)
                assert b"porch" not in answer.body, answer
        left = gateway.local("GET", "/applications").json["applications"]
        assert [one["name"] for one in left] == ["porch"], "none of them had an effect"
        for method, path, body in requests:
            answer = gateway.local(method, path.removeprefix("/secure"), body)
            assert answer.status in (200, 201), (method, path, answer)


async def test_an_application_that_names_nothing_is_warned_of(tmp_path: Path) -> None:
    base = "http://lamplighter.local/"
    mapping = tmp_path / "mapping"
    mapping.mkdir()
    (mapping / "porch.toml").write_text('[[command]]\nactuator = "actuator/porch"\ntopic = "porch/set"\n')
    async with running_gateway(tmp_path) as addresses:
        toml = settings_of(tmp_path, addresses)
        quiet = profile(sparql=f"INSERT {{ <{base}actuator/porch> <http://e/p> 1 }} WHERE {{}}")
        assert (await ask(addresses, "PUT", "quiet", quiet)).json["warnings"] == [], "it has not reported yet"
        wrong = profile(sparql=f"INSERT {{ <{base}actuator/proch> <http://e/p> 1 }} WHERE {{}}")
        warning = 'wrong: there is no actuator/proch; did you mean "actuator/porch"?'
        assert (await ask(addresses, "PUT", "wrong", wrong)).json["warnings"] == [warning]
        done = await asyncio.to_thread(command, "check", "--config", toml)
        assert done.returncode == 0 and f"name          {warning}" in done.stdout, done
    done = await asyncio.to_thread(command, "check", "--config", toml)
    assert f"name          {warning}" in done.stdout, "also without a running gateway"


async def test_a_check_does_not_replay_a_large_dataset(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        toml = settings_of(tmp_path, addresses)
        wrong = profile(sparql="INSERT { <http://lamplighter.local/actuator/x> <http://e/p> 1 } WHERE {}")
        assert (await ask(addresses, "PUT", "wrong", wrong)).status == 201
        for _ in range(6):  # a hexadecimal digit takes half a byte when it is packed
            large = f"INSERT DATA {{ <http://e/s> <http://e/p> '{secrets.token_hex(REPLAYED_BYTES_MAX // 5)}' }}"
            assert (await update(addresses, large)).status == 200
        done = await asyncio.to_thread(command, "check", "--config", toml)
        assert "wrong: there is no actuator/x" in done.stdout, "the gateway knows"
    done = await asyncio.to_thread(command, "check", "--config", toml)
    assert done.returncode == 0 and "not looked up: no gateway answers" in done.stdout, done

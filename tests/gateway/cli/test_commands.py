"""`verify`, `log`, `backup` and `restore` on data folders that no gateway uses."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from lamplighter.engine.change_log import EPOCH_REQUEST, Cause, Followed, Gap, GraphChanges, Record, Timer
from lamplighter.engine.terms import Quad
from lamplighter.gateway.history.names import Names
from tests.support.commands import command as lamplighter
from tests.support.gateway_parts import FakeClock, opened_log


async def command(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The command with that folder's settings, and with nothing at standard input."""
    return await asyncio.to_thread(lamplighter, *arguments, "--config", folder / "lamplighter.toml")


def test_texts_of_a_data_folder_are_shown_without_control_characters(tmp_path: Path) -> None:
    for name in ("log", "snapshots", "damaged"):
        (tmp_path / name).mkdir()
    (tmp_path / "identity").write_text("gw-\x1b[31m\u202e\n")
    (tmp_path / "log" / "1-000000000001.ndjson.zst").write_bytes(b"")
    (tmp_path / "damaged" / "a\x9b2J").write_bytes(b"")
    done = lamplighter("verify", "--data", tmp_path, cwd=tmp_path)
    assert "gateway    gw-\\u001B[31m\\u202E" in done.stdout, done
    assert "a\\u009B2J: set aside" in done.stdout
    assert done.stdout.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["verify"], 2, "it has no change log"),
        (["log", "show"], 2, "it has no change log"),
        (["log", "export", "--format", "rdfpatch"], 2, "it has no change log"),
        (["backup", "x"], 2, "it has no change log"),
        (["restore", "none"], 2, "none: there is no such file"),
    ],
)
async def test_a_folder_without_a_log_is_named(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    (tmp_path / "lamplighter.toml").write_text("[http]\nport = 9\n")
    done = await command(tmp_path, *arguments)
    assert done.returncode == code
    assert said in done.stderr and "Traceback" not in done.stderr


def test_the_configuration_may_be_named_before_the_mode_too(tmp_path: Path) -> None:
    done = lamplighter("log", "--data", tmp_path, "show", cwd=tmp_path)
    assert done.returncode == 2 and f"{tmp_path}: it has no change log" in done.stderr


def record(kind: str, **members: object) -> Record:
    return Record(
        1,
        kind,
        "gw-1",
        2,
        17,
        "2026-11-21T02:00:00.123456Z",
        False,
        "b",
        1,
        **members,  # type: ignore[arg-type]
    )


def shown(kind: str, **members: object) -> list[str]:
    """What is shown of a record below its first line."""
    return [line.strip() for line in Names("http://here/").record(record(kind, **members)).splitlines()[1:]]


def test_a_new_epoch_is_left_to_the_next_start(tmp_path: Path) -> None:
    opened_log(tmp_path, FakeClock()).close()
    done = lamplighter("new-epoch", "--data", tmp_path, "--reason", "restored", cwd=tmp_path)
    assert (done.returncode, done.stdout[:27]) == (0, "the next start ends epoch 1")
    assert (tmp_path / EPOCH_REQUEST).read_text() == '{"epoch":1,"reason":"restored"}\n'
    missing = lamplighter("new-epoch", "--data", tmp_path / "none", cwd=tmp_path)
    assert missing.returncode == 2
    assert "name the data folder with --data" in missing.stderr


def test_a_record_is_shown_with_its_time_and_cause() -> None:
    text = Names("http://here/").record(record("commit", cause=Cause("timer", "id-1", 5), request="r\x1b[2J"))
    assert text == (
        "2/17  2026-11-21 02:00:00.123 (clock not synchronised)  commit  by timer id-1  after 5  request r\\u001B[2J\n"
    )


def test_quads_are_shown_short() -> None:
    xsd = "http://www.w3.org/2001/XMLSchema#"
    rdf_type = "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type>"
    assert shown(
        "commit",
        a=(
            Quad("<http://here/post/1>", rdf_type, "<http://www.w3.org/ns/sosa/Sensor>"),
            Quad("_:b", "<http://e/p>", f'"1.5"^^<{xsd}decimal>', "<http://here/g>"),
            Quad("_:b", "<http://e/p>", f'"P1D"^^<{xsd}duration>'),
            Quad("_:b", "<http://e/p>", '"a ^^b>"@en'),
            Quad("_:b", "<http://e/p>", '"\u202e\x9b"'),
            Quad("_:b", "<http://e/p>", f'"{"x" * 500}"'),
        ),
        graphs=GraphChanges(("<http://here/g>",), ("<http://e/h>",)),
    ) == [
        "- graph <http://e/h>",
        "+ :post/1 a sosa:Sensor",
        "+ _:b <http://e/p> 1.5  in :g",
        '+ _:b <http://e/p> "P1D"^^xsd:duration',
        '+ _:b <http://e/p> "a ^^b>"@en',
        '+ _:b <http://e/p> "\\u202E\\u009B"',
        f'+ _:b <http://e/p> "{"x" * 118}…',
        "+ graph :g",
    ]
    assert shown("commit", d=tuple(Quad("_:b", "<http://e/p>", f'"{n}"') for n in range(25)))[-1] == "- and 5 more"


def test_what_is_no_commit_is_shown_in_words() -> None:
    assert shown("timer", timer=Timer("t", "CLEAR\n  ALL", 1_500_000)) == ["t in 1.5 s: CLEAR ALL"]
    at = "2030-01-01T00:00:00Z"
    assert shown("timer", timer=Timer("t", "CLEAR ALL", None, at)) == [f"t at {at}: CLEAR ALL"]
    assert shown("cancel", cancel="t") == ["t"]
    assert shown("gap", gap=Gap(1, 3, "the card")) == ["the records from 1/3 on are lost: the card"]
    assert shown("gap", gap=Gap(1, 3, "room", 9)) == ["the records from 1/3 to 1/9 are lost: room"]
    secret = "sepa://subscription/0123456789abcdef"
    [line] = shown("subscribe", subscribe=Followed(secret, "SELECT * { ?s ?p ?o }", 1))
    assert line.endswith(": SELECT * { ?s ?p ?o }") and "9abcdef" not in line, "who knows all of it may resume it"
    assert secret not in shown("unsubscribe", unsubscribe=secret)[0]

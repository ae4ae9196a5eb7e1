"""`lamplighter run` and `lamplighter delayed` with a running gateway."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path

from tests.support.commands import command
from tests.support.fork_server import ForkedProcess
from tests.support.gateway_process import GatewayProcess
from tests.support.places import ROOT


def config(folder: Path, text: str) -> Path:
    path = folder / "lamplighter.toml"
    path.write_text(text)
    return path


def test_two_gateways_cannot_share_data_and_one_ends_well_when_told(tmp_path: Path) -> None:
    path = config(tmp_path, "[http]\nport = 0\n[websocket]\nport = 0\n")
    line = ["run", "--config", str(path)]
    first = ForkedProcess(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert first.stdout
        printed = ""
        while "health" not in printed:
            text = first.stdout.readline()
            assert text, "the gateway did not start"
            printed += text
        for url in ("/query", "/update", "/subscribe", "/delayed", "/health"):
            assert url in printed
        assert ":0/" not in printed
        for words in (["status"], ["subscribe", "SELECT ?s { ?s ?p ?o }", "--count", "1"]):
            done = command(*words, "--config", path)  # finds the ports that the system chose
            assert done.returncode == 0, done.stderr
        second = command("run", "--config", path)
        assert second.returncode == 2
        assert "another gateway is using it" in second.stderr
        first.send_signal(signal.SIGTERM)
        _, errors = first.communicate(timeout=60)
        assert first.returncode == 0
        assert "Traceback" not in errors
    finally:
        first.kill()
        first.communicate(timeout=60)


def test_timers_are_listed_as_a_table_or_as_the_gateway_says(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path) as gateway:
        options = ("timers", "--config", tmp_path / "lamplighter.toml")
        assert command(*options).stdout.split() == ["ID", "DUE", "IN", "CAUSE", "STATE", "MISSED", "UPDATE"]
        update = "\n\n  INSERT DATA { <http://e/s> <http://e/p> 'some text that is long enough' } ;\nCLEAR ALL"
        late = gateway.update(update, delay="P1DT2H", missed="skip")["delayed"]
        soon = gateway.update("# \x1b[31mred\nCLEAR ALL", at="2999-01-01T00:00:00Z")["delayed"]
        done = command(*options)
        assert (done.returncode, done.stderr) == (0, "")
        _, first, second = done.stdout.splitlines()
        assert first.startswith(late)
        assert re.search(r"  \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  1d 0(2:00:00|1:59:\d\d)  ", first)
        assert re.search(r"  http 127\.0\.0\.1:\d+  pending +skip  ", first)
        shown = first.partition("  skip  ")[2].lstrip()
        assert shown == "INSERT DATA { <http://e/s> <http://e/p> 'some text that is …"
        assert len(shown) == 60
        assert second.startswith(f"{soon}  2999-01-01T00:00:00Z")
        assert second.endswith(r"  run     # \u001B[31mred"), "no escape sequence reaches the terminal"
        said = json.loads(command(*options, "--json").stdout)
        assert [timer["id"] for timer in said["delayed"]] == [late, soon]
        assert said["total"] == 2
        assert said["delayed"][0]["update"] == update
    done = command(*options)
    assert done.returncode == 3
    assert f"no gateway answers at http://127.0.0.1:{gateway.http_port}/delayed" in done.stderr


def test_timers_are_cancelled_by_their_ids(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path) as gateway:
        options = ("--config", tmp_path / "lamplighter.toml")
        one, two, three = (gateway.update("CLEAR ALL", delay="P1D")["delayed"] for _ in range(3))
        done = command("timers", "cancel", one, *options)
        assert (done.returncode, done.stdout) == (0, f"cancelled {one}\n")
        done = command("timers", "cancel", two, "--json", *options)
        assert (done.returncode, json.loads(done.stdout)) == (0, {"cancelled": [two]})
        done = command("timers", "cancel", two, *options)
        assert (done.returncode, done.stdout) == (4, "") and "delayed_not_found" in done.stderr
        listed = json.loads(command("timers", "list", "--json", "--url", gateway.http_url).stdout)
        assert [timer["id"] for timer in listed["delayed"]] == [three]


def test_a_gateway_in_the_foreground_reloads_on_sighup(tmp_path: Path) -> None:
    path = config(tmp_path, "[http]\nport = 0\n[websocket]\nport = 0\n[coap]\nenabled = false\n")
    line = ["run", "--config", str(path)]
    process = ForkedProcess(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout and process.stderr
        assert "ready" in process.stdout.readline()

        def told(text: str) -> None:
            path.write_text(path.read_text() + text)
            process.send_signal(signal.SIGHUP)

        told("[query]\nrows_max = 7\n")
        assert "applied=query.rows_max" in next(line for line in process.stderr if "configuration reloaded" in line)
        (tmp_path / "apps").mkdir()
        shutil.copy(ROOT / "apps" / "smart-lighting.jsap", tmp_path / "apps" / "light.jsap")
        process.send_signal(signal.SIGHUP)
        assert "name=light" in next(line for line in process.stderr if "application started" in line)
        (tmp_path / "apps" / "light.jsap").unlink()
        process.send_signal(signal.SIGHUP)
        assert "name=light" in next(line for line in process.stderr if "application ended" in line)
        told("[nosuch]\n")
        refused = next(line for line in process.stderr if "configuration refused" in line)
        assert "unknown table [nosuch]" in refused
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate(timeout=60)

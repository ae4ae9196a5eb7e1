"""Each exit code of `lamplighter`, and its line in the help and the documents."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lamplighter.gateway.cli.command_table import MEANINGS, ExitCode
from tests.support.commands import command
from tests.support.fork_server import ForkedProcess
from tests.support.gateway_process import GatewayProcess
from tests.support.places import ROOT


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("gateway")) as running:
        running.update("INSERT DATA { <urn:s> <urn:p> 1 }")
        yield running


def test_good_refused_and_wrong_use(gateway: GatewayProcess) -> None:
    options = ("--config", gateway.config)
    assert command("query", "ASK {}", *options).returncode == ExitCode.GOOD
    assert command("query", "SELEKT ?x {}", *options).returncode == ExitCode.REFUSED
    assert command("timers", "cancel", "nosuch", *options).returncode == ExitCode.REFUSED
    assert command("log", "show", "--last", "0", *options).returncode == ExitCode.WRONG_USE
    for words in (("log", "show", "--nosuch"), ("devices", "--nosuch"), ("completion", "bash", "--nosuch")):
        done = command(*words, *options)
        assert done.returncode == ExitCode.WRONG_USE
        name = "lamplighter " + " ".join(words[: words.index("--nosuch")]).removesuffix(" bash")
        assert done.stderr.startswith(f"usage: {name} [-h]")
        assert f"{name}: error: unrecognized arguments: --nosuch" in done.stderr
    for words, missing in (((), "COMMAND"), (("log",), "SUBCOMMAND"), (("init",), "TEMPLATE")):
        assert command(*words).stderr.endswith(f"error: the following arguments are required: {missing}\n")


def test_a_negative_answer(tmp_path: Path) -> None:
    (tmp_path / "mapping").mkdir()
    (tmp_path / "mapping" / "home.toml").write_text("[[steam]]")
    (tmp_path / "lamplighter.toml").write_text("")
    done = command("mapping", "check", "--config", tmp_path / "lamplighter.toml")
    assert done.returncode == ExitCode.NEGATIVE, done


def test_no_answer(tmp_path: Path) -> None:
    (tmp_path / "lamplighter.toml").write_text("[http]\nport = 9\n")
    done = command("timers", "--config", tmp_path / "lamplighter.toml")
    assert done.returncode == ExitCode.NO_ANSWER and "no gateway answers" in done.stderr
    assert command("timers", "--url", "http://127.0.0.1:9").returncode == ExitCode.NO_ANSWER
    assert command("devices", "discover", "nowhere.invalid").returncode == ExitCode.NO_ANSWER


def test_damage(tmp_path: Path) -> None:
    (tmp_path / "backup.zst").write_bytes(b"damaged")
    done = command("restore", tmp_path / "backup.zst", "--yes")
    assert done.returncode == ExitCode.DAMAGED, done
    assert command("restore", tmp_path / "none.zst", "--yes").returncode == ExitCode.WRONG_USE


def test_an_interrupt(gateway: GatewayProcess) -> None:
    line = ["subscribe", "SELECT ?o { ?s ?p ?o }", "--json", "--config", str(gateway.config)]
    process = ForkedProcess(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and "spuid" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == ExitCode.INTERRUPTED and "Traceback" not in errors


def test_help_and_documents_have_all_codes() -> None:
    told = command("--help").stdout
    documented = (ROOT / "docs" / "cli.md").read_text()
    for code, meaning in MEANINGS.items():
        assert re.search(rf"(?m)^  {int(code)} +{re.escape(meaning)}$", told)
        assert f"|{int(code)}|{meaning}|" in documented


def test_no_such_thing_has_one_code(gateway: GatewayProcess) -> None:
    for words in (
        ("timers", "cancel", "nosuch"),
        ("devices", "show", "nosuch"),
        ("devices", "remove", "nosuch", "--yes"),
        ("explain", "urn:nosuch"),
        ("query", "--at", "999999", "ASK {}"),
    ):
        done = command(*words, "--config", gateway.config)
        assert done.returncode == ExitCode.REFUSED, (words, done)


def test_a_subscription_to_no_query_ends_at_once_and_says_where_it_goes() -> None:
    for text in ("hello", "INSERT DATA {}"):
        done = command("subscribe", text, "--url", "http://127.0.0.1:9")
        assert done.returncode == ExitCode.REFUSED and "is no query" in done.stderr, done


def test_a_negative_delay_is_explained() -> None:
    done = command("update", "CLEAR ALL", "--delay", "-PT5S")
    assert done.returncode == ExitCode.WRONG_USE and "--delay=VALUE" in done.stderr, done

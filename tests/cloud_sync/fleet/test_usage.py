"""What the fleet's commands say when something that they need is not there: one line that names the cure."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lamplighter.cloud_sync.fleet import __main__ as command
from lamplighter.cloud_sync.fleet.__main__ import MODULES, main, parser
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.session import session
from lamplighter.cloud_sync.fleet.subcommands import CommandParser
from lamplighter.engine.errors import ConfigurationError
from tests.support import odd_gateway
from tests.support.components import require_module
from tests.support.small_lake import write_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """What the command wrote on stderr, which has to be one line."""
    [line] = capsys.readouterr().err.splitlines()
    return line


@pytest.fixture
def landed(tmp_path: Path) -> Path:
    """A lake in which a segment has landed."""
    write_segment(tmp_path / "lake" / "segments" / odd_gateway.NAME, odd_gateway.segments()[0])
    return tmp_path / "lake"


@pytest.mark.parametrize(
    ("name", "cure"), [("ingest", "lamplighter-fleet collect SOURCE"), ("silver", "lamplighter-fleet ingest")]
)
def test_an_empty_lake_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, cure: str) -> None:
    assert main([name, str(tmp_path / "lake")]) == 2
    assert cure in said(capsys)
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["{lake}", "{text}", "--per-gateway", "--format", "json"],
        ["{lake}", "--per-gateway", "{text}", "--format", "json"],
        ["{lake}", "--per-gateway", "--format", "json", "{text}"],
        ["--format", "json", "{lake}", "--per-gateway", "{text}"],
        ["--per-gateway", "--format", "json", "{lake}", "{text}"],
    ],
)
def test_a_query_may_be_anywhere_among_the_options(tmp_path: Path, words: list[str]) -> None:
    lake, text = str(tmp_path / "lake"), "SELECT ?s WHERE { ?s ?p ?o }"
    found = command.parser().parse_args(["query", *(word.format(lake=lake, text=text) for word in words)])
    assert (found.lake, found.query, found.per_gateway, found.format) == (lake, text, True, "json")


def test_an_option_that_is_none_and_an_argument_that_is_missing_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, told in ((["query"], "required: LAKE"), (["query", "lake", "ASK {}", "--no"], "unrecognized"),
                        (["subscriptions"], "required: subcommand"), (["status"], "required: LAKE")):  # fmt: skip
        with pytest.raises(SystemExit) as raised:
            main(words)
        assert raised.value.code == 2
        assert told in capsys.readouterr().err


def test_a_lake_that_is_a_file_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lake").write_text("")
    assert main(["ingest", str(tmp_path / "lake")]) == 2
    assert str(tmp_path / "lake") in said(capsys)


@pytest.fixture
def without_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """No session of Spark: another test of this process may have one."""
    require_module("pyspark")
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)


@pytest.mark.usefixtures("without_session")
def test_java_that_is_not_there_is_said(
    landed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(landed / "nowhere"))
    assert main(["ingest", str(landed)]) == 2
    assert "nowhere/bin/java: No such file or directory; Spark needs Java 17 or newer: apt install" in said(capsys)


@pytest.mark.usefixtures("without_session")
@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ('openjdk version "11.0.21" 2023-10-17', "is version 11; Spark needs Java 17"),
        ('java version "1.8.0_392"', "is version 8; Spark needs Java 17"),
        ("no idea", "says 'no idea'; Spark needs Java 17"),
    ],
)
def test_a_java_that_is_too_old_is_said(
    landed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, version: str, expected: str
) -> None:
    java = landed / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(landed))
    assert main(["ingest", str(landed)]) == 2
    assert expected in said(capsys)


def test_spark_that_is_not_installed_is_said(
    landed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    monkeypatch.setitem(sys.modules, "pyspark.errors", None)
    assert main(["ingest", str(landed)]) == 2
    assert "; pip install 'deltalake" in said(capsys)


def test_a_setting_without_a_value_is_said(landed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ingest", str(landed), "--conf", "spark.driver.memory"]) == 2
    assert "write KEY=VALUE, such as spark.driver.memory=4g" in said(capsys)


def test_what_spark_says_is_told_without_its_stack(
    landed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = import_module("pyspark.errors")

    def failing(*arguments: object, **options: object) -> None:
        raise errors.PySparkRuntimeError("no room is left\n\tat org.apache.Spark\n\tat java.lang.Thread")

    monkeypatch.setattr("lamplighter.cloud_sync.fleet.session.of_arguments", failing)
    monkeypatch.setattr("tempfile.tempdir", str(landed))
    assert command.main(["ingest", str(landed)]) == 2
    line = said(capsys)
    assert "ingest: Spark: no room is left" in line and "org.apache" not in line
    [log] = landed.glob("lamplighter-fleet-*.log")
    assert str(log) in line and "at org.apache.Spark" in log.read_text()


def test_a_master_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    sql = import_module("pyspark.sql")
    errors = import_module("pyspark.errors")

    def failing(builder: object) -> None:
        raise errors.PySparkRuntimeError("Could not parse Master URL: 'moon'")

    monkeypatch.setattr(sql.SparkSession.Builder, "getOrCreate", failing)
    monkeypatch.setattr(sql.SparkSession, "getActiveSession", lambda: None)
    with pytest.raises(ConfigurationError, match=r"Could not parse Master URL: 'moon'; check --master and --conf"):
        session("test", "moon")


def test_the_commands_are_declared_without_libraries_that_only_some_of_them_need() -> None:
    """The driver of a cluster needs only what docs/fleet.md lists."""
    script = (
        "import sys; from lamplighter.cloud_sync.fleet.__main__ import parser; parser(); "
        "heavy = ('pyoxigraph', 'pyspark', 'pyarrow', 'fsspec', 'matplotlib', 'deltalake'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_small_ingest_on_the_local_engine_loads_no_pyarrow(landed: Path) -> None:
    """Loading it costs as much processor time as reading two gateways of a day."""
    for name in ("duckdb", "deltalake"):
        require_module(name)
    script = (
        "import sys; from lamplighter.cloud_sync.fleet.__main__ import main; "
        "assert main(['ingest', sys.argv[1], '--engine', 'local']) == 0; "
        "print([name for name in ('duckdb', 'deltalake', 'pyarrow', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, str(landed)], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("['duckdb', 'deltalake']\n")


@pytest.mark.parametrize("how", ["SPARK_REMOTE", "--master", "--conf"])
def test_spark_connect_is_refused(
    landed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    require_module("pyspark")
    url = "sc://127.0.0.1:15002"
    words = {"--master": ["--master", url], "--conf": ["--conf", f"spark.remote={url}"]}.get(how, [])
    if how == "SPARK_REMOTE":
        monkeypatch.setenv(how, url)
    assert main(["ingest", str(landed), *words]) == 2
    assert f"Spark Connect ({url}) is not supported" in (line := said(capsys))
    assert "unset SPARK_REMOTE" in line


def test_a_lake_without_a_file_system_of_spark_is_said(
    spark: "SparkSession", landed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the lake are here, and Spark looks for them in a bucket."""
    monkeypatch.setattr(Lake, "spark", lambda self, *parts: "/".join(("s3a://fleet/lake", *parts)))
    assert main(["ingest", str(landed)]) == 2
    line = said(capsys)
    assert "Spark has no file system for it (org.apache.hadoop.fs.s3a.S3AFileSystem); add its jars" in line
    assert str(landed) in line


@pytest.mark.parametrize("words", [["subscriptions", "list"], ["subscriptions", "status"], ["compact"]])
def test_why_a_store_refuses_is_said(s3: dict[str, Any], words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lamplighter.cloud_sync.fleet", *words, "s3://fleet/lake"],
        env={**os.environ, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "wrong",
             "AWS_ENDPOINT_URL": str(s3["endpoint_url"])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "lake 's3://fleet/lake': PermissionError: The request signature we calculated does not match" in line


def test_a_command_loads_only_its_own_modules(tmp_path: Path) -> None:
    for name, commands in MODULES.items():
        found = CommandParser(prog="test").add_subparsers(dest="command")
        import_module(name).add_commands(found)
        assert tuple(found.choices) == commands, name
    script = (
        "import sys; from lamplighter.cloud_sync.fleet.__main__ import MODULES, main; "
        "main(['package', sys.argv[1]]); print([name for name in MODULES if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("['lamplighter.cloud_sync.fleet.package']\n")
    assert "subscriptions" in parser("no such command").format_help()

"""The `lamplighter-fleet` command. Each module declares its own commands; Spark is loaded by those that need it."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from traceback import walk_tb
from typing import Any

from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.subcommands import CommandParser
from lamplighter.engine.errors import BusyError, GatewayError
from lamplighter.engine.extras import pip_install

_FLEET = "lamplighter.cloud_sync.fleet"
# Modules with an `add_commands(subparsers)`, and their commands. The default `run` of a command is a function that
# returns the exit code.
MODULES = {
    "lamplighter.demo.fleet.simulate": ("simulate",),
    f"{_FLEET}.collection.collector": ("collect", "status", "gaps", "quarantine"),
    f"{_FLEET}.tables.bronze": ("ingest",),
    f"{_FLEET}.tables.silver": ("silver",),
    f"{_FLEET}.jobs": ("jobs",),
    f"{_FLEET}.report": ("report",),
    f"{_FLEET}.tables.state": ("state",),
    f"{_FLEET}.queries.command": ("query",),
    f"{_FLEET}.tables.export": ("export",),
    f"{_FLEET}.tables.compact": ("compact",),
    f"{_FLEET}.subscriptions.commands": ("subscriptions",),
    f"{_FLEET}.subscriptions.explain": ("explain",),
    f"{_FLEET}.delivery.commands": ("subscriptions",),
    f"{_FLEET}.subscriptions.match_command": ("subscriptions",),
    f"{_FLEET}.deletion.commands": ("forget", "retain"),
    f"{_FLEET}.subscriptions.push_command": ("subscriptions",),
    f"{_FLEET}.package": ("package",),
    "lamplighter.demo.fleet": ("demo",),
}
_DEMO = "lamplighter.demo"
# Packages of the extra `cloud`.
_CLOUD = frozenset(
    (
        "deltalake",
        "duckdb",
        "fsspec",
        "jinja2",
        "matplotlib",
        "numpy",
        "paramiko",
        "prometheus_client",
        "py4j",
        "pyarrow",
        "pyoxigraph",
        "pyspark",
        "s3fs",
    )
)
# Where the errors of an engine are defined.
_ENGINES = {"pyspark": "Spark", "py4j": "Spark", "duckdb": "DuckDB", "_duckdb": "DuckDB"}
_JVM_LOST = (
    "Spark's JVM has ended (killed, or out of memory); run the command again, with more memory if it repeats: "
    "--conf spark.driver.memory=4g"
)

_NO_JAR = re.compile(r"Class (org\.apache\.hadoop\.fs\.\S+) not found|No FileSystem for scheme \"(\w+)\"")


def parser(command: str = "") -> argparse.ArgumentParser:
    """A command, without loading the modules of the others; all commands if there is none of that name."""
    found = CommandParser(
        prog="lamplighter-fleet", description="Turns the change logs of a fleet of gateways into tables and results."
    )
    commands = found.add_subparsers(title="commands", required=True, dest="command")
    for name in [one for one, names in MODULES.items() if command in names] or MODULES:
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            if error.name != _DEMO:  # an installation on a gateway has no demo
                raise
        else:
            module.add_commands(commands)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Exit codes: 0, done; 1, done, but something was left out; 2, failure; 75, another process is
    writing the same tables; 130, interrupted. stderr has the reason and the remedy."""
    given = sys.argv[1:] if argv is None else argv
    arguments = parser(given[0] if given else "").parse_args(given)
    run: Callable[[Any], int] = arguments.run
    began = time.monotonic()
    code = _code(arguments, lambda: run(arguments))
    if getattr(arguments, "metrics", None) is None:
        return code
    return _code(arguments, lambda: _write_metrics(arguments, code, time.monotonic() - began))


def _write_metrics(arguments: argparse.Namespace, code: int, seconds: float) -> int:
    """Writes the metrics of a run, and returns its exit code."""
    from lamplighter.cloud_sync.fleet.metrics import write_metrics

    write_metrics(arguments.metrics, arguments.command, Lake(arguments.lake), code, seconds)
    return code


def _code(arguments: argparse.Namespace, run: Callable[[], int]) -> int:
    """The exit code of a function. Errors of the commands are printed; others are raised."""
    try:
        code = run()
        sys.stdout.flush()
        return code
    except BusyError as error:
        print(f"lamplighter-fleet {arguments.command}: {error}", file=sys.stderr)
        return os.EX_TEMPFAIL
    except GatewayError as error:
        said = str(error)
    except BrokenPipeError:  # the reader of the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        said = f"{error.filename}: {error.strerror}; use another path, or check its permissions and its disk"
        if error.filename is None and _from_lost_jvm(error):
            said = _JVM_LOST
        elif error.filename is None:
            if not _from_store(error):
                raise
            said = f"lake {arguments.lake!r}: {_reason_of_store(error, arguments.lake)}; check its URL and credentials"
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _CLOUD:
            raise
        said = f"{package} is not installed; {pip_install('cloud')}"
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        engine = _ENGINES.get(type(error).__module__.partition(".")[0])
        if engine is None:
            raise
        said = _JVM_LOST if _from_lost_jvm(error) else _first_lines(engine, error)
    print(f"lamplighter-fleet {arguments.command}: {_without_jars(said, arguments) or said}", file=sys.stderr)
    return 2


def _from_store(error: OSError) -> bool:
    """Whether an error is of a file system of fsspec."""
    names = {str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame, _ in walk_tb(error.__traceback__)}
    return bool(names & {"fsspec", "s3fs"})


def _reason_of_store(error: OSError, lake: str) -> str:
    """Why a store has refused a request."""
    # The answer to a HEAD, by which S3 is asked whether a file exists, has no reason. That to a listing has one.
    if isinstance(error, PermissionError):
        try:
            Lake(lake).names()
        except OSError as refused:
            error = refused
    return f"{type(error).__name__}: {str(error).rstrip('. ')}"


def _without_jars(said: str, arguments: argparse.Namespace) -> str:
    """The message for a lake that Spark cannot open, since a file system is not among its jars; empty for others."""
    found = _NO_JAR.search(said)
    if found is None:
        return ""
    lake = getattr(arguments, "lake", "")
    return (
        f"lake {lake!r}: Spark has no file system for it ({found[1] or found[2]}); add its jars, for s3: with "
        "--conf spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION, or collect into a folder"
    )


def _from_lost_jvm(error: BaseException | None) -> bool:
    """Whether py4j lost its connection to Spark's JVM, which may be the first error of a chain."""
    while error is not None:
        lost = isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError"
        if lost and any(frame.f_globals["__name__"].startswith("py4j.") for frame, _ in walk_tb(error.__traceback__)):
            return True
        error = error.__context__
    return False


def _first_lines(engine: str, error: Exception) -> str:
    """An engine's message without the JVM's stack trace, which is written to a file."""
    text = str(error)
    log = Path(tempfile.gettempdir()) / f"lamplighter-fleet-{os.getpid()}.log"
    log.write_text(text)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    return f"{engine}: {' '.join(lines[:2])[:400]} ({log} has all of it)"


if __name__ == "__main__":
    sys.exit(main())

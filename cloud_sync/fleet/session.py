"""The engine of a command: a Spark session, or DuckDB in this process.

spark-submit, or `--master` and `--conf`, set where Spark runs and its resources; `--engine` chooses the engine.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from lamplighter.engine.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lamplighter.cloud_sync.fleet.local.session import LocalSession

Session: TypeAlias = "SparkSession | LocalSession"


class LakePlace(Protocol):
    """A lake."""

    @property
    def url(self) -> str: ...

    @property
    def local(self) -> bool: ...


JAVA_MIN = 17

# Settings that the tables require. They are set on every session, including an existing one.
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    # Other programs do not read Spark's default INT96 as a time.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.adaptive.enabled": "true",
    # The configuration of spark-submit prints each step; of the start, only the versions are left.
    "spark.log.level": "ERROR",
    # Not needed: a manifest names the files of a batch.
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.ansi.enabled": "true",
    # Queries of subscriptions are nested more deeply than Spark's default lets it resolve.
    "spark.sql.analyzer.maxIterations": "1000",
}

_LOGGING = Path(__file__).parent / "log4j2.properties"

# Defaults for one machine.
DEFAULTS = {
    "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    # Pauses do not matter here, and this collector takes less processor time.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    # HotSpot does not compile methods above 8000 bytes. Spark's default would let larger ones be interpreted.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # Room for the generated classes of silver and of all jobs (Spark's default is 100), so that a long session does not
    # compile them again.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # Checks of Spark's own rules after each of them, and the Python call site of each expression: they slow down the
    # planning of queries, which takes most of the time of a small batch.
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.ui.enabled": "false",
    # Without its pages too, Spark keeps the plans of so many queries, 1,000 by default, in the memory of the driver.
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "100",
    "spark.ui.retainedTasks": "1000",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "8",
    # Frames that `tables.by_gateway` has partitioned are joined by gateway and stream without another shuffle.
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
}

# Replaces SETTINGS and DEFAULTS for small input on one machine, as measured in docs/internals/fleet-experiments.md.
SMALL = {
    # One compiler, which is cheap and makes slower code, and no threads of a parallel collector.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    # Expressions are interpreted: compiling those of all jobs takes longer than evaluating them.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Sizes that are measured while a query runs cannot improve a plan for so few rows.
    "spark.sql.adaptive.enabled": "false",
}

# Records or readings up to which input is small.
ROWS_SMALL = 50_000

# Records or readings up to which `--engine auto` chooses DuckDB, which was measured up to here. Spark was not cheaper
# where both were measured, up to 765,624 (`python -m benchmarks.fleet_engines`; docs/internals/fleet-experiments.md).
ROWS_LOCAL = 2_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of every command that runs Spark."""
    parser.add_argument(
        "--engine",
        choices=("spark", "local", "auto"),
        default="spark",
        help="spark (the default); local: DuckDB in this process, for ingest, silver, jobs, report, state and compact "
        f"over a folder; auto: local for up to {ROWS_LOCAL:,} new records or readings, where it can",
    )
    group = parser.add_argument_group("Spark (leave these out under spark-submit)")
    group.add_argument(
        "--master", metavar="URL", help="such as local[2] or spark://host:7077 (default: Spark's configuration)"
    )
    group.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a Spark setting, such as spark.driver.memory=4g",
    )

    schedulers = parser.add_argument_group("for schedulers")
    schedulers.add_argument(
        "--metrics",
        type=Path,
        metavar="FILE",
        help="write the outcome for Prometheus (node_exporter's textfile collector)",
    )


@contextmanager
def engine_of(
    arguments: argparse.Namespace, name: str, lake: LakePlace, *, rows: int | None = None
) -> Iterator[Session]:
    """The session of a command that runs on either engine. rows: as in `of_arguments`."""
    if not _runs_locally(arguments, lake, rows):
        yield of_arguments(arguments, name, rows=rows, either=True)
        return
    from lamplighter.cloud_sync.fleet.local.session import local_session

    with local_session() as found:
        yield found


def _runs_locally(arguments: argparse.Namespace, lake: LakePlace, rows: int | None) -> bool:
    for_spark = arguments.master is not None or bool(arguments.conf)
    if arguments.engine == "auto":
        few = rows is not None and rows <= ROWS_LOCAL
        can = lake.local and not for_spark and not _under_spark_submit() and find_spec("duckdb") is not None
        return few and can
    if arguments.engine == "local":
        if for_spark:
            raise ConfigurationError("--engine local: --master and --conf are for Spark; leave them out")
        if not lake.local:
            raise ConfigurationError(f"lake {lake.url!r}: --engine local reads a lake in a folder; use --engine spark")
    return bool(arguments.engine == "local")


def has_short_plans(found: Session, rows: int) -> bool:
    """Whether the source of later plans may be rows that were computed before, which only one process does not lose.

    rows: of the tables; of many, one process of Spark computes a part again rather than keep it.
    """
    context = getattr(found, "sparkContext", None)
    return context is None or (rows <= ROWS_SMALL and context.master.startswith("local"))


def of_arguments(
    arguments: argparse.Namespace, name: str, *, rows: int | None = None, either: bool = False
) -> SparkSession:
    """The Spark session that a command's arguments ask for.

    rows: records or readings that the command will read, if known. For few of them, SMALL applies, unless Spark runs on
    a cluster. `--conf` overrides it. either: the command would run on the local engine too.
    """
    if not either and arguments.engine == "local":
        raise ConfigurationError(f"{name} runs on Spark only; use --engine spark, or leave it out")
    settings = {}
    for text in arguments.conf:
        key, sign, value = text.partition("=")
        if not sign or not key.startswith("spark."):
            raise ConfigurationError(f"--conf {text}: write KEY=VALUE, such as spark.driver.memory=4g")
        settings[key] = value
    master = arguments.master or settings.get("spark.master", "local")
    small = rows is not None and rows <= ROWS_SMALL and master.startswith("local")
    return session(name, arguments.master, settings, small=small)


def session(
    name: str, master: str | None = None, settings: dict[str, str] | None = None, *, small: bool = False
) -> SparkSession:
    """The active session, if there is one (of a notebook or a cluster), otherwise a new one.

    small: whether SMALL applies. An existing session, and one of spark-submit, stay as they are.
    Raises ConfigurationError if Java is not installed, Spark does not start or Spark Connect is asked for; ImportError
    without PySpark.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    remote = os.environ.get("SPARK_REMOTE") or (settings or {}).get("spark.remote")
    if remote or str(master).startswith("sc://"):
        raise ConfigurationError(
            f"Spark Connect ({remote or master}) is not supported: the commands use the driver's JVM; "
            "unset SPARK_REMOTE and name a master, or use spark-submit"
        )
    active = SparkSession.getActiveSession()
    if active is None:
        # Python workers, if any, must run the same Python.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.appName(f"lamplighter {name}")
        if master is not None:
            builder = builder.master(master)
            if master.startswith("local"):
                builder = builder.config("spark.driver.host", "127.0.0.1").config(
                    "spark.driver.bindAddress", "127.0.0.1"
                )
        if not _under_spark_submit():
            _check_java()
            _set_utf8_locale()
        started = {} if not small or _under_spark_submit() else SMALL
        for key, value in {**_unless_set(DEFAULTS), **SETTINGS, **started, **(settings or {})}.items():
            builder = builder.config(key, value)
        try:
            active = builder.getOrCreate()
        except (PySparkException, import_module("py4j.protocol").Py4JError) as error:
            said = next(iter(str(error).strip().splitlines()[1:2]), str(error))
            raise ConfigurationError(f"Spark does not start: {said}; check --master and --conf") from error
        active.sparkContext.setLogLevel("ERROR")
    else:
        for key, value in SETTINGS.items():
            if key.startswith("spark.sql."):
                active.conf.set(key, value)
    return active


def _under_spark_submit() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _set_utf8_locale() -> None:
    """Java takes the encoding of file names from the locale. In others, such as POSIX, which cron and systemd have, it
    cannot open a name that is not ASCII."""
    named = next((value for name in ("LC_ALL", "LC_CTYPE", "LANG") if (value := os.environ.get(name))), "")
    if not re.search("utf-?8", named, re.IGNORECASE):
        os.environ["LC_ALL"] = "C.UTF-8"


def _check_java() -> None:
    """Raises ConfigurationError without a Java version that Spark supports."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else "java"
    cure = "Spark needs Java 17 or newer: apt install openjdk-17-jre-headless, or set JAVA_HOME to one"
    try:
        said = subprocess.run([command, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError as error:
        raise ConfigurationError(f"{command}: {error.strerror}; {cure}") from error
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    if version is None:
        raise ConfigurationError(f"{command} -version says {said.strip()[:200]!r}; {cure}")
    if int(version[1]) < JAVA_MIN:
        raise ConfigurationError(f"{command} is version {version[1]}; {cure}")


def _unless_set(defaults: dict[str, str]) -> dict[str, str]:
    """The defaults that neither spark-submit nor a configuration file overrides."""
    from pyspark import SparkConf
    from pyspark.context import SparkContext

    if SparkContext._jvm is None and SparkContext._gateway is None:
        # Reading the configuration needs the JVM, which spark-submit has started.
        return {} if _under_spark_submit() else defaults
    conf = SparkConf()
    return {key: value for key, value in defaults.items() if not conf.contains(key)}

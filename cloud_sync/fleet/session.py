"""The Spark session. Where it runs and with how much is said by spark-submit, by `--master` and `--conf`, not here."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from lamplighter.engine.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    # Spark's own INT96 is not what others read as a time.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.adaptive.enabled": "true",
    # A manifest names the files of a batch; these would only stand beside them.
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.ansi.enabled": "true",
}
"""What the tables rely on; set on any session, also on one that was there before."""

_LOGGING = Path(__file__).parent / "log4j2.properties"

DEFAULTS = {
    "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    # Nobody minds pauses, and this one takes less of the processor.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    # HotSpot never compiles a method above 8000 bytes of code; Spark's own limit would have such ones interpreted.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # Room for the generated classes of silver and of all jobs (Spark's own limit is 100), so that a session that goes
    # on need not compile them anew.
    "spark.sql.codegen.cache.maxEntries": "2000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "8",
    # What `tables.by_gateway` has put together is joined by gateway and stream as it is, not shuffled once more.
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
}
"""What suits one machine, where nobody says otherwise."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What every command that runs Spark takes."""
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


def of_arguments(arguments: argparse.Namespace, name: str) -> SparkSession:
    """The session that a command's arguments ask for."""
    settings = {}
    for text in arguments.conf:
        key, sign, value = text.partition("=")
        if not sign or not key.startswith("spark."):
            raise ConfigurationError(f"--conf {text}: write KEY=VALUE, such as spark.driver.memory=4g")
        settings[key] = value
    return session(name, arguments.master, settings)


def session(name: str, master: str | None = None, settings: dict[str, str] | None = None) -> SparkSession:
    """The active session if there is one (a notebook's, a cluster's), else a new one.

    Raises ConfigurationError when Java is not installed or Spark does not start; ImportError without Spark.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None:
        # Python workers, where there are any, have to be of the same Python.
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
        for key, value in {**_unless_set(DEFAULTS), **SETTINGS, **(settings or {})}.items():
            builder = builder.config(key, value)
        try:
            active = builder.getOrCreate()
        except (PySparkException, import_module("py4j.protocol").Py4JError) as error:
            said = next(iter(str(error).strip().splitlines()[1:2]), str(error))
            raise ConfigurationError(f"Spark does not start: {said}; look at --master and --conf") from error
        active.sparkContext.setLogLevel("ERROR")
    else:
        for key, value in SETTINGS.items():
            if key.startswith("spark.sql."):
                active.conf.set(key, value)
    return active


def _under_spark_submit() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _check_java() -> None:
    """Raises ConfigurationError unless there is a Java that Spark runs on."""
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
    """Those that neither spark-submit nor a configuration file sets."""
    from pyspark import SparkConf
    from pyspark.context import SparkContext

    if SparkContext._jvm is None and SparkContext._gateway is None:
        # Reading the configuration needs the JVM; under spark-submit it is there already.
        return {} if _under_spark_submit() else defaults
    conf = SparkConf()
    return {key: value for key, value in defaults.items() if not conf.contains(key)}

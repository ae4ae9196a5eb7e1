"""A standalone Spark cluster of the pyspark distribution on loopback, and `spark-submit` to it.

Ports are chosen by the kernel. The driver's Python has the packages that docs/fleet.md lists and no others, and
the executors have no Python at all.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from tests.support.linked_packages import link, needed

START_S = 180.0
SUBMIT_S = 900.0
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": _JVM,
    "spark.driver.memory": "600m",
    "spark.executor.memory": "600m",
    "spark.executor.extraJavaOptions": _JVM,
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


class StandaloneCluster:
    """A master; `worker` adds workers of one core. packages: distributions of the driver's Python besides pyspark."""

    def __init__(self, folder: Path, packages: Iterable[str]) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._bin = Path(str(importlib.util.find_spec("pyspark").origin)).parent / "bin"  # type: ignore[union-attr]
        python = folder / "python"
        found = link(needed(["pyspark", *packages]).values(), folder / "packages")
        # -S: without the test environment's packages and the checkout.
        python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{found}" exec {sys.executable} -S "$@"\n')
        python.chmod(0o755)
        self._environment = {
            **{
                name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK", "PYSPARK"))
            },
            "PYSPARK_DRIVER_PYTHON": str(python),
            "PYSPARK_PYTHON": str(folder / "no-python"),
            "SPARK_HOME": str(self._bin.parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "128m",
            "SPARK_DAEMON_JAVA_OPTS": f"{_JVM} -Dspark.master.rest.enabled=false",
            "SPARK_WORKER_DIR": str(folder / "work"),
        }
        try:
            self.url = self._daemon("master.Master", r"Starting Spark master at (spark://\S+)")[1]
        except BaseException:
            self.close()
            raise

    def worker(self) -> subprocess.Popen[bytes]:
        """Starts a worker, and waits until the master has accepted it."""
        words = ("--cores", "1", "--memory", "1g", self.url)
        return self._daemon("worker.Worker", r"Successfully registered with master (\S+)", *words)[0]

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """Ends a worker and its executors at once, as when their machine fails."""
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def submit(self, files: Iterable[Path], script: Path, *words: object) -> subprocess.Popen[str]:
        """Starts `spark-submit` with the Python files, a script and its arguments. Its output has stderr as well."""
        settings = [word for key, value in _SETTINGS.items() for word in ("--conf", f"{key}={value}")]
        command = ["bash", str(self._bin / "spark-submit"), "--master", self.url, *settings]
        command += ["--py-files", ",".join(map(str, files)), str(script), *map(str, words)]
        process = subprocess.Popen(
            command,
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._processes.append(process)  # type: ignore[arg-type]
        return process

    def close(self) -> None:
        """Ends everything that was started."""
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def _daemon(self, name: str, expected: str, *words: str) -> tuple[subprocess.Popen[bytes], str]:
        log = self._folder / f"{name}-{len(self._processes)}.log"
        command = ["bash", str(self._bin / "spark-class"), f"org.apache.spark.deploy.{name}"]
        command += ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *words]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._processes.append(process)
        end = time.monotonic() + START_S
        while (found := re.search(expected, log.read_text(errors="replace"))) is None:
            assert process.poll() is None and time.monotonic() < end, log.read_text(errors="replace")[-2000:]
            time.sleep(0.1)
        return process, found[1]

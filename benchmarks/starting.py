"""What it takes to start: the gateway until it is ready, and commands of the CLI from their first to their last
instruction."""

import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.effort import Effort
from benchmarks.gateway_process import ROOT, gateway_process
from benchmarks.measuring import Progress, target
from benchmarks.text_table import table

GATEWAY_S, COMMAND_S = 0.6, 0.25
_LEAST, _RUN = "python -c pass", "run, until ready"
_IMPORTED = re.compile(r"^import time:\s+\d+ \|\s+\d+ \|\s*\S+$", re.MULTILINE)


def starting(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """Processor time and imported modules of the gateway's start and of commands, beside a Python that does nothing.

    The processes take turns, so that a figure relative to that Python is of the same moments. The first turn, which
    writes the bytecode, is not counted.
    """
    with gateway_process() as gateway, TemporaryDirectory() as folder:
        config = Path(folder) / "lamplighter.toml"
        local = ["--config", str(config), "--data", f"{folder}/data"]
        config.write_text("[http]\nport = 0\n[websocket]\nport = 0\n")
        url = "http://{}:{}".format(*gateway.http)
        commands = {
            "--version": ["--version"],
            "--help": ["--help"],
            "status": ["status", "--url", url],
            "query": ["query", "ASK {}", "--url", url],
            "update": ["update", "INSERT DATA { <http://bench.example/s> <http://bench.example/p> 1 }", "--url", url],
            _RUN: ["run", *local],
            # In the data folder of the gateway that has been killed.
            "check": ["check", *local],
            "verify": ["verify", *local],
            "log show": ["log", "show", *local],
            "backup": ["backup", f"{folder}/backup", "--yes", *local],
        }
        processes = {_LEAST: ["-c", "pass"]}
        processes |= {name: ["-m", "lamplighter.gateway", *arguments] for name, arguments in commands.items()}
        seconds: dict[str, list[float]] = {name: [] for name in processes}
        for turn in range(effort.starts + 1):
            for name, arguments in processes.items():
                spent = _processor_s(arguments, until_ready=name == _RUN)
                if turn:
                    seconds[name].append(spent)
        modules = {name: _modules(arguments, until_ready=name == _RUN) for name, arguments in processes.items()}
    measured = {
        name: {
            "processor s": statistics.median(all_s),
            "relative": statistics.median(one / least for one, least in zip(all_s, seconds[_LEAST], strict=True)),
            "modules": modules[name],
        }
        for name, all_s in seconds.items()
    }
    for name, figures in measured.items():
        progress(f"{name}: {figures['processor s']:.3f} s, {figures['modules']} modules")
    rows = [["starts", "processor s", f"times {_LEAST}", "modules"]]
    for name, figures in measured.items():
        seconds_relative = f"{figures['processor s']:.3f}", f"{figures['relative']:.1f}"
        rows.append([name, *seconds_relative, str(figures["modules"])])
    slowest = max((name for name in commands if name != _RUN), key=lambda name: measured[name]["processor s"])
    return {
        "starts": measured,
        "note": table(rows),
        "targets": [
            target("processor time until a gateway is ready", measured[_RUN]["processor s"], GATEWAY_S, "s"),
            target(f"processor time of a command ({slowest})", measured[slowest]["processor s"], COMMAND_S, "s"),
        ],
    }


def _process(arguments: list[str], stderr: int) -> subprocess.Popen[str]:
    # Where the environment forbids bytecode, the figures would be those of a compiler.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True
    )


def _processor_s(arguments: list[str], *, until_ready: bool) -> float:
    """Processor time of a process from its first instruction until it has ended, or is ready and killed."""
    process = _process(arguments, subprocess.DEVNULL)
    assert process.stdout is not None
    with process.stdout as told:
        if until_ready:
            assert "ready" in told.readline()
            process.kill()
        else:
            told.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert until_ready or process.returncode == 0, arguments
    return usage.ru_utime + usage.ru_stime


def _modules(arguments: list[str], *, until_ready: bool) -> int:
    """How many modules a process imports."""
    process = _process(["-X", "importtime", *arguments], subprocess.PIPE)
    assert process.stdout is not None
    if until_ready:
        assert "ready" in process.stdout.readline()
        process.kill()
    _, told = process.communicate()
    return len(_IMPORTED.findall(told))

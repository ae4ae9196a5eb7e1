"""Memory and CPU of an idle gateway: the process alone, and with both adapters in it.

Starts `lamplighter run` on free ports with an empty data folder, no broker and no devices, waits until it is settled,
and reads /proc for a while. Prints memory in MB and the share of one core in percent. Private memory is what the
process has written (RssAnon); PSS adds its part of the pages of libraries, which processes share.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SETTLE_S, MEASURE_S = 8, 30
CONFIG = """[http]
port = 0
[websocket]
port = 0
[mqtt]
host = "127.0.0.1"
port = 1
[coap]
enabled = true
[coap.server]
port = 0
"""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int, field: str) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise KeyError(field)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def measure(*options: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "lamplighter.toml"
        config.write_text(CONFIG)
        gateway = subprocess.Popen(
            [sys.executable, "-m", "lamplighter.gateway", "run", "--config", str(config), *options],
            cwd=Path(__file__).resolve().parent.parent,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            time.sleep(SETTLE_S)
            before = cpu_s(gateway.pid)
            time.sleep(MEASURE_S)
            share = (cpu_s(gateway.pid) - before) / MEASURE_S * 100
            resident, private, pss = (memory_mb(gateway.pid, field) for field in ("Rss", "Anonymous", "Pss"))
            name = "lamplighter run " + " ".join(options)
            print(
                f"{name:<24} {resident:6.1f} MB resident  {private:6.1f} MB private  {pss:6.1f} MB PSS  "
                f"{share:5.2f} % of a core"
            )
        finally:
            gateway.terminate()
            gateway.wait()


if __name__ == "__main__":
    print(f"idle for {MEASURE_S} s after {SETTLE_S} s", flush=True)
    measure()
    measure("--all")

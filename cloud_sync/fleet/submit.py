"""The script that `spark-submit` runs: `spark-submit --py-files lamplighter.zip lamplighter_fleet.py COMMAND ...`.

`lamplighter-fleet package` copies this file as `lamplighter_fleet.py`. It imports nothing of ours before it has checked
the driver's Python, because a cluster's Python is often another one than its users expect.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

PYTHON_MIN = (3, 11)

# Package -> distribution, for what every command needs on the driver. `report` also needs jinja2 and matplotlib, and
# `export --format delta` deltalake; these commands say so.
DISTRIBUTIONS = {
    "fsspec": "fsspec",
    "google_crc32c": "google-crc32c",
    "msgspec": "msgspec",
    "pyarrow": "pyarrow",
    "zstandard": "zstandard",
}


def problem() -> str | None:
    """What the driver's Python lacks, with the remedy."""
    where = f"the driver's Python is {sys.executable} {sys.version.split()[0]}"
    if sys.version_info < PYTHON_MIN:
        return f"{where}; set PYSPARK_PYTHON to Python {'.'.join(map(str, PYTHON_MIN))} or newer"
    missing = [name for package, name in DISTRIBUTIONS.items() if find_spec(package) is None]
    if missing:
        return f"{where}, which lacks {', '.join(missing)}; {sys.executable} -m pip install {' '.join(missing)}"
    if find_spec("lamplighter") is None:
        return f"{where}, which has no package lamplighter; add --py-files lamplighter.zip before the script"
    return None


def main() -> int:
    """Runs one command of `lamplighter-fleet`. Returns its exit code; 2 if the driver lacks a package."""
    found = problem()
    if found is not None:
        print(f"lamplighter_fleet.py: {found}", file=sys.stderr)
        return 2
    from lamplighter.cloud_sync.fleet.__main__ import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())

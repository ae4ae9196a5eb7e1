"""Runs several commands of `lamplighter-fleet` in one Spark application: `several_commands.py FILE`, a JSON array each
line. Prints each exit code."""

import json
import sys
from pathlib import Path

import lamplighter_fleet

for line in Path(sys.argv[1]).read_text().splitlines():
    sys.argv = ["lamplighter-fleet", *json.loads(line)]
    print(f"exit code {lamplighter_fleet.main()}: {sys.argv[1]}", flush=True)

"""Fuzzing by mutation: ``python -m tests.fuzz --seconds 60``; ``--seed`` repeats a run, ``--file`` one input.

Inputs are files of the corpus with bytes, words and parts changed, and parts of two put together. A fault ends the run;
its input is kept in build/fuzz, and belongs into the corpus when it is mended.

Inputs are not guided by coverage. Of `atheris`, the fuzzer that guides Python programs, there are wheels for x86-64
only, and none of its releases has wheels for CPython 3.11 and for 3.12, so one lock file could not serve the machines
that run these tests. It does not see into the native parsers (msgspec, pyoxigraph, Zstandard), which decide about most
inputs. Where it is installed, it takes the functions of `tests.fuzz.targets` as they are: `atheris.Setup(sys.argv,
TARGETS["lexer"])`.
"""

from __future__ import annotations

import argparse
import resource
import secrets
import sys
import time
import traceback
from pathlib import Path
from random import Random

from tests.fuzz.targets import TARGETS, corpus

BYTES_MAX = 16 * 1024
"""Of an input."""
INPUT_S_MAX = 2.0
"""Processor time for one input; a quadratic one of that length takes longer."""
GROWTH_KB_MAX = 256 * 1024
"""By which memory may grow in a run."""
KEPT = Path("build/fuzz")
_WORDS = rb"""
" ' \ < > << >> <<( )>> { } [ ] ( ) : ; , . # ^^ @en _: _:b ? $a % %41 \u0041 \ud800 e 1e9 -0 1.5
9223372036854775808 null true {} [] "": SELECT INSERT DATA WHERE VALUES GRAPH PREFIX BASE NOW()
""".split()
_WORDS += [b"\0", b"\n", b"\xff", b"\xc3", b" "]


def mutated(random: Random, inputs: list[bytes]) -> bytes:
    data = bytearray(random.choice(inputs))
    for _ in range(random.choice((1, 1, 2, 3, 8, 20))):
        place = random.randint(0, len(data))
        length = random.choice((0, 1, 2, 5, 30))
        kind = random.randrange(6)
        if kind == 0 and data:
            data[place % len(data)] ^= 1 << random.randrange(8)
        elif kind == 1:
            data[place : place + length] = random.choice(_WORDS)
        elif kind == 2:
            del data[place : place + length]
        elif kind == 3:
            other = random.choice(inputs)
            begin = random.randint(0, len(other))
            data[place : place + length] = other[begin : begin + random.choice((1, 5, 30, 200))]
        elif kind == 4:
            data[place:place] = data[place : place + length] * random.choice((1, 2, 10, 100, 1000))
        else:
            data[place:place] = random.choice(_WORDS) * random.choice((1, 2, 10, 100, 1000))
    return bytes(data[:BYTES_MAX])


def fault(name: str, data: bytes) -> str | None:
    """What is wrong with how a target takes an input."""
    begun = time.thread_time()
    try:
        TARGETS[name](data)
    except Exception:
        return traceback.format_exc()
    taken = time.thread_time() - begun
    return f"it takes {taken:.1f} s\n" if taken > INPUT_S_MAX else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", choices=TARGETS, action="append")
    parser.add_argument("--seconds", type=float, default=300.0, help="for all targets together")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9))
    parser.add_argument("--file", type=Path, help="this input only")
    options = parser.parse_args()
    names = options.target or list(TARGETS)
    print(f"seed {options.seed}", flush=True)
    for name in names:
        inputs = [options.file.read_bytes()] if options.file else [path.read_bytes() for path in corpus(name)]
        random, count = Random(f"{name} {options.seed}"), 0
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        end = time.monotonic() + options.seconds / len(names)
        while count < len(inputs) or (time.monotonic() < end and not options.file):
            data = inputs[count] if count < len(inputs) else mutated(random, inputs)
            count += 1
            found = fault(name, data)
            grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
            if found is None and grown_kb > GROWTH_KB_MAX:
                found = f"memory has grown by {grown_kb // 1024} MiB\n"
            if found is not None:
                KEPT.mkdir(parents=True, exist_ok=True)
                file = KEPT / f"{name}-{options.seed}-{count}"
                file.write_bytes(data)
                print(f"{found}target {name}, input {count}: python -m tests.fuzz --target {name} --file {file}")
                return 1
        print(f"{name}: {count} inputs, memory grew by {grown_kb // 1024} MiB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

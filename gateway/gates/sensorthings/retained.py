"""Which topics have a retained message of this gateway at the broker, also across restarts.

Each line of the file has a stream and its topics; the last one of a stream counts. A stream is written before its first
message is published, so that no message is left at the broker that nobody knows of.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from lamplighter.engine.client.files import read_file
from lamplighter.engine.terms import Term

Topics = Mapping[Term, Sequence[str]]  # by stream; none: it has no retained message


class RetainedTopics:
    """The topics by stream. The methods raise OSError."""

    def __init__(self) -> None:
        self.topics: dict[Term, list[str]] = {}
        self._file = Path()

    def load(self, file: Path) -> None:
        """Reads the file, if there is one, and writes it again with a line for each stream. `note` continues it."""
        self._file = file
        with suppress(FileNotFoundError):
            for line in read_file(file, 256 * 1024 * 1024, follow=False).splitlines():
                with suppress(msgspec.DecodeError):  # a power cut may have spoiled it
                    self._take(dict([msgspec.json.decode(line, type=tuple[str, list[str]])]))
        written = file.with_suffix(".new")
        _write(written, self.topics, "wb")
        written.replace(file)

    def differing(self, topics: Topics) -> dict[Term, list[str]]:
        """Those that are not as known."""
        return {stream: list(names) for stream, names in topics.items() if self.topics.get(stream, []) != list(names)}

    def note(self, topics: Topics) -> None:
        """Returns when the file has them."""
        _write(self._file, topics, "ab")
        self._take(topics)

    def _take(self, topics: Topics) -> None:
        for stream, names in topics.items():
            self.topics.pop(stream, None)
            if names:
                self.topics[stream] = list(names)


def _write(file: Path, topics: Topics, mode: str) -> None:
    with file.open(mode) as out:
        out.writelines(msgspec.json.encode((stream, list(names))) + b"\n" for stream, names in topics.items())
        out.flush()
        os.fsync(out.fileno())

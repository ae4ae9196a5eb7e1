"""What is in the files of a lake: their bytes, and what is behind compression."""

import contextlib
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import zstandard


def readable(lake: Path) -> Iterator[tuple[Path, bytes]]:
    """Each file with its bytes, and with the uncompressed content of segments and of Parquet files."""
    for path in sorted(lake.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            if path.name.endswith(".zst"):
                data += zstandard.ZstdDecompressor().decompressobj().decompress(data)
            elif path.suffix == ".parquet":
                # Not by a filter on columns: a value that only a dictionary page has is not in the rows.
                data += repr(pq.ParquetFile(path).read().to_pylist()).encode() + b"".join(_pages(path))
            elif path.suffix == ".zip":
                with zipfile.ZipFile(path) as pack:
                    for name in pack.namelist():
                        data += zstandard.ZstdDecompressor().decompressobj().decompress(pack.read(name))
            yield path, data


def _pages(path: Path) -> Iterator[bytes]:
    """Everything in a file that is a zstd frame: data pages and dictionary pages."""
    data = path.read_bytes()
    at = data.find(b"\x28\xb5\x2f\xfd")
    while at >= 0:
        with contextlib.suppress(zstandard.ZstdError):  # these four bytes may be within a page
            yield zstandard.ZstdDecompressor().decompressobj().decompress(data[at:])
        at = data.find(b"\x28\xb5\x2f\xfd", at + 4)


def files_with(lake: Path, text: str) -> list[str]:
    """The files, relative to the lake, in which or in whose name the text occurs."""
    return [
        str(path.relative_to(lake))
        for path, data in readable(lake)
        if text.encode() in data or text in str(path.relative_to(lake))
    ]


def rows(lake: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a table that count, in the order of its batches. table: its folder."""
    batches = [json.loads(path.read_text()) for path in sorted((lake / table / "_batches").glob("*.json"))]
    replaced = {name for batch in batches for name in batch.get("replaces", ())}
    return [
        row
        for batch in batches
        if batch["id"] not in replaced
        for file in batch["files"]
        for row in pq.ParquetFile(lake / table / file).read().to_pylist()
    ]

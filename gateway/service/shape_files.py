"""The shapes that ``[shacl]`` names: files -> sources of validation, checked.

Nothing of SHACL is loaded where the table is off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import lamplighter.ontology
from lamplighter.engine.errors import ConfigurationError, RequestError
from lamplighter.engine.term_bounds import TERM_BYTES_MAX
from lamplighter.gateway.settings.reasoning import ShaclSettings, data_graphs, shapes_graph

if TYPE_CHECKING:
    from lamplighter.engine.shacl.model import Triple
    from lamplighter.engine.shacl.sources import ShapeSources

BYTES_MAX = 16 * 1024 * 1024  # of a file with shapes, and of its triples as N-Triples
REASON_CHARS_MAX = 500  # of a reason, which may have a long term of the file
PROFILE = Path(lamplighter.ontology.__file__).parent / "shapes.ttl"  # the shapes of what the gateway itself writes


def shape_sources(settings: ShaclSettings, folder: Path) -> ShapeSources | None:
    """The shapes of the settings, if there are any. folder: of the files. Raises ConfigurationError."""
    if not settings.on:
        return None
    from lamplighter.engine.shacl.reading import read_shapes
    from lamplighter.engine.shacl.sources import ShapeSources
    from lamplighter.engine.updating.documents import opened, quads_of

    by_file = {}
    for path in _files(settings, folder):
        try:
            quads = quads_of(opened(path, None, BYTES_MAX), None, path.absolute().as_uri(), TERM_BYTES_MAX, BYTES_MAX)
        except (RequestError, OSError) as error:
            place = "" if str(path) in str(error) else f"{path}: "
            raise ConfigurationError(f"shacl.shapes: {place}{str(error)[:REASON_CHARS_MAX]}") from error
        by_file[path] = [quad[:3] for quad in quads]

    def fault(triples: Iterable[Triple]) -> str:
        try:
            read_shapes(triples)
        except RequestError as error:
            return str(error)
        return ""

    triples = [triple for read in by_file.values() for triple in read]
    reason = fault(triples)  # files may refer to each other
    if reason:
        place = next((f"{path}: {reason}" for path, read in by_file.items() if fault(read) == reason), "")
        raise ConfigurationError(f"shacl.shapes: {place or f'{reason}, in the files together'}")
    return ShapeSources(tuple(triples), shapes_graph(settings), data_graphs(settings), settings.mode == "reject")


def _files(settings: ShaclSettings, folder: Path) -> Iterator[Path]:
    if settings.profile:
        yield PROFILE
    for name in settings.shapes:
        try:
            found = sorted(folder.glob(name)) if not Path(name).is_absolute() else [Path(name)]
        except (ValueError, NotImplementedError) as error:
            raise ConfigurationError(f"shacl.shapes: {name!r}: {error}; write the name of a file") from error
        if not found:
            raise ConfigurationError(
                f"shacl.shapes: there is no file {folder / name}; correct the name, or remove it from the list"
            )
        yield from found

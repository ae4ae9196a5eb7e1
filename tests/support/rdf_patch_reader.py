"""A reader of RDF Patch that shares nothing with the writer: rows are parsed by pyoxigraph as N-Quads."""

from __future__ import annotations

import re

import pyoxigraph as ox

from tests.support.oracle import QuadTexts, quad_texts


def applied(text: str, quads: set[QuadTexts] | None = None) -> set[QuadTexts]:
    """The dataset after some patches. Raises AssertionError where one of them is not exact or not as Jena wants it."""
    dataset = set(quads or ())
    previous: str | None = None
    header: dict[str, str] = {}
    within = False
    for row in text.split("\n")[:-1]:
        if row.startswith("#"):
            continue
        assert row.endswith(" ."), row
        code, _, rest = row.removesuffix(".").strip().partition(" ")
        if code == "H":
            assert not within
            name, _, value = rest.partition(" ")
            assert name not in header, row
            header[name] = value
        elif code == "TX":
            assert not within and not rest
            assert header.get("prev") == previous
            assert re.fullmatch(r"<urn:uuid:[0-9a-f-]{36}>", header["id"])
            within = True
        elif code == "TC":
            assert within and not rest
            previous, header, within = header["id"], {}, False
        else:
            assert within
            # Jena writes blank nodes as IRIs with a scheme that there is not.
            [quad] = ox.parse(re.sub(r"<(_:[^>]*)>", r"\1", rest) + " .", ox.RdfFormat.N_QUADS)
            texts = quad_texts(quad)
            assert (texts in dataset) == (code == "D"), row
            if code == "D":
                dataset.remove(texts)
            else:
                assert code == "A", row
                dataset.add(texts)
    assert not within and not header
    return dataset

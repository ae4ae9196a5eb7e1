"""A takeover: a query in the manner of SP2Bench's q8, which the store takes over from its plan, and gives back.

Schmidt et al., "SP2Bench: A SPARQL Performance Benchmark" (2009). q8 finds who has Erdoes number 1 or 2. The data is
our own: papers whose authors follow a power law, and one paper in 25 has Erdoes as an author.
"""

import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from benchmarks.effort import Effort
from benchmarks.measuring import Progress
from lamplighter.engine import Engine
from lamplighter.engine.core import Commit

PREFIX = "PREFIX dc: <http://purl.org/dc/elements/1.1/> PREFIX foaf: <http://xmlns.com/foaf/0.1/> "
QUERY = f"""{PREFIX}
SELECT DISTINCT ?name {{
  ?erdoes a foaf:Person ; foaf:name "Paul Erdoes" .
  {{ ?document dc:creator ?erdoes ; dc:creator ?author . ?document2 dc:creator ?author ; dc:creator ?author2 .
    ?author2 foaf:name ?name
    FILTER(?author != ?erdoes && ?document2 != ?document && ?author2 != ?erdoes && ?author2 != ?author) }}
  UNION {{ ?document dc:creator ?erdoes ; dc:creator ?author . ?author foaf:name ?name FILTER(?author != ?erdoes) }}
}}"""
ERDOES = "<urn:erdoes>"
AT_ONCE = 25
SINGLE = 20
_AUTHORS = 20_000


class _Papers:
    """An engine with the query, and updates that add and remove papers. took: milliseconds of the last update."""

    def __init__(self) -> None:
        self.engine = Engine(processor_time=time.thread_time)
        self.spuid = self.engine.subscribe(QUERY).spuid
        self.engine.update(f'{PREFIX} INSERT DATA {{ {ERDOES} a foaf:Person ; foaf:name "Paul Erdoes" }}')
        self.count = 0
        self.took = 0.0
        self._random = Random(1)

    def add(self, count: int, *, erdoes: bool = True) -> Commit:
        papers = [self._paper(self.count + number, erdoes) for number in range(count)]
        self.count += count
        return self._update(f"INSERT DATA {{ {' '.join(papers)} }}")

    def _paper(self, number: int, erdoes: bool) -> str:
        several = self._random.randint(1, 4)
        authors = [min(int(self._random.paretovariate(0.7)), _AUTHORS) for _ in range(several)]
        names = " ".join(f'<urn:author:{author}> foaf:name "{author}" .' for author in authors)
        creators = [f"<urn:author:{author}>" for author in authors] + [ERDOES] * (erdoes and number % AT_ONCE == 0)
        return f"<urn:paper:{number}> dc:creator {' , '.join(creators)} . {names}"

    def remove(self, count: int) -> Commit:
        papers = " ".join(f"<urn:paper:{number}>" for number in range(self.count - count, self.count))
        self.count -= count
        where = f"{{ ?paper dc:creator ?author VALUES ?paper {{ {papers} }} }}"
        return self._update(f"DELETE {{ ?paper dc:creator ?author }} WHERE {where}")

    def _update(self, text: str) -> Commit:
        begun = time.thread_time()
        commit = self.engine.update(PREFIX + text)
        self.took = 1000 * (time.thread_time() - begun)
        return commit

    def until_moved(self, step: Callable[[int], Commit]) -> float:
        """Takes steps until the store takes over, or gives back; milliseconds of the last one."""
        while not step(AT_ONCE).takeovers:
            pass
        return self.took

    def singles(self) -> float:
        """The median of updates that add one paper."""
        took = []
        for _ in range(SINGLE):
            self.add(1, erdoes=False)
            took.append(self.took)
        return median(took)


def takeover(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """Milliseconds of processor time of updates beside the query, as the data grows and shrinks."""
    papers = _Papers()
    ms, quads = {}, {}
    progress("growing")
    ms["takeover"] = papers.until_moved(papers.add)
    quads["takeover"] = papers.engine.quad_count
    ms["by the store"] = papers.singles()
    while papers.count < effort.takeover_papers:
        papers.add(AT_ONCE)
    ms["by the store, more papers"] = papers.singles()
    quads["more papers"] = papers.engine.quad_count
    progress("shrinking")
    ms["return"] = papers.until_moved(papers.remove)
    quads["return"] = papers.engine.quad_count
    ms["by the plan again"] = papers.singles()
    papers.engine.close()
    note = (
        f"The commit in which the store takes over takes {ms['takeover']:.0f} ms, at {quads['takeover']:,} quads. "
        f"An update of one paper then takes {ms['by the store']:.1f} ms, and {ms['by the store, more papers']:.0f} at "
        f"{quads['more papers']:,} quads. The commit in which a plan follows again takes {ms['return']:.0f} ms, at "
        f"{quads['return']:,} quads, and an update {ms['by the plan again']:.1f}."
    )
    return {"ms": ms, "quads": quads, "note": note, "targets": []}

"""How `lamplighter load` cuts a file into updates, and what it says when one of them fails."""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import LimitExceededError, RefusedError, UpstreamError
from lamplighter.engine.terms import Quad, iri, literal
from lamplighter.gateway.cli import load_command
from lamplighter.gateway.cli.console import ProgressBar
from lamplighter.gateway.cli.load_command import SLICE_CHARACTERS, SLICE_QUADS, slices, update_text

P = iri("urn:p")


def plain(count: int, size: int = 1) -> list[Quad]:
    return [Quad(iri(f"urn:s{number}"), P, literal("x" * size)) for number in range(count)]


def test_slices_have_a_bounded_size_and_all_quads() -> None:
    for quads in (plain(2500), plain(10, SLICE_CHARACTERS // 3), []):
        found = list(slices(quads))
        assert [quad for one in found for quad in one] == quads
        assert all(len(one) <= SLICE_QUADS for one in found)
        assert all(sum(len(quad.o) for quad in one) <= SLICE_CHARACTERS for one in found)


def test_quads_that_a_blank_node_connects_go_last_and_together() -> None:
    def linked(name: str) -> list[Quad]:
        return [Quad(f"_:{name}{number}", P, f"_:{name}{number + 1}") for number in range(SLICE_QUADS - 1)]

    mixed = [quad for pair in zip(linked("a"), linked("b"), plain(SLICE_QUADS - 1), strict=True) for quad in pair]
    first, second, third = slices(mixed)
    assert first == plain(SLICE_QUADS - 1)
    assert {second[0].s[2], third[0].s[2]} == {"a", "b"}
    assert len({quad.s[2] for quad in second}) == len({quad.s[2] for quad in third}) == 1


def test_blank_nodes_in_triple_terms_connect_quads() -> None:
    term = f"<<( _:x {P} _:y )>>"
    quads = [Quad("_:x", P, P), Quad("_:z", P, term), *plain(3), Quad("_:y", P, P)]
    first, second = slices(quads)
    assert (first, sorted(second)) == (plain(3), sorted([quads[0], quads[1], quads[5]]))


def test_the_text_of_an_update_has_the_same_quads() -> None:
    quads = [*plain(3), Quad(iri("urn:s"), P, literal('a"\n}'), iri("urn:g")), Quad(iri("urn:t"), P, P, iri("urn:g"))]
    engine = Engine()
    assert set(engine.update(update_text(quads)).delta.added) == set(quads)


class Gateway:
    """Answers updates, and refuses those whose numbers are named. again: refuses a second time, too."""

    def __init__(self, refuse: dict[int, tuple[str, int]], *, again: bool) -> None:
        self.refuse, self.again = dict(refuse), again
        self.paths: list[str] = []
        self.done = 0

    def called(self, options: object, method: str, path: str, content: bytes, headers: object) -> Any:
        self.paths.append(path)
        if self.done in self.refuse:
            code, status = self.refuse[self.done] if self.again else self.refuse.pop(self.done)
            raise RefusedError(code, status, "no")
        self.done += 1
        return io.BytesIO(b"{}")


def load(tmp_path: Path, text: str) -> int:
    (tmp_path / "a.ttl").write_text(text)
    return load_command._load(
        argparse.Namespace(file=tmp_path / "a.ttl", graph=None, format=None, base=None, json=False, url="http://h:1")
    )


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(load_command.time, "sleep", found.append)
    return found


def test_a_passing_error_is_retried_with_the_same_request_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    gateway = Gateway({1: ("too_many_requests", 429)}, again=False)
    monkeypatch.setattr(load_command, "call_gateway", gateway.called)
    assert load(tmp_path, "\n".join(f"<urn:s> <urn:p> {number} ." for number in range(2500))) == 0
    assert gateway.done == 3 and len(pauses) == 1
    assert gateway.paths[1] == gateway.paths[2] and len(set(gateway.paths)) == 3


@pytest.mark.parametrize(
    ("triple", "told"),
    [
        ("<urn:s> <urn:p> {} .", "1,000 of 2,500 quads are loaded; run the command again: quads that are there stay"),
        (
            "_:s{} <urn:p> 1 .",
            "1,000 of 2,500 quads are loaded; another run would add the 1,000 quads with blank",
        ),
    ],
)
def test_an_error_says_what_was_loaded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pauses: list[float],
    capsys: pytest.CaptureFixture[str],
    triple: str,
    told: str,
) -> None:
    gateway = Gateway({1: ("forbidden", 403)}, again=True)
    monkeypatch.setattr(load_command, "call_gateway", gateway.called)
    with pytest.raises(RefusedError, match="forbidden"):
        load(tmp_path, "\n".join(triple.format(number) for number in range(2500)))
    assert not pauses, "it is not a passing error"
    assert told in capsys.readouterr().err


def test_blank_nodes_that_need_a_larger_update_than_the_gateway_takes_are_refused_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = Gateway({}, again=False)
    monkeypatch.setattr(load_command, "call_gateway", gateway.called)
    monkeypatch.setattr("lamplighter.engine.sparql.requests.REQUEST_BYTES_MAX", SLICE_CHARACTERS)
    lines = [f"_:a <urn:p{number}> {number} ." for number in range(10_000)]
    with pytest.raises(LimitExceededError, match="blank nodes connect 10,000 quads"):
        load(tmp_path, "\n".join(["<urn:a> <urn:b> 1 .", *lines]))
    assert not gateway.paths


def test_the_name_of_a_file_is_printed_without_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway = Gateway({1: ("forbidden", 403)}, again=True)
    monkeypatch.setattr(load_command, "call_gateway", gateway.called)
    folder = tmp_path / "\x1b[31m"
    folder.mkdir()
    load(folder, "<urn:a> <urn:b> 1 .")
    with pytest.raises(RefusedError):
        load(folder, "<urn:a> <urn:b> 1 .")
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err
    assert "u001B" in captured.out and "u001B" in captured.err


def test_a_gateway_that_restarts_gets_the_same_update_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    gateway = Gateway({}, again=False)
    down = [UpstreamError("no gateway answers")] * 2

    def called(*arguments: Any) -> Any:
        if gateway.done == 1 and down:
            gateway.paths.append(arguments[2])
            raise down.pop()
        return gateway.called(*arguments)

    monkeypatch.setattr(load_command, "call_gateway", called)
    assert load(tmp_path, "\n".join(f"<urn:s{n}> <urn:p> {n} ." for n in range(2500))) == 0
    assert (len(gateway.paths), len(set(gateway.paths)), len(pauses)) == (5, 3, 2)


def test_a_gateway_that_is_not_there_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    def called(*_: object) -> Any:
        raise UpstreamError("no gateway answers")

    monkeypatch.setattr(load_command, "call_gateway", called)
    with pytest.raises(UpstreamError):
        load(tmp_path, "<urn:s> <urn:p> 1 .")
    assert not pauses


def test_a_progress_bar_is_shown_at_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ProgressBar("load a.ttl", "quads", 2000) as bar:
        bar.advance(1000)
    assert capsys.readouterr().err == ""
    assert bar.line() == f"load a.ttl [{'#' * 15}{' ' * 15}]  50%  1,000 of 2,000 quads"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with ProgressBar("backup b", "bytes") as bar:
        assert list(bar.through([b"abc", b"de"])) == [b"abc", b"de"]
    assert capsys.readouterr().err.startswith("\rbackup b  3 bytes\x1b[K")
    assert bar.done == 5

import random
import re

import pytest

from lamplighter.engine.sparql import lexer
from lamplighter.engine.sparql.lexer import line_and_column, tokens, with_other_variables
from tests.support.tables import each_row

# Parts of data, and what may be odd among them.
_PARTS = (
    *(
        "<http://x/a>",
        "<x#b?c>",
        '"a ?b <c> \\" d"',
        '"a"@en-GB',
        '"1"^^<x:y>',
        '"1"^^x:y',
        '""',
        '"."',
        "'a ?b'",
        '"""a"?b"""',
    ),
    *(
        "?a",
        "$b_1",
        "?",
        "_:a",
        "_:a.b",
        "x:a",
        ":",
        ":a.b",
        "x:a.",
        "x:a\\-b",
        "x:%20",
        "a",
        "a.a",
        "true",
        "falsex",
        "éa:b",
    ),
    *(
        "1",
        "-1.5",
        "1.",
        ".5e3",
        "1.5E-2",
        "+",
        ".",
        ";",
        ",",
        "^^",
        "@en",
        "<<",
        ">>",
        "<",
        "<<<x:a>",
        "(",
        ")",
        "[",
        "]",
    ),
    *(
        "{",
        "}",
        "GRAPH",
        "# ?x\n",
        "\n",
        "!",
        "é",
        "<a b>",
        "\\",
        '"',
        "'",
        "VALUES",
        "DATA {",
        "INSERT {",
        "&&",
        "\u00a0",
    ),
)


def random_data(chance: random.Random) -> str:
    """A block with parts that are usual for the most part, and often without space between them."""
    usual = chance.random() < 0.7
    parts = [
        chance.choice(_PARTS[:10] + _PARTS[10:20] if usual and chance.random() < 0.9 else _PARTS) for _ in range(8)
    ]
    space = chance.choice(("", " "))
    return "{ " + "".join(part + chance.choice((" ", " ", space)) for part in parts) + " }"


def kinds(text: str) -> list[tuple[str, str]]:
    return [(token.kind, token.text) for token in tokens(text)]


@each_row(
    ("text", "expected"),
    [
        ("?a<http://x/p>?b", [("variable", "?a"), ("iri", "<http://x/p>"), ("variable", "?b")]),
        ("?a < ?b", [("variable", "?a"), ("sign", "<"), ("variable", "?b")]),
        ("?a<?b", [("variable", "?a"), ("sign", "<"), ("variable", "?b")]),
        ('"a\\"?b" \'?c\'', [("string", '"a\\"?b"'), ("string", "'?c'")]),
        ('"""a"b\n?c"""', [("string", '"""a"b\n?c"""')]),
        ("'''it's'''@en-GB.", [("string", "'''it's'''"), ("language", "@en-GB"), ("sign", ".")]),
        ("ex:a\\-b.c.", [("name", "ex:a\\-b.c"), ("sign", ".")]),
        (":p?/^:q", [("name", ":p"), ("sign", "?"), ("sign", "/"), ("sign", "^"), ("name", ":q")]),
        (
            "_:a.b. 1.5e3 .5 7",
            [("blank", "_:a.b"), ("sign", "."), ("number", "1.5e3"), ("number", ".5"), ("number", "7")],
        ),
        ("# ?a\n$b", [("variable", "$b")]),
        ("\\u0041", [("other", "\\"), ("word", "u0041")]),
        ("ex:a\u3001\\' ?b", [("name", "ex:a\u3001\\'"), ("variable", "?b")]),
        ("?s<a:b&&'>?o", [("variable", "?s"), ("iri", "<a:b&&'>"), ("variable", "?o")]),
        ("<<?a?b#>", [("sign", "<"), ("sign", "<"), ("variable", "?a"), ("variable", "?b")]),
        ("<<<x:s> <x:p>", [("sign", "<"), ("sign", "<"), ("iri", "<x:s>"), ("iri", "<x:p>")]),
        ("<<<<?a?b?c>", [("sign", "<")] * 4 + [("variable", "?a")]),
        ("(1 <?b&&?c>?d", [("sign", "("), ("number", "1"), ("sign", "<"), ("variable", "?b"), ("sign", "&&")]),
        ("(1 <(2)>3", [("sign", "("), ("number", "1"), ("sign", "<"), ("sign", "("), ("number", "2")]),
        ("(?a <http://x#(> )", [("sign", "("), ("variable", "?a"), ("iri", "<http://x#(>"), ("sign", ")")]),
        ("(?a = <x:y#z>)", [("sign", "("), ("variable", "?a"), ("sign", "="), ("iri", "<x:y#z>"), ("sign", ")")]),
        ("VALUES (?a ?b) {(<x:y> <x:y#z>)}", [("word", "VALUES"), ("sign", "("), ("variable", "?a")]),
    ],
)
def test_tokens(text: str, expected: list[tuple[str, str]]) -> None:
    assert kinds(text)[: len(expected)] == expected


@each_row("iri", ["<?b#>", "<'b'>", "<f(>", "<b&&'>"])
def test_what_only_the_grammar_can_tell_is_not_guessed(iri: str) -> None:
    """A comment, a string or a bracket begins in it, or it is an IRI; what follows is hidden or is not."""
    for before in ("FILTER(?a", "FILTER(?a ", "FILTER(<x:a> ", "FILTER(EXISTS {}", "FILTER(?a<", "FILTER(1."):
        assert ("other", "<") in kinds(before + iri), before
    for before in ("?a ", "VALUES (?a ?b) { (<x:a> ", "INSERT DATA { ?a ?b (1 ", "FILTER(?a = "):
        assert ("iri", iri) in kinds(before + iri), before


def test_places_cover_the_text() -> None:
    text = "SELECT ?a { ?a <a:p> 'x' } # end"
    for token in tokens(text):
        assert text[token.start : token.end] == token.text


def test_line_and_column_begin_with_one() -> None:
    assert line_and_column("ab\ncd", 0) == (1, 1)
    assert line_and_column("ab\ncd", 4) == (2, 2)


def test_data_read_at_once_leaves_the_other_tokens_as_they_are() -> None:
    """What is read as one are whole tokens of kinds that no check refuses, and nothing around it is read otherwise."""
    chance, at_once = random.Random(1), 0
    usual = {"iri", "string", "variable", "blank", "name", "number", "language", "word", "sign"}
    for _ in range(4000):
        text = f"PREFIX x: <x:> INSERT DATA {random_data(chance)} ; DELETE {random_data(chance)} WHERE {{ ?s ?p ?o }}"
        each = list(tokens(text))
        if any(token.kind == "other" for token in each):
            # The text is refused at that place, by the same token.
            each = each[: next(index for index, token in enumerate(each) if token.kind == "other") + 1]
        for token in tokens(text, each_of_data=False):
            if not each:
                break
            if token.kind != "data":
                assert token == each.pop(0), text
                continue
            at_once += 1
            while each and each[0].end <= token.end:
                within = each.pop(0)
                assert within.kind in usual and within.start >= token.start and within.text not in "{}()[]<>!", text
            assert not each or each[0].start >= token.end, text
        assert not each, text
    assert at_once > 4000


def test_a_name_that_hides_a_keyword_is_read_by_itself() -> None:
    for text in ("INSERT DATA { <x:a> <x:b> SERVICEx:a {", 'INSERT DATA { <x:a> x:b "service" , SErVICEx:a }'):
        assert all(token.kind != "data" for token in tokens(text, each_of_data=False))


def test_variables_are_replaced_where_they_are_tokens() -> None:
    chance = random.Random(2)
    for _ in range(4000):
        block = random_data(chance)
        expected, position = "", 0
        for token in tokens(block):
            if token.kind == "variable":
                expected, position = f"{expected}{block[position : token.start]}({token.text[1:]})", token.end
        assert with_other_variables(block, lambda name: f"({name})") == expected + block[position:], block


def test_a_run_is_not_searched_for_data_at_each_of_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take quadratic time: each search for a colon goes to the end of the run."""
    searched: list[int] = []

    class Counted:
        def match(self, text: str, position: int) -> re.Match[str] | None:
            searched.append(position)
            return plain.match(text, position)

    plain = lexer._PLAIN_DATA
    monkeypatch.setattr(lexer, "_PLAIN_DATA", Counted())
    assert len(list(tokens(f"INSERT DATA {{ {'a-' * 1000}", each_of_data=False))) > 2000
    assert len(searched) < 4

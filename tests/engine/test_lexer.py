import pytest

from engine.lexer import line_and_column, tokens


def kinds(text: str) -> list[tuple[str, str]]:
    return [(token.kind, token.text) for token in tokens(text)]


@pytest.mark.parametrize(
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
    ],
)
def test_tokens(text: str, expected: list[tuple[str, str]]) -> None:
    assert kinds(text) == expected


def test_places_cover_the_text() -> None:
    text = "SELECT ?a { ?a <a:p> 'x' } # end"
    for token in tokens(text):
        assert text[token.start : token.end] == token.text


def test_line_and_column_begin_with_one() -> None:
    assert line_and_column("ab\ncd", 0) == (1, 1)
    assert line_and_column("ab\ncd", 4) == (2, 2)

from lamplighter.engine.sparql.lexer import line_and_column, tokens
from tests.support.tables import each_row


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

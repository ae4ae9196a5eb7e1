"""Wire JSON <-> requests and messages, without a socket."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from lamplighter.engine.errors import (
    GatewayError,
    LimitExceededError,
    MalformedRequestError,
    NotJsonError,
    QueueFullError,
    RequestSyntaxError,
    SubscribeMemberError,
    UnknownSpuidError,
    UnsupportedRequestError,
)
from lamplighter.engine.protocol import (
    BESIDES_BYTES_MAX,
    COMMAS_MAX,
    UPDATES_MAX,
    DeclaredCause,
    QueryRequest,
    Results,
    SubscribeRequest,
    UnsubscribeRequest,
    UpdateRequest,
    answer_message,
    around,
    characters,
    committed_message,
    dataset,
    error_members,
    error_message,
    first_message,
    graph_names,
    notification_message,
    refusal_message,
    requests,
    results_message,
    results_text,
    unsubscribed_message,
    updated_message,
)
from lamplighter.engine.slices import LONG, SLICE, Slices
from lamplighter.engine.terms import Bag
from tests.support.tables import each_row


def one(message: object) -> Any:
    [request] = requests(json.dumps(message))
    return request


def error_of(message: object) -> GatewayError:
    request = one(message)
    assert isinstance(request, MalformedRequestError)
    return request


# --- requests ---------------------------------------------------------------------------------------


@each_row("kind", ["query", "subscribe", "update", "unsubscribe"])
@each_row("name", ["authorization", "alias", "default-graph-uri", "unknown"])
def test_what_a_request_has_besides_its_text_is_bounded_before_it_is_built(kind: str, name: str) -> None:
    beside = {name: ["a:"] * (BESIDES_BYTES_MAX // 6 + 1)}
    for found in (one({kind: {"sparql": "s", "spuid": "x", **beside}}), one({kind: beside})):
        assert isinstance(found, LimitExceededError)
        assert str(BESIDES_BYTES_MAX) in str(found)


def test_the_text_of_a_request_is_not_bounded_here() -> None:
    text = "é" * (2 * BESIDES_BYTES_MAX)
    assert one({"query": {"sparql": text, "alias": "a"}}) == QueryRequest(text, "a")
    assert isinstance(one({"query": [1] * BESIDES_BYTES_MAX}), LimitExceededError)


def test_many_members_are_refused_at_the_first_wrong_one() -> None:
    found = one({"updates": [1] * (COMMAS_MAX + 2)})
    assert isinstance(found, MalformedRequestError)
    assert "$[0]" in str(found)
    text = "," * (COMMAS_MAX + 1)
    assert one({"updates": [{"sparql": text}]}) == UpdateRequest(text)


def test_each_kind_of_request_is_read_with_its_members() -> None:
    assert one({"subscribe": {"sparql": "S", "alias": "a", "default-graph-uri": "http://g"}}) == SubscribeRequest(
        "S", "a", default_graph_uri="http://g"
    )
    assert one({"query": {"sparql": "Q", "named-graph-uri": ["http://g"]}}) == QueryRequest(
        "Q", named_graph_uri=["http://g"]
    )
    assert one(
        {"update": {"sparql": "U", "request_id": "r", "delay": "PT1S", "at": "x", "missed": "run"}}
    ) == UpdateRequest("U", request_id="r", delay="PT1S", at="x", missed="run")
    assert one({"unsubscribe": {"spuid": "s", "alias": "a"}}) == UnsubscribeRequest("s", "a")


def test_updates_are_read_one_by_one_and_a_wrong_one_does_not_harm_the_others() -> None:
    message = {"updates": [{"sparql": "A", "alias": "1"}, {"alias": "2"}, 5, {"sparql": "B", "alias": "3"}]}
    first, second, third, fourth = requests(json.dumps(message))
    assert (first, fourth) == (UpdateRequest("A", "1"), UpdateRequest("B", "3"))
    assert isinstance(second, MalformedRequestError)
    assert isinstance(third, MalformedRequestError)
    assert (second.alias, third.alias) == ("2", None)


def test_members_that_nobody_knows_are_ignored() -> None:
    extra = {"timeout": 5000, "headers": {"a": []}, "httpsAgent": None}
    assert one({"subscribe": {"sparql": "S", **extra}, "more": 1}) == SubscribeRequest("S")
    assert one({"unsubscribe": {"spuid": "s", **extra}}) == UnsubscribeRequest("s")


def test_null_is_like_absent() -> None:
    assert one({"subscribe": {"sparql": "S", "alias": None, "default-graph-uri": None}}) == SubscribeRequest("S")


@each_row("text", ["", "{", "no", "[" * 100_000, b"\xff", '{"subscribe": {"sparql": "\\ud800"}}'])
def test_what_is_not_json_is_one_error(text: str | bytes) -> None:
    [error] = requests(text)
    assert isinstance(error, NotJsonError)
    assert "not JSON" in str(error)


@each_row("message", [None, 5, "subscribe", [], {}, {"hello": 1}, {"updates": {}}])
def test_a_message_of_no_known_kind_names_the_kinds(message: object) -> None:
    [error] = requests(json.dumps(message))
    assert isinstance(error, UnsupportedRequestError)
    assert "subscribe, unsubscribe, update, query, messages, updates" in str(error)


@each_row(
    ("body", "named"),
    [
        ({"alias": "a"}, "sparql"),
        ({"alias": "a", "sparql": 5}, "sparql"),
        ({"alias": "a", "sparql": "S", "default-graph-uri": 5}, "default-graph-uri"),
        ({"alias": "a", "sparql": "S", "named-graph-uri": [1]}, "named-graph-uri"),
    ],
)
def test_the_error_of_a_wrong_member_names_it_and_carries_the_alias(body: dict[str, object], named: str) -> None:
    error = error_of({"subscribe": body})
    assert named in str(error)
    assert error.alias == "a"


@pytest.mark.parametrize("kind", ["subscribe", "unsubscribe"])
def test_a_wrong_member_of_what_sepa_defines_has_the_code_of_its_broker(kind: str) -> None:
    wrong, ours = error_of({kind: {"alias": "a", "authorization": "Bearer x"}}), error_of({"update": {"alias": "a"}})
    assert isinstance(wrong, SubscribeMemberError)
    assert (wrong.code, wrong.status, wrong.alias, wrong.authorization) == ("Exception", 400, "a", "Bearer x")
    assert (ours.code, ours.status) == ("SPARQL11ProtocolException", 400)


@each_row("body", [None, 5, "text", []])
def test_a_request_that_is_no_object_is_an_error_without_alias(body: object) -> None:
    error = error_of({"subscribe": body})
    assert (error.alias, error.authorization) == (None, None)


@each_row("text", ["[1, 2", '{"subscribe": [1}', '{"subscribe": {"sparql": "S"}} more', "[1} "])
def test_what_is_broken_further_on_is_not_json_either(text: str) -> None:
    [error] = requests(text)
    assert isinstance(error, NotJsonError)


def test_bytes_are_read_like_text() -> None:
    assert requests(b'{"subscribe": {"sparql": "\xe1\x83\x95"}}') == [SubscribeRequest("\u10d5")]
    [error] = requests(b'{"subscribe": {"sparql": "\xff"}}')
    assert isinstance(error, NotJsonError)


def test_updates_without_end_are_refused_before_they_are_read() -> None:
    [error] = requests('{"updates": [' + ",".join("5" for _ in range(UPDATES_MAX + 1)) + "]}")
    assert isinstance(error, LimitExceededError)
    assert len(requests('{"updates": [5, 5, 5]}')) == 3


def test_an_alias_that_is_no_string_is_an_error_without_alias() -> None:
    assert error_of({"subscribe": {"sparql": "S", "alias": 7}}).alias is None


# --- graphs -----------------------------------------------------------------------------------------


def test_graphs_are_named_by_a_string_or_several() -> None:
    assert graph_names("http://g") == ("<http://g>",)
    assert graph_names(["http://g", "urn:x"]) == ("<http://g>", "<urn:x>")
    assert graph_names(None) is graph_names("") is graph_names([]) is None


@each_row("name", ["relative", "http://a b", "http://a>", "/path", "1:x"])
def test_a_graph_name_that_is_no_absolute_iri_is_refused(name: str) -> None:
    with pytest.raises(MalformedRequestError, match="graph parameter"):
        graph_names(["http://good", name])


def test_a_dataset_that_is_named_in_part_is_empty_in_the_other() -> None:
    assert dataset(None, None) == (None, None)
    assert dataset("http://g", None) == (("<http://g>",), ())
    assert dataset([], ["http://g"]) == ((), ("<http://g>",))
    assert dataset("http://a", "http://b") == (("<http://a>",), ("<http://b>",))


# --- messages ---------------------------------------------------------------------------------------

ONE = Bag(["x"], [('"1"',)])
NONE = Bag(["x"])


def test_a_notification_has_both_members_and_the_alias_only_where_given() -> None:
    none = {"head": {"vars": ["x"]}, "results": {"bindings": []}}
    one_row = {"head": {"vars": ["x"]}, "results": {"bindings": [{"x": {"type": "literal", "value": "1"}}]}}
    body = {"spuid": "s", "sequence": 1, "addedResults": one_row, "removedResults": none}
    assert json.loads(notification_message("s", 1, ONE, NONE)) == {"notification": body}
    assert json.loads(notification_message("s", 1, ONE, NONE, "a")) == {"notification": {**body, "alias": "a"}}
    assert json.loads(notification_message("s", 1, NONE, ONE))["notification"]["removedResults"] == one_row


@each_row(
    "bag",
    [
        NONE,
        Bag([]),
        Bag([], [(), ()]),
        Bag(["a", "ნათურა"], [("<http://a>", "<http://ä/ნ?x=%s>"), (None, "_:b0"), ("_:b0", None), (None, None)]),
        Bag(
            ["a"], [(term,) for term in ('"%s"', '"a\\"b\\\\c\\n\\u0001"', '"x"@en', '"x"@ar--rtl', '"1"^^<http://t>')]
        ),
        Bag(["a"], [('<<( <http://s> <http://p> "o" )>>',), ("<http://" + "long" * 100 + ">",)]),
        Bag(
            ["a"],
            [
                (f'"{text}"',)
                for text in ("", "plain", "\t", "\x01", "\x1f", "\x7f", "\u2028", "é", "\U0001f600", "\\t")
            ],
        ),
        Bag(
            ["a"], [(f'"{text}"^^<http://t>',) for text in ("", "1", "\t", "\\u00e9")] + [('"1"^^<http://ä/\\u0020>',)]
        ),
    ],
)
def test_results_put_together_from_parts_are_the_same_bytes(bag: Bag) -> None:
    for _ in range(2):  # new terms, then known ones
        assert results_text(bag).encode() == msgspec.json.encode(bag.to_json())


def test_a_message_of_results_is_the_same_bytes_for_each_subscriber() -> None:
    results = Results(ONE, NONE)
    for spuid, sequence in (("s", 1), ('t"', 2)):
        members = {
            "spuid": spuid,
            "sequence": sequence,
            "addedResults": ONE.to_json(),
            "removedResults": NONE.to_json(),
        }
        assert results_message(spuid, sequence, results) == msgspec.json.encode({"notification": members})
    first = {"notification": {"spuid": "s", "alias": 'a"', "sequence": 0, **json.loads(b"{%b}" % results.members)}}
    first["notification"]["class"] = "seeded"
    assert results_message("s", 0, results, 'a"', "seeded") == msgspec.json.encode(first)


def test_a_notification_names_its_commit_behind_the_results() -> None:
    results = Results(ONE, NONE, (2, 17))
    plain = json.loads(results_message("s", 3, results))
    plain["notification"]["commit"] = {"epoch": 2, "seq": 17}
    assert committed_message("s", 3, results) == msgspec.json.encode(plain)


def test_answers_leave_out_what_there_is_not() -> None:
    assert json.loads(unsubscribed_message("s")) == {"unsubscribed": {"spuid": "s"}}
    assert json.loads(updated_message(None, 7, None)) == {"updated": {"sequence": 7}}
    assert json.loads(updated_message("a", 7, "d")) == {"updated": {"alias": "a", "sequence": 7, "delayed": "d"}}
    assert json.loads(b"".join(answer_message("q", [b'{"boolean":', b"true}"]))) == {
        "answer": {"alias": "q", "results": {"boolean": True}}
    }
    assert "alias" not in json.loads(b"".join(answer_message(None, [b"{}"])))["answer"]


@each_row(
    ("error", "code", "status"),
    [
        (RequestSyntaxError("oops", 2, 5), "SPARQL11ProtocolException", 400),
        (UnknownSpuidError("oops"), "sid_not_found", 500),
        (QueueFullError("oops"), "too_many_requests", 429),
    ],
)
def test_errors_have_three_members_and_the_alias(error: GatewayError, code: str, status: int) -> None:
    members = {"error": code, "status_code": status, "error_description": str(error)}
    assert error_members(error) == members
    assert json.loads(error_message(error, None)) == members
    assert json.loads(error_message(error, "a")) == {**members, "alias": "a"}


@each_row(
    ("error", "sepa", "ours"),
    [
        (RequestSyntaxError("oops"), ("parsing failed", 400), ("SPARQL11ProtocolException", 400)),
        (QueueFullError("full"), ("too_many_requests", 500), ("too_many_requests", 429)),
        (UnknownSpuidError("who?"), ("sid_not_found", 500), ("sid_not_found", 500)),
    ],
)
def test_refusals_have_the_codes_of_the_broker_where_the_request_is_one_of_sepa(
    error: GatewayError, sepa: tuple[str, int], ours: tuple[str, int]
) -> None:
    found = {}
    for request in (SubscribeRequest("S", "a"), UnsubscribeRequest("s", "a"), UpdateRequest("U", "a")):
        answer = json.loads(refusal_message(error, request))
        assert (answer["alias"], answer["error_description"]) == ("a", str(error))
        found[type(request)] = (answer["error"], answer["status_code"])
    assert found == {SubscribeRequest: sepa, UnsubscribeRequest: sepa, UpdateRequest: ours}
    assert "alias" not in json.loads(refusal_message(error, UpdateRequest("U")))


def test_the_description_of_a_syntax_error_begins_with_its_place() -> None:
    description = error_members(RequestSyntaxError("oops", 2, 5))["error_description"]
    assert description == "line 2, column 5: oops"


def test_cause_is_the_clients_but_no_kind_of_the_gateways() -> None:
    said = one({"update": {"sparql": "U", "alias": "a", "cause": {"kind": "mqtt", "id": "street/1"}}})
    assert said == UpdateRequest("U", "a", cause=DeclaredCause("mqtt", "street/1"))
    for kind in ("timer", "application", "http", "ws", "", "Mqtt", "a b"):
        error = one({"update": {"sparql": "U", "alias": "a", "cause": {"kind": kind, "id": "x"}}})
        assert isinstance(error, MalformedRequestError), kind
        assert error.alias == "a"


@each_row(
    ("rows", "columns", "characters", "long"),
    [(1, 1, 1_000_000, False), (LONG, 1, 1, False), (LONG + 1, 1, 1, True), (LONG, 2, 1, True), (60, 1, 10_000, True)],
)
def test_a_result_is_long_by_its_values_or_by_their_length(
    rows: int, columns: int, characters: int, long: bool
) -> None:
    row = (f'"{"x" * characters}"',) * columns
    bag, nothing = Bag([f"v{number}" for number in range(columns)], [row] * rows), Bag([])
    assert Results(bag, nothing).is_long is Results(nothing, bag).is_long is long


class CountedSlices(Slices):
    pauses = 0

    def pause(self) -> None:
        self.pauses += 1


def test_the_characters_of_a_long_result_are_counted_once_and_in_parts() -> None:
    unbound = [(f"<urn:{number}>", None) for number in range(2 * LONG)]
    results, slices = (
        Results(Bag(["a", "b"], [("<urn:x>", '"y"')] * 3 * LONG), Bag(["a", "b"], unbound)),
        CountedSlices(),
    )
    expected = 3 * LONG * 10 + sum(len(one) for one, _ in unbound)
    assert results.characters(slices) == results.characters() == expected
    pauses = slices.pauses
    assert pauses > 5 * LONG // SLICE - 2
    assert results.size > expected
    assert results.characters(slices) == expected and slices.pauses == pauses


def bag_of(rows: int, *, unbound: bool = False, characters: int = 3) -> Bag:
    found = [(f"<urn:s{number}>", f'"{"x" * characters}{number}\\n"@en') for number in range(rows)]
    return Bag(["s", "o"], [(s, None if unbound and number % 3 else o) for number, (s, o) in enumerate(found)])


@each_row(
    ("added", "removed"),
    [
        (bag_of(6000), bag_of(0)),
        (bag_of(0), bag_of(6000)),
        (bag_of(3500, unbound=True), bag_of(2600)),
        (bag_of(60, characters=20_000), bag_of(1)),
        (Bag([], [()] * 6000), bag_of(6000)),
    ],
)
def test_long_results_are_written_in_parts_that_are_together_the_same(added: Bag, removed: Bag) -> None:
    results, size = Results(added, removed), Results(added, removed).size
    assert results.is_long
    parts = [len(results.parts) for _ in results.writing()] and list(results.parts)
    assert len(parts) > 4
    assert max(map(len, parts)) < 400_000
    assert results.members == b"".join(parts) == b"".join(Results(added, removed).parts)
    assert json.loads(b"{%b}" % results.members) == {
        "addedResults": added.to_json(),
        "removedResults": removed.to_json(),
    }
    # It is counted before it is written, and when it is sent.
    assert results.size == size
    assert len(results.members) / 2 < size < len(results.members) * 2


def test_two_may_write_long_results_in_turns() -> None:
    results = Results(bag_of(6000), bag_of(0))
    first, second = results.writing(), results.writing()
    while next(first, 0) is None and next(second, 0) is None:
        pass
    assert results.members == Results(bag_of(6000), bag_of(0)).members


def test_a_message_around_long_results_is_the_same_as_one_that_has_them() -> None:
    def results() -> Results:
        return Results(bag_of(6000), bag_of(2), (3, 7))

    for made in (
        lambda it: first_message("sepa://1", it, 'a\0"', "telescoped", "PT1M", "why"),
        lambda it: committed_message("sepa://1", 4, it, None),
    ):
        assert b"".join(around(made, results())) == made(results())


def test_results_that_were_written_before_have_their_text_and_their_commit() -> None:
    results = Results.of_members(b'"addedResults":{}', (1, 2))
    assert (results.members, list(results.parts), results.size) == (b'"addedResults":{}', [b'"addedResults":{}'], 17)
    assert results.commit == (1, 2)
    assert not results.is_long
    assert list(results.writing()) == []


@each_row(("bag", "count"), [(bag_of(0), 0), (Bag(["a", "b"], [("<x>", None), ("<x>", '"yz"')]), 10)])
def test_the_characters_of_a_bag_are_those_of_its_terms_in_each_row(bag: Bag, count: int) -> None:
    assert characters(bag) == count

from lamplighter.engine.delta import QuadDelta, binding_delta, compose
from lamplighter.engine.terms import Bag, Quad

A, B, C = (Quad(f"<a:{name}>", "<a:p>", "<a:o>") for name in "abc")


def test_composition_is_the_net_effect() -> None:
    delta = compose([QuadDelta(added=(A, B), removed=(C,)), QuadDelta(added=(C,), removed=(A,))])
    assert delta == QuadDelta(added=(B,), kept=(C,))


def test_composition_of_graphs() -> None:
    assert compose([QuadDelta(created=("<a:g>",)), QuadDelta(dropped=("<a:g>",))]) == QuadDelta()
    assert compose([QuadDelta(dropped=("<a:g>",)), QuadDelta(created=("<a:g>",))]) == QuadDelta()


def test_kept_then_removed_is_removed() -> None:
    assert compose([QuadDelta(kept=(A,)), QuadDelta(removed=(A,))]) == QuadDelta(removed=(A,))


def test_inverse_undoes() -> None:
    delta = QuadDelta(added=(A,), removed=(B,), created=("<a:g>",))
    assert not compose([delta, delta.invert()]).changes


def test_binding_delta_counts_occurrences() -> None:
    before = Bag(["x"], [("1",), ("1",), ("2",)])
    after = Bag(["x"], [("1",), ("3",)])
    delta = binding_delta(before, after)
    assert delta.removed == Bag(["x"], [("1",), ("2",)])
    assert delta.added == Bag(["x"], [("3",)])
    assert before - delta.removed + delta.added == after
    assert not binding_delta(before, before)

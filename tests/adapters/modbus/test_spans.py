"""Which registers one request reads."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lamplighter.adapters.mapping.registers import read_max
from lamplighter.adapters.modbus.spans import Span, join_spans
from tests.support.amounts import AMOUNTS


def registers(address: int, count: int, unit: int = 1) -> Span:
    return Span(unit, "holding_register", address, count)


def test_neighbours_are_read_together() -> None:
    others = [registers(12, 2), registers(8, 2), registers(14, 1), registers(11, 2)]
    assert join_spans(registers(10, 2), others) == registers(8, 7)


def test_what_is_apart_is_read_apart() -> None:
    wanted = registers(10, 2)
    assert join_spans(wanted, [registers(13, 2), registers(7, 2)]) == wanted  # one register between them
    assert join_spans(wanted, [registers(12, 2, unit=2), Span(1, "input_register", 12, 2)]) == wanted


def test_a_request_has_its_limit() -> None:
    whole = [registers(at, 1) for at in range(300)]
    found = join_spans(registers(0, 1), whole)
    assert found == registers(0, 125)
    assert join_spans(registers(200, 1), whole).quantity == 125
    coils = [Span(1, "coil", at, 100) for at in range(0, 3_000, 100)]
    assert join_spans(coils[0], coils) == Span(1, "coil", 0, 2_000)


spans = st.builds(
    Span,
    st.integers(1, 2),
    st.sampled_from(("coil", "holding_register")),
    st.integers(0, 260),
    st.integers(1, 125),
)


@settings(max_examples=AMOUNTS.of(200))
@given(spans, st.lists(spans, max_size=30))
def test_a_joined_span_has_no_address_of_nobody(wanted: Span, others: list[Span]) -> None:
    found = join_spans(wanted, others)
    assert found.covers(wanted) and found.quantity <= read_max(found.entity)
    known = {
        address
        for one in (wanted, *others)
        if (one.unit, one.entity) == (wanted.unit, wanted.entity)
        for address in range(one.address, one.end)
    }
    assert set(range(found.address, found.end)) <= known

"""Values of results as people read them."""

from hypothesis import given
from hypothesis import strategies as st

from lamplighter.cloud_sync.fleet.jobs.texts import cell, duration, short, text_table, value_text


@given(st.floats(min_value=0, max_value=1e10))
def test_a_duration_in_words_is_that_duration(seconds: float) -> None:
    units = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
    words = duration(seconds).split()
    said = sum(float(size) * units[unit] for size, unit in zip(words[::2], words[1::2], strict=True))
    assert abs(said - seconds) <= max(0.01 * seconds, 0.5 * units[words[-1]] if len(words) == 4 else 0.0)


@given(st.text())
def test_a_cell_is_one_short_line_whatever_the_text(text: str) -> None:
    assert len(cell(text)) <= 40 and cell(text).isprintable()
    assert short(f"http://a.example/b#{text}") == (text or "http://a.example/b")


def test_values_are_as_people_write_them() -> None:
    assert value_text("longest_s", 93_600.0) == "1 d 2 h"
    assert value_text("uptime", 0.98765) == "98.77 %"
    assert value_text("unit", "http://qudt.org/vocab/unit/DEG_C") == "DEG_C"
    assert [cell(None), cell(True), cell(1234567), cell(0.1 + 0.2), cell(12_345.6)] == [
        "-",
        "yes",
        "1,234,567",
        "0.3",
        "12346",
    ]
    rows = [{"gw": "gw-1", "count": 3, "mean": None}, {"gw": "gw-22", "count": 10, "mean": 20.25}]
    assert text_table(rows, ("gw", "count", "mean")).splitlines() == [
        "gw     count   mean",
        "gw-1       3      -",
        "gw-22     10  20.25",
    ]

"""Log events have a name and fields; their text has one line and can be taken apart again."""

from __future__ import annotations

import json
import logging
import traceback

import pytest

from lamplighter.engine.log_events import FRAMES_MAX, Event, EventLogger
from tests.support.tables import each_row

logger = EventLogger("tests.events")


@each_row(
    ("value", "text"),
    [
        (17, "17"),
        (1.5, "1.5"),
        (True, "True"),
        ("street/+/temperature", "street/+/temperature"),
        ("Küche", "Küche"),
        ("two words", '"two words"'),
        ("", '""'),
        ('say "no"', '"say \\"no\\""'),
        ("a=b", '"a=b"'),
        ("one\ntwo", '"one\\ntwo"'),
        ("a\u2028b", '"a\\u2028b"'),
        (ValueError("not a number"), '"not a number"'),
    ],
)
def test_a_value_is_quoted_unless_it_is_a_plain_word(value: object, text: str) -> None:
    assert str(Event("happened", {"key": value})) == f"happened key={text}"
    if text.startswith('"'):
        assert json.loads(text) == str(value)


def test_fields_keep_their_order_and_none_is_left_out() -> None:
    event = Event("happened", {"b": 1, "a": None, "c": 2})
    assert (str(event), event.fields) == ("happened b=1 c=2", {"b": 1, "c": 2})


def test_any_word_names_a_field(caplog: pytest.LogCaptureFixture) -> None:
    logger.warning("happened", name="n", event="e", self="s", level="l", fields="f")
    assert caplog.messages == ["happened name=n event=e self=s level=l fields=f"]


def test_a_record_holds_its_event_and_names_its_caller(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tests.events")
    logger.debug("one", n=1)
    logger.info("two", n=2)
    logger.warning("three", n=3)
    logger.error("four", n=4)
    assert [record.levelname for record in caplog.records] == ["DEBUG", "INFO", "WARNING", "ERROR"]
    for record in caplog.records:
        assert isinstance(record.msg, Event)
        assert record.funcName == "test_a_record_holds_its_event_and_names_its_caller"
        assert record.exc_info is None


def test_errors_have_the_stack_trace_that_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("broken")
    except ValueError as error:
        logger.exception("failed", path="/query")
        logger.error("failed", exc_info=error)
        logger.error("failed", exc_info=False)
    assert [bool(record.exc_info) for record in caplog.records] == [True, True, False]
    assert caplog.text.count("ValueError: broken") == 2


def test_no_text_is_made_of_an_event_below_the_level() -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("nobody reads this")

    logging.getLogger("tests.events").setLevel(logging.WARNING)
    logger.info("happened", value=Costly())


def test_a_stack_trace_has_the_innermost_frames(caplog: pytest.LogCaptureFixture) -> None:
    def deep(level: int) -> None:
        if level:
            other(level - 1)
        raise ValueError("at the bottom")

    def other(level: int) -> None:
        try:
            deep(level)
        except ValueError as error:
            raise KeyError(level) from error

    try:
        deep(100)
    except (ValueError, KeyError) as error:
        EventLogger("example").error("request failed", exc_info=error)
    try:
        deep(100)
    except (ValueError, KeyError):
        EventLogger("example").exception("request failed")
    for record in caplog.records:
        assert record.exc_info is not None and record.exc_info[1] is not None
        error: BaseException | None = record.exc_info[1]
        while error is not None:
            frames = traceback.extract_tb(error.__traceback__)
            assert 0 < len(frames) <= FRAMES_MAX
            error = error.__cause__
        assert len(traceback.extract_tb(record.exc_info[2])) <= FRAMES_MAX

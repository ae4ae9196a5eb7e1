import tomllib

import msgspec
import pytest

from lamplighter.adapters.coap.settings import CoapSettings
from tests.support.tables import each_row


def read(text: str) -> CoapSettings:
    return msgspec.convert(tomllib.loads(text), CoapSettings)


def test_an_empty_table_gives_the_defaults() -> None:
    settings = read("")
    assert settings == CoapSettings()
    assert all(f"?{name}" in settings.query for name in ("actuator", "resource", "payload"))


def test_whole_seconds_may_be_written_without_a_point() -> None:
    assert read("retry_max_s = 5").retry_max_s == 5.0


@each_row(
    ("text", "named"),
    [
        ("retries = 3", "retries"),
        ("concurrency_max = 0", "concurrency_max"),
        ("ack_timeout_s = 0", "ack_timeout_s"),
        ("retry_min_s = -1", "retry_min_s"),
        ('enabled = "yes"', "enabled"),
        ('query = ""', "query"),
        ('networks = ["192.168.7.1/24"]', 'write "private", or a network such as'),
        ('networks = ["localhost"]', "localhost"),
        ("retry_min_s = 2\nretry_max_s = 1", "retry_max_s"),
        ('plain = ["lamp"]', "lamp"),
        ("reassert_s = -1", "reassert_s"),
        ('[devices.hall]\naddress = "lamp/1"', "address"),
    ],
)
def test_a_bad_setting_is_named(text: str, named: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=named):
        read(text)

"""The table ``[modbus]`` of ``lamplighter.toml``."""

from lamplighter.adapters.resources.polled_settings import PolledSettings, Seconds


class ModbusSettings(PolledSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """As `PolledSettings`.

    timeout_s: time limit for opening a connection, and for the answer of a unit.
    """

    timeout_s: Seconds = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.answer_timeout_s <= self.timeout_s:
            raise ValueError(
                f"answer_timeout_s ({self.answer_timeout_s}) is not more than timeout_s ({self.timeout_s})"
            )

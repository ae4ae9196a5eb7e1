"""The table ``[toy]`` of ``lamplighter.toml``."""

import msgspec


class ToySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    enabled: bool = False
    greeting: str = "hello"

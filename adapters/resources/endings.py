"""The error that ended an adapter."""

from __future__ import annotations

from lamplighter.engine.errors import GatewayError


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error of a gateway among several, else the first one."""
    errors: list[BaseException] = []
    found: list[BaseException] = [group]
    while found:
        one = found.pop(0)
        if isinstance(one, BaseExceptionGroup):
            found.extend(one.exceptions)
        else:
            errors.append(one)
    return next((error for error in errors if isinstance(error, GatewayError)), errors[0])

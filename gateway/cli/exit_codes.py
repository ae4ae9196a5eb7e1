"""The exit codes of `lamplighter`."""

from __future__ import annotations

from enum import IntEnum

from lamplighter.engine.errors import BrokenEngineError, ChangeLogError, ConfigurationError, GatewayError, UpstreamError


class ExitCode(IntEnum):
    """What a command returns. argparse ends with WRONG_USE, too."""

    GOOD = 0
    NEGATIVE = 1
    WRONG_USE = 2
    NO_ANSWER = 3
    REFUSED = 4
    DAMAGED = 5
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.GOOD: "success",
    ExitCode.NEGATIVE: "the answer is negative: problems were found, or a question was answered with no",
    ExitCode.WRONG_USE: "wrong use or configuration; nothing was done",
    ExitCode.NO_ANSWER: "the gateway, or another peer, does not answer",
    ExitCode.REFUSED: "the gateway refused the request, or its text or file is wrong",
    ExitCode.DAMAGED: "the change log or a backup is damaged, cannot be written, or has no such record",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C",
}


def exit_code(error: GatewayError) -> ExitCode:
    """The exit code of a command that ends with an error."""
    if isinstance(error, ConfigurationError):
        return ExitCode.WRONG_USE
    if isinstance(error, UpstreamError):
        return ExitCode.NO_ANSWER
    if isinstance(error, ChangeLogError | BrokenEngineError):
        return ExitCode.DAMAGED
    return ExitCode.REFUSED


def epilog() -> str:
    """The table at the end of `lamplighter --help`."""
    rows = (f"  {int(code):<4}{meaning}" for code, meaning in MEANINGS.items())
    return "exit codes:\n" + "\n".join(rows)

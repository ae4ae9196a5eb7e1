"""What a failure means: for one request, or for the process.

A failed step changes nothing, and only its requester is told. The process ends for `BrokenEngineError` and for a broken
log (`LogWriter.broken`), and for nothing else.
"""

from __future__ import annotations

from lamplighter.engine.errors import (
    BrokenEngineError,
    GatewayError,
    StoreError,
    bare,
    is_fault,
)
from lamplighter.engine.log_events import EventLogger

logger = EventLogger(__name__)


def failure(error: BaseException) -> GatewayError:
    """The error that the requester of a failed step gets. Logs whatever is no GatewayError.

    Raises what ends the process: BrokenEngineError, and what is no fault of the step (the end of a task or of the
    process).
    """
    if isinstance(error, BrokenEngineError) or not is_fault(error):
        raise error
    if isinstance(error, GatewayError):
        return bare(error)
    logger.error("request failed", exc_info=error)
    return StoreError(f"the gateway failed at this request: {bare(error)!r}; see its log")


def behind_its_log(error: Exception) -> BrokenEngineError:
    """The error for whatever goes wrong after a record was appended. The process ends with it."""
    if isinstance(error, BrokenEngineError):
        return error
    return BrokenEngineError(f"a record could not be followed: {error!r}; what is in memory is behind the change log")

"""What is counted of desired states and their messages."""

from dataclasses import dataclass


@dataclass(slots=True)
class OutputCounters:
    """Since the adapter was made. sent: messages with states, repeated ones too; acknowledged: those of them that
    were; failed: the others; outdated: attempts that were ended as another state was wanted, and count as neither;
    reasserted: messages for devices that have acknowledged the state before; refused: states that are never sent, and
    those that a device refuses; reported: states of devices that were stored; followed: reports that became the
    desired state; unrecorded: actuations and reports that the gateway refused to store."""

    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    outdated: int = 0
    reasserted: int = 0
    refused: int = 0
    reported: int = 0
    followed: int = 0
    unrecorded: int = 0

from lamplighter.adapters.devices.pauses import DEVICES_MAX, PAUSE_MAX_S, PAUSE_MIN_S, Pauses


def changes(pauses: Pauses[str], seconds: float) -> int:
    """How often a device changes that always has something new, within so many seconds."""
    count, now = 0, 0.0
    while now < seconds:
        pauses.changed("a", now)
        now = pauses.due("a")
        count += 1
    return count


def test_a_device_that_always_changes_is_written_ever_less() -> None:
    assert changes(Pauses(), 60) <= 8
    assert changes(Pauses(), 86_400) <= 160


def test_a_device_that_was_quiet_is_written_at_once() -> None:
    pauses = Pauses[str]()
    changes(pauses, 60)
    after = 60 + 10 * PAUSE_MAX_S
    assert pauses.due("a") < after and pauses.due("b") < 0
    pauses.changed("a", after)
    assert pauses.due("a") == after + PAUSE_MIN_S


def test_what_is_remembered_is_bounded() -> None:
    pauses = Pauses[str]()
    for number in range(DEVICES_MAX + 1):
        pauses.changed(f"{number}", 0.0)
    assert pauses.due("0") < 0 < pauses.due("1")

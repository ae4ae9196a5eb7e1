"""Whether the demo opens a browser."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Mapping

import pytest

from lamplighter.demo.street.desktop import has_desktop, show
from tests.support.tables import each_row

URL = "http://127.0.0.1:8000/page/street"


@each_row(
    ("environment", "there"),
    [
        ({}, False),
        ({"DISPLAY": ":0"}, True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, True),
        ({"DISPLAY": ""}, False),
        ({"DISPLAY": ":0", "CI": "true"}, False),
        ({"DISPLAY": "localhost:10.0", "SSH_CONNECTION": "192.0.2.1 1 192.0.2.2 22"}, False),
        ({"DISPLAY": ":0", "SSH_TTY": "/dev/pts/1"}, False),
    ],
)
def test_a_desktop_is_a_display_of_this_machine(environment: Mapping[str, str], there: bool) -> None:
    assert has_desktop(environment) is there


def no_browser() -> webbrowser.BaseBrowser:
    raise webbrowser.Error("could not locate runnable browser")


@pytest.mark.parametrize(
    "found", [no_browser, lambda: webbrowser.GenericBrowser("false"), lambda: webbrowser.Elinks("false")]
)
async def test_text_browsers_are_not_opened(
    monkeypatch: pytest.MonkeyPatch, found: Callable[[], webbrowser.BaseBrowser]
) -> None:
    monkeypatch.setattr(webbrowser, "get", found)
    assert not await show(URL)


class Window(webbrowser.BackgroundBrowser):
    """A browser that only notes what it opens."""

    def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
        self.url = url
        return True


async def test_a_browser_with_a_window_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    window = Window("true")
    monkeypatch.setattr(webbrowser, "get", lambda: window)
    assert await show(URL)
    assert window.url == URL

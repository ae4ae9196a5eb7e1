"""Opens the web page where there is a desktop."""

from __future__ import annotations

import asyncio
import webbrowser
from collections.abc import Mapping


def has_desktop(environment: Mapping[str, str]) -> bool:
    """Whether the person who started the demo sees a browser of this machine: there is a display, no CI, no SSH."""
    if any(environment.get(name) for name in ("CI", "SSH_CONNECTION", "SSH_TTY")):
        return False
    return any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


async def show(url: str) -> bool:
    """Opens the address in a browser. Returns False if there is none with a window of its own."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    if type(browser) in (webbrowser.GenericBrowser, webbrowser.Elinks):  # text browsers, which would take the terminal
        return False
    return await asyncio.to_thread(browser.open, url)

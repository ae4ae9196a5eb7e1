"""Real programs that tests need. Without one, the test is skipped with its name, or fails where CI=true."""

import importlib.util
import os
import shutil
from typing import NoReturn

import pytest

from lamplighter.gateway.page.assets import Assets, built_assets
from lamplighter.gateway.page.documents import Documents, built_documents

_PLACES = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin"])


def missing(reason: str) -> NoReturn:
    """Skips the test for want of a real component; where CI=true it fails."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def require_command(*names: str) -> str:
    """The path of the first of these commands that is there; else the test is `missing` it."""
    for name in names:
        path = shutil.which(name, path=_PLACES)
        if path:
            return path
    missing(f"none of {', '.join(names)} is installed; tests/install-components.sh says which package has it")


def require_page() -> Assets:
    """The built web page."""
    assets = built_assets()
    if assets is None:
        missing("the web page was not built; make page")
    return assets


def require_documents() -> Documents:
    """The built documents."""
    documents = built_documents()
    if documents is None:
        missing("the documents were not built; make docs")
    return documents


def require_module(name: str) -> None:
    """The same for a package of Python."""
    if importlib.util.find_spec(name) is None:
        missing(f"{name} is not installed; requirements-test.lock has it")

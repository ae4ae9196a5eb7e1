"""Optional dependencies: how to install what is missing."""

from __future__ import annotations


def pip_install(extra: str) -> str:
    """The command that installs what an extra of the package needs, such as ``pip install 'rdflib<8,>=7.6'``."""
    # Not above: it takes 20 ms, and something has to be missing.
    from importlib.metadata import PackageNotFoundError, requires

    try:
        found = requires("lamplighter") or []
    except PackageNotFoundError:  # a source tree on the path
        return f"pip install '.[{extra}]' in the folder of the sources"
    # Names of packages and not `lamplighter[...]`, which pip would look for in its index.
    wanted = (one.partition(";") for one in found)
    names = [f"'{name.strip()}'" for name, _, marker in wanted if marker.strip() == f"extra == '{extra}'"]
    return " ".join(("pip install", *names))

"""The units of systemd and the scripts of the Debian package, as they are installed.

What they say of adapters follows from `ADAPTERS`: @NAME@ and the like in systemd/adapter.service.in, @ADAPTERS@ and
@STATES@ in the scripts. `python -m lamplighter.gateway.service.units systemd UNITS image/deb DEBIAN` writes them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from lamplighter.adapters.specs import ADAPTERS, AdapterSpec

UNIT_KINDS = ("target", "socket", "service", "timer")
SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
LONG_RUNNING = ("gateway", *(spec.name for spec in ADAPTERS))  # the services that run until they are stopped
# The state folders of adapters, below /.
STATES = tuple(f"var/lib/{spec.service}" for spec in ADAPTERS if spec.keeps_state)


def units(folder: Path) -> dict[str, str]:
    """The text of each unit by its name. folder: systemd/ of the project or of the wheel."""
    template = (folder / "adapter.service.in").read_text()
    texts = {
        path.name: _substitute(path.read_text(), {"OTHER_STATES": _states_but("")})
        for kind in UNIT_KINDS
        for path in folder.glob(f"lamplighter*.{kind}")
    }
    texts |= {f"{spec.service}.service": _adapter_unit(spec, template) for spec in ADAPTERS}
    return {name: texts[name] for name in unit_names(texts)}


def unit_names(names: Iterable[str]) -> list[str]:
    """The names of units, in the order in which they are enabled."""
    return sorted(names, key=lambda name: (UNIT_KINDS.index(name.rpartition(".")[2]), name))


def _adapter_unit(spec: AdapterSpec, template: str) -> str:
    state = f"StateDirectory={spec.service}\nStateDirectoryMode=0700\n" if spec.keeps_state else ""
    high, most = spec.memory_mb
    values = {"NAME": spec.name, "TITLE": spec.title + spec.note, "SERVICE": spec.unit + state}
    values |= {"MEMORY_HIGH": str(high), "MEMORY_MAX": str(most), "OTHER_STATES": _states_but(spec.service)}
    return _substitute(template, values)


def _states_but(service: str) -> str:
    """The state folders of adapters that a service is not to see: all but its own, for ``InaccessiblePaths=``."""
    return " ".join(f"-/{path}" for path in STATES if path != f"var/lib/{service}")


def package_script(text: str) -> str:
    """A script of the package for its text in image/deb."""
    services = " ".join(f"{spec.service}.service" for spec in ADAPTERS)
    return _substitute(text, {"ADAPTERS": services, "STATES": " ".join(f"/{path}" for path in STATES)})


def _substitute(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def main(arguments: list[str]) -> int:
    source, target, scripts, package = map(Path, arguments)
    for name, text in units(source).items():
        (target / name).write_text(text)
    for name in SCRIPTS:
        (package / name).write_text(package_script((scripts / name).read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

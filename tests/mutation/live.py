"""Puts a mutant into a live process: the functions of the module get the code of the mutated ones.

It reaches every function wherever it has been imported to, and what is defined within it when it is called.
"""

from __future__ import annotations

import gc
import importlib
from collections import defaultdict
from types import CodeType, FunctionType

from tests.mutation import rooms
from tests.mutation.mutants import Mutant
from tests.support.places import ROOT


class Functions:
    """The functions of the process, by the file of their code."""

    def __init__(self, paths: set[str]) -> None:
        """paths: of the modules to be mutated, which are imported."""
        for path in sorted(paths):
            importlib.import_module(
                "lamplighter." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            )
        self._by_file: defaultdict[str, list[FunctionType]] = defaultdict(list)
        gc.unfreeze()  # frozen objects are not listed
        for item in gc.get_objects():
            if type(item) is FunctionType:  # a weak proxy would be asked for its class, and may have lost what it is of
                self._by_file[item.__code__.co_filename].append(item)

    def changes(self, mutant: Mutant) -> list[tuple[FunctionType, CodeType]]:
        """The live functions whose code differs in the mutant, and that code.

        Empty if no function has it, or if it cannot replace the present code.
        """
        path = ROOT / mutant.identity.path
        name = rooms.source_file(mutant.identity.path)
        originals = _codes(compile(path.read_text(), name, "exec", dont_inherit=True))
        mutated = _codes(mutant.code)
        result = []
        for function in self._by_file[name]:
            key = function.__code__.co_qualname, function.__code__.co_firstlineno
            # Lambdas and comprehensions of one line share a key.
            places = [place for place, code in enumerate(originals[key]) if code == function.__code__]
            if not places or len(mutated[key]) != len(originals[key]):
                continue
            code = mutated[key][places[0]]
            if code == function.__code__:
                continue
            if code.co_freevars != function.__code__.co_freevars or code.co_flags != function.__code__.co_flags:
                return []
            result.append((function, code))
        return result


def put(changes: list[tuple[FunctionType, CodeType]]) -> None:
    for function, code in changes:
        function.__code__ = code


def _codes(module: CodeType) -> defaultdict[tuple[str, int], list[CodeType]]:
    """All code within a module, by qualified name and first line, in the order of the text."""
    result: defaultdict[tuple[str, int], list[CodeType]] = defaultdict(list)

    def add(code: CodeType) -> None:
        result[code.co_qualname, code.co_firstlineno].append(code)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                add(constant)

    add(module)
    return result

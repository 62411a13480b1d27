"""The rows of the report, a module each.

A row's module has ``NAME``, ``TITLE``, the settings ``QUICK`` and ``FULL``, and

* ``run(setting, directory)``: measures, and leaves a journal in the report's directory;
* ``rows(head, runs)`` and ``targets(head, runs)``: what follows from the journal. Pure;
* ``draw(head, rows, directory)``: writes figures; a list of file names with captions;
* if the common ones do not fit, ``intro(head)``: a paragraph that says under which conditions it
  was measured, and ``table(rows)``: the columns' names and the lines of the page's table.
"""

import importlib
import pkgutil
from types import ModuleType


def modules() -> list[ModuleType]:
    """Return the rows' modules, in their order."""
    found = [importlib.import_module(f'{__name__}.{one.name}')
             for one in pkgutil.iter_modules(__path__) if one.name.startswith('row')]
    return sorted(found, key=lambda module: int(module.NAME.removeprefix('row')))

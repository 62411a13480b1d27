"""The rows of the report, a module each, named by what it shows.

A row's module has ``NAME``, ``TITLE``, the settings ``QUICK`` and ``FULL``, and

* ``run(setting, directory)``: measures, and leaves a journal in the report's directory;
* ``rows(head, runs)`` and ``targets(head, runs)``: what follows from the journal. Pure;
* ``draw(head, rows, directory)``: writes figures; a list of file names with captions;
* if the common ones do not fit, ``intro(head)``: a paragraph that says under which conditions it
  was measured, and ``table(rows)``: the columns' names and the lines of the page's table.
"""

import importlib
from types import ModuleType

_IN_ORDER = ('manyhosts', 'manyimages', 'quota', 'manyservers', 'understress', 'savings',
             'manyreaders', 'propagation', 'alternatives', 'tls', 'onceph', 'exchanged')


def modules() -> list[ModuleType]:
    """Return the rows' modules, in the report's order."""
    return [importlib.import_module(f'{__name__}.{name}') for name in _IN_ORDER]

"""The directive ``database-tables``: the storage service's tables, column by column."""

import sqlalchemy as sa
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from glance_bootcache.db.models import Model


def _lines(model: type[Model]) -> list[str]:
    table = model.__table__
    assert isinstance(table, sa.Table)
    found = ['', f'.. rubric:: {table.name}', '', model.__doc__ or '', '',
             '.. list-table::', '   :header-rows: 1', '   :widths: 20 20 60', '',
             '   * - column', '     - type', '     - meaning']
    for column in table.columns:
        key = ', key' if column.primary_key else ''
        found += [f'   * - ``{column.name}``', f'     - {column.type}{key}', f'     - {column.doc}']
    return [*found, '']


class DatabaseTables(SphinxDirective):
    """Writes a list for each table."""

    def run(self) -> list[nodes.Node]:
        """Return the nodes."""
        lines = [line for mapper in sorted(Model.registry.mappers,
                                           key=lambda mapper: str(mapper.local_table))
                 for line in _lines(mapper.class_)]
        section = nodes.section()
        self.state.nested_parse(StringList(lines), self.content_offset, section)
        return section.children


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive('database-tables', DatabaseTables)
    return {'parallel_read_safe': True}

"""The storage service's database: tables, connections, migrations, and the writer of reports.

What it imports is in the extra ``bootcache[storage]``.
"""

import importlib.util
import sys

_MISSING = [name for name in ('alembic', 'oslo_db', 'sqlalchemy')
            if importlib.util.find_spec(name) is None]
if _MISSING:
    raise ImportError(f'{", ".join(_MISSING)}: not installed; the storage service needs'
                      f' bootcache[storage]: {sys.prefix}/bin/pip install "bootcache[storage]"')

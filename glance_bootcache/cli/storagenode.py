"""The programs of storage nodes: each needs the extra ``bootcache[storage]``."""

import importlib
import importlib.util
import sys

# What the extra brings.
MODULES = ('alembic', 'oslo_db', 'oslo_middleware', 'oslo_upgradecheck', 'sqlalchemy')


def service() -> int:
    """Run ``glance-bootcache``."""
    return _run('glance-bootcache', 'service', 1)


def manage() -> int:
    """Run ``bootcache-manage``."""
    return _run('bootcache-manage', 'manage', 1)


def status() -> int:
    """Run ``bootcache-status``."""
    # 1 would be a warning of the checks.
    return _run('bootcache-status', 'status', 255)


def _run(program: str, module: str, code: int) -> int:
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if missing:
        print(f'{program}: {", ".join(missing)}: not installed; a storage node needs'
              f' bootcache[storage]: {sys.prefix}/bin/pip install "bootcache[storage]"',
              file=sys.stderr)
        return code
    return int(importlib.import_module(f'glance_bootcache.cli.{module}').main())

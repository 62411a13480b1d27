"""This tree as if it was installed: what ``importlib.metadata`` knows of an installation."""

import tomllib
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent


def as_installed(directory: str | Path) -> str:
    """Write the project's entry points into a directory, and return it.

    In front on ``sys.path`` or in PYTHONPATH it takes the place of an installation, which may be of
    another tree, or missing.
    """
    groups = tomllib.loads((TOP / 'pyproject.toml').read_text())['project']['entry-points']
    info = Path(directory, 'bootcache-0.dist-info')
    info.mkdir(parents=True, exist_ok=True)
    (info / 'METADATA').write_text('Metadata-Version: 2.1\nName: bootcache\nVersion: 0\n')
    (info / 'entry_points.txt').write_text(''.join(
        f'[{group}]\n' + ''.join(f'{name} = {where}\n' for name, where in entries.items())
        for group, entries in groups.items()))
    return str(directory)

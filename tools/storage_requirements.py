"""Print what a storage node needs: requirements.txt, and pyproject.toml's extra ``storage``."""

import pathlib
import tomllib

TOP = pathlib.Path(__file__).resolve().parent.parent


def needed() -> str:
    """Return the lines."""
    project = tomllib.loads((TOP / 'pyproject.toml').read_text())['project']
    return (TOP / 'requirements.txt').read_text() + ''.join(
        f'{line}\n' for line in project['optional-dependencies']['storage'])


if __name__ == '__main__':
    print(needed(), end='')

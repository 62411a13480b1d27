"""The lowest versions that a storage node's requirements name, for pip. Run by tools/matrix.sh."""

import pathlib
import sys

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Glance's client asks for it, and each release of it for its own of cryptography.
FOLLOWS = 'pyopenssl'


def _requirements(text: str) -> list[Requirement]:
    lines = (line.partition('#')[0].strip() for line in text.splitlines())
    return [Requirement(line) for line in lines if line]


def pins(requirements: str) -> list[str]:
    """Return each requirement at its lower bound. Pure.

    :param requirements: the text of requirements.txt.
    :raises ValueError: if one has no lower bound, or anything beside it.
    """
    found = []
    for wanted in _requirements(requirements):
        bounds = list(wanted.specifier)
        if [bound.operator for bound in bounds] != ['>=']:
            raise ValueError(f'{wanted} is not name>=version')
        extras = f'[{",".join(sorted(wanted.extras))}]' if wanted.extras else ''
        found.append(f'{wanted.name}{extras}=={bounds[0].version}')
    return found


def others(constraints: str, requirements: str) -> list[str]:
    """Return the constraints on what the requirements do not name, nor decide, themselves. Pure.

    What they need in turn is not to change from one run to the next.
    """
    named = {FOLLOWS, *(canonicalize_name(wanted.name) for wanted in _requirements(requirements))}
    return [str(pin) for pin in _requirements(constraints)
            if canonicalize_name(pin.name) not in named]


def main(requirements: str, constraints: str, folder: str) -> None:
    """Write ``requirements.txt`` and ``constraints.txt`` into a folder."""
    wanted = pathlib.Path(requirements).read_text()
    pinned = pathlib.Path(constraints).read_text()
    for name, lines in (('requirements.txt', pins(wanted)),
                        ('constraints.txt', others(pinned, wanted))):
        pathlib.Path(folder, name).write_text('\n'.join(lines) + '\n')


if __name__ == '__main__':
    main(*sys.argv[1:])

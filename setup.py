"""The version of a tree that pbr cannot ask git about: an export, or a copy without its history.

Everything else about the project is in pyproject.toml and setup.cfg.
"""

import os
import pathlib
import re

import setuptools

TOP = pathlib.Path(__file__).resolve().parent
# The release that is being worked on.
VERSION = '0.1.0.dev0'


def exported_version() -> str:
    """The version of an export: the commit is in it if ``git archive`` made it."""
    file = TOP / '.git_archival'
    commit = re.search(r'^commit: ([0-9a-f]+)$', file.read_text(), re.M) if file.exists() else None
    return f'{VERSION}+g{commit[1]}' if commit else VERSION


# An sdist has its version in PKG-INFO.
if not (TOP / '.git').exists() and not (TOP / 'PKG-INFO').exists():
    os.environ.setdefault('PBR_VERSION', exported_version())
    # Where reno is installed, it would look for the history of the release notes.
    os.environ.setdefault('SKIP_GENERATE_RENO', '1')

setuptools.setup()

"""The version of a tree that pbr cannot ask git about: an export, or a copy without its history.

Everything else about the project is in pyproject.toml and setup.cfg.
"""

import os
import pathlib
import re
import subprocess

import setuptools

TOP = pathlib.Path(__file__).resolve().parent
# The release that is being worked on.
VERSION = '0.1.0.dev0'


def exported_version() -> str:
    """The version of an export: the commit is in it if ``git archive`` made it."""
    file = TOP / '.git_archival'
    commit = re.search(r'^commit: ([0-9a-f]+)$', file.read_text(), re.M) if file.exists() else None
    return f'{VERSION}+g{commit[1]}' if commit else VERSION


def git(*arguments: str) -> str | None:
    """What git answers; None where it is missing or fails, as on the tree of another user."""
    try:
        return subprocess.run(['git', '-C', str(TOP), *arguments], check=True, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def version_without_pbr() -> str | None:
    """The version where pbr finds none, or one that says nothing; else None."""
    if (TOP / 'PKG-INFO').exists():
        # An sdist's.
        return None
    shallow = git('rev-parse', '--is-shallow-repository') if (TOP / '.git').exists() else None
    if shallow is None:
        return exported_version()
    # Of a history that is cut off pbr makes 0.0.0, which is before any version.
    if shallow == 'true' and git('describe', '--exact-match') is None:
        return f'{VERSION}+g{git("rev-parse", "--short", "HEAD")}'
    return None


version = version_without_pbr()
if version:
    os.environ.setdefault('PBR_VERSION', version)
    # Where reno is installed, it would look for the history of the release notes.
    os.environ.setdefault('SKIP_GENERATE_RENO', '1')

setuptools.setup()

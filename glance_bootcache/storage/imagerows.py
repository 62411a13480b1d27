"""How an image is a row of the database. Pure."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bootcache.manifest import (
    Availability,
    CacheDifference,
    CacheInfo,
    Goal,
    Made,
    Manifest,
    Standing,
    Wished,
    WorkingSetInfo,
)
from bootcache.reasons import Cause, Reason

# What an image need not have, by its field of Made: its columns begin with the field's name here.
_PARTS: dict[str, tuple[str, type[Any]]] = {
    'working_set': ('working_set_', WorkingSetInfo), 'cache_image': ('cache_', CacheInfo),
    'difference': ('difference_', CacheDifference)}
_WISHED = tuple(field.name for field in dataclasses.fields(Wished))
_MADE = tuple(field.name for field in dataclasses.fields(Made)
              if field.name not in (*_PARTS, 'base_file'))
_OWN = ('image_id', 'image_hash', 'updated_at', 'taken_up_at')
# MariaDB's text has 64 KiB; a character up to four bytes.
_MOST_DETAIL = 16_000


def storable(manifest: Manifest) -> Manifest:
    """Return a manifest as it comes back from any database: tenants and programs name things."""
    return dataclasses.replace(
        manifest.wishing(name=_text(manifest.wished.name)[:255]),
        cause=dataclasses.replace(manifest.cause,
                                  detail=_text(manifest.cause.detail)[:_MOST_DETAIL]))


def _text(text: str) -> str:
    # PostgreSQL has no NUL, and no database half of a surrogate pair.
    return text.encode('utf-8', 'replace').decode().replace('\0', '?')


def to_row(manifest: Manifest) -> dict[str, Any]:
    """Return the values of the columns that a manifest has, of one that is ``storable``."""
    made = manifest.made
    row = {name: getattr(manifest, name) for name in _OWN}
    row |= {name: getattr(manifest.wished, name) for name in _WISHED}
    row |= {name: getattr(made, name) for name in _MADE}
    row |= {'standing': manifest.standing.value, 'goal': manifest.goal.value,
            'reason': manifest.cause.reason.value, 'detail': manifest.cause.detail,
            'availability': manifest.wished.availability.value,
            'base_file': made.base_file and ':'.join(map(str, made.base_file))}
    for part, (prefix, kind) in _PARTS.items():
        found = getattr(made, part)
        row |= {prefix + field.name: None if found is None else getattr(found, field.name)
                for field in dataclasses.fields(kind)}
    return row


def from_row(row: Mapping[str, Any]) -> Manifest:
    """Read it back.

    :raises ValueError: if a column has a value that this release does not know.
    """
    made: dict[str, Any] = {name: row[name] for name in _MADE}
    for part, (prefix, kind) in _PARTS.items():
        names = [field.name for field in dataclasses.fields(kind)]
        made[part] = None if row[prefix + names[0]] is None \
            else kind(*(row[prefix + name] for name in names))
    if row['base_file'] is not None:
        inode, changed_at, size = map(int, row['base_file'].split(':'))
        made['base_file'] = inode, changed_at, size
    wished = {name: row[name] for name in _WISHED}
    return Manifest(
        standing=Standing(row['standing']), goal=Goal(row['goal']),
        cause=Cause(Reason(row['reason']), row['detail']),
        wished=Wished(**{**wished, 'availability': Availability(row['availability'])}),
        made=Made(**made), **{name: row[name] for name in _OWN})

"""Files of earlier versions, as documents of the version of now. Pure.

An upgrade just works: who reads a file hands an older document in here, and what it gets is written
in the format of now with its next change.
"""

from typing import Any

# What was in the part of people, when a manifest had one part only; the rest was made by jobs.
_WISHED = ('held', 'pinned', 'quota', 'boot_marker', 'settle', 'generation', 'visibility',
           'warm_due', 'name', 'owner')
_WHOLE = ('image_id', 'reason', 'image_hash', 'updated_at')
_STANDINGS = {'pending': 'wanted', 'recording': 'wanted', 'building': 'wanted', 'served': 'done',
              'ready': 'done', 'failed': 'failed', 'skipped': 'skipped'}


def manifest_of_1(document: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest of version 1 as one of version 2; what is unknown in it stays so.

    Version 1 had all entries in one part, the state that is derived now, and ``base_hash`` of bases
    that its last releases got only: the others were of ``image_hash``.
    """
    entries = {key: value for key, value in document.items() if key != 'version'}
    state = entries.pop('state', 'pending')
    found: dict[str, Any] = {'version': 2, 'standing': _STANDINGS.get(str(state))}
    found.update((key, entries.pop(key)) for key in _WHOLE if key in entries)
    found['wished'] = {key: entries.pop(key) for key in _WISHED if key in entries}
    if entries.get('base_path') and not entries.get('base_hash'):
        entries['base_hash'] = found.get('image_hash', '')
    found['made'] = entries
    return found

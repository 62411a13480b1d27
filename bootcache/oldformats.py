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
# How reasons began, or what was in them, where ``image_hash`` may be of a content that is not here:
# version 1 noted that with the failure to get it.
_OLDER_SERVES = 'the older cache image serves'
_OLDER_READ = 'compute hosts still read the image\'s older content'


def manifest_of_1(document: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest of version 1 as one of version 2; what is unknown in it stays so.

    Version 1 had all entries in one part, the state that is derived now, and ``base_hash`` of bases
    that its last releases got only: the others were of ``image_hash``, except where another content
    could not be got. Such a base is taken for one of an older content.
    """
    entries = {key: value for key, value in document.items() if key != 'version'}
    state = entries.pop('state', 'pending')
    found: dict[str, Any] = {'version': 2, 'standing': _STANDINGS.get(str(state))}
    found.update((key, entries.pop(key)) for key in _WHOLE if key in entries)
    found['wished'] = {key: entries.pop(key) for key in _WISHED if key in entries}
    if not entries.get('base_hash') and not _may_be_older(str(state), entries.get('base_path'),
                                                          str(found.get('reason', ''))):
        # Also of one that was given up: the same content's export keeps its name.
        entries['base_hash'] = found.get('image_hash', '')
    found['made'] = entries
    return found


def _may_be_older(state: str, base_path: object, reason: str) -> bool:
    """Tell whether a base may be of another content than ``image_hash`` of version 1 was."""
    # One that is pending may have failed before, and have been tried again at the upgrade.
    return (bool(base_path) and state in ('failed', 'pending')) \
        or reason.startswith(_OLDER_SERVES) or _OLDER_READ in reason

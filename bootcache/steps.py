"""Steps at which something is half done: named in the code, so that faults can be tried there.

A line ``steps.reached('fetch: copied')`` stands where a process that ends leaves a file without its
name, a node without its export and the like. It does nothing. A program that tries faults
(bench/faults) installs a hook in the processes that it starts; no option and no environment
variable can.

Every name in the code is in the table, every one in the table is in the code once, and has runs in
which processes are killed there: tests hold that.
"""

import dataclasses
import enum
from collections.abc import Callable


class Process(enum.StrEnum):
    """Which process comes to a step."""

    HOST = 'nova-compute'
    STORAGE = 'glance-bootcache'


@dataclasses.dataclass(frozen=True)
class NamedStep:
    """A step.

    :ivar name: in the code.
    :ivar process: that comes to it.
    :ivar coming: what is about to happen, and with it what is half done.
    """

    name: str
    process: Process
    coming: str


TABLE = tuple(NamedStep(name, process, coming) for process, steps in {
    Process.STORAGE: {
        'register: heard': 'Glance was asked about an image; its row is written',
        'register: taken up': 'the row wants an image; nobody works on it yet',
        'register: copied': 'the base is downloaded, and gets its name',
        'register: named': 'the base has its name; its image\'s row does not name it',
        'register: noted': 'the row names the base, which is served now',
        'record: kept': 'the working set is a row; its image\'s row does not name it',
        'build: read': 'a private daemon has read the extents; they are compared with the base',
        'build: filled': 'the cache image is built, and gets its name',
        'build: named': 'the cache image has its name, and is served next',
        'build: served': 'the cache image is served; its image\'s row does not name it',
        'build: noted': 'the row names the cache image; an older copy goes from memory',
        'serve: nodes': 'the exporter has the nodes of a file; they are exported',
        'promote: copied': 'a cache image was copied to memory, and is served from there next',
        'replace: written': 'a row was changed; the files that only the one of before named go',
        'retire: withdrawn': 'a deleted image is not served any more; its files go',
        'retire: forgotten': 'the row of a deleted image is gone; its files go',
        'claim: written': 'another node\'s image is this one\'s; nobody works on it yet',
        'give up: withdrawn': 'what has moved is not served here any more; its files go',
    },
    Process.HOST: {
        'clone: made': 'this host has a clone of a base in Ceph; its parent is compared next',
        'gateway: nodes': 'the gateway has the nodes of a base; they are exported',
        'connector: opened': 'a connector has a base open; it is read there, and linked to',
        'connector: linked': 'a base is read by another connector; the one before lets go of it',
        'fetch: copied': 'a cache image has come; it is verified',
        'fetch: verified': 'a cache image was verified, and takes its place',
        'place: entry gone': 'the older entry is gone; the file gets its name',
        'place: file there': 'the file has its name; its entry takes its place',
        'empty: made': 'an empty cache image was made, and takes its place',
        'arrive: held': 'an arrival has its room on the medium; the gateway gets its nodes',
        'arrive: begun': 'servers read from what arrives; its job begins',
        'arrive: apart': 'servers read what they ask for; others give the cache image, apart',
        'arrive: exchanged': 'what others gave is whole; it takes the name of what servers read',
        'arrive: come': 'all of a cache image has come; it is verified',
        'arrive: landing': 'what arrived has its place; servers that read are put onto it',
        'grow: made': 'a growing store is a file; the gateway gets its nodes',
        'grow: opened': 'servers read through a growing store; nobody watches it yet',
        'chain: made': 'a server\'s overlay is made, and gets its name',
        'evict: file gone': 'a cache image was removed; the gateway lets go of its base',
        'evict: base gone': 'the gateway let go of a base; its cache image goes',
        'expand: begun': 'an expanded cache image has its room on the medium; QEMU writes its file',
        'expand: filled': 'an expanded cache image is written; it is compared with the other one',
        'expand: compared': 'an expanded cache image is as the other one, and takes its place',
        'settle: piece': 'a piece of a full base was copied; its journal tells of it',
        'settle: verified': 'a full base was verified, and gets its name',
        'settle: marked': 'the marker stands; the overlay\'s header gets the full base',
        'settle: written': 'the overlay stands on the full base; the marker goes',
    },
}.items() for name, coming in steps.items())

_hook: Callable[[str], None] | None = None


def reached(name: str) -> None:
    """Tell that a step is reached; without a hook nobody listens.

    :param name: as in the table.
    """
    if _hook is not None:
        _hook(name)


def install(hook: Callable[[str], None] | None) -> None:
    """Have a function called in this process at every step, in the thread that comes to it.

    :param hook: called with the step's name; None for none.
    """
    global _hook
    _hook = hook

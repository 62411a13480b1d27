"""Stand-ins for libvirt's domains, Nova and what is below the disks: guests that are paused."""

import types

import libvirt
from fakes_clock import Clock

from nova_bootcache.settling.localservers import LocalServer
from nova_bootcache.standstill import standingservers
from nova_bootcache.standstill.standingservers import StandingServers

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
CACHE = '/instances/_bootcache/abc'
BASE = '/instances/_base/abc'


def disk(target='vda', policies="error_policy='stop' rerror_policy='stop'", below=CACHE):
    """A disk of a domain's description."""
    chain = f"<backingStore type='file'><source file='{below}'/></backingStore>" if below else ''
    return (f"<disk type='file'><driver name='qemu' type='qcow2' {policies}/>"
            f"<source file='/instances/a/disk'/>{chain}<target dev='{target}'/></disk>")


class Domain:
    """A domain of libvirt's; it goes on as often as it was told to."""

    def __init__(self, uuid, reason, xml):
        self.uuid, self.now = uuid, (libvirt.VIR_DOMAIN_PAUSED, reason)
        self.xml = f'<domain><devices>{xml}</devices></domain>'
        self.resumed, self.relapses, self.errors = [], 0, {}
        self.on_resume = None
        self.control = [libvirt.VIR_DOMAIN_CONTROL_OK, 0, 0]
        # The description that its saved memory has; what it was defined anew with.
        self.saved, self.redefined = None, []

    def UUIDString(self):
        return self.uuid

    def state(self, _flags):
        return self.now

    def XMLDesc(self, _flags):
        return self.xml

    def diskErrors(self, _flags):
        return self.errors

    def controlInfo(self, _flags):
        return self.control

    def hasManagedSaveImage(self, _flags):
        return int(self.saved is not None)

    def managedSaveGetXMLDesc(self, flags):
        self.asked_for = flags
        return self.saved

    def managedSaveDefineXML(self, description, flags):
        assert self.asked_for == libvirt.VIR_DOMAIN_SAVE_IMAGE_XML_SECURE, \
            'what is kept out would be lost'
        self.redefined.append((description, flags))
        self.saved = description

    def resume(self):
        self.resumed.append(self.on_resume())
        if len(self.resumed) > self.relapses:
            self.now = (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_UNPAUSED)


class Connection:
    """One to libvirt; what is listed on it knows no more than its name."""

    def __init__(self, domains):
        self._domains = domains

    def listAllDomains(self, flags):
        assert flags == libvirt.VIR_CONNECT_LIST_DOMAINS_PAUSED
        return [types.SimpleNamespace(UUIDString=domain.UUIDString)
                for domain in self._domains.values() if domain.now[0] == libvirt.VIR_DOMAIN_PAUSED]

    def getLibVersion(self):
        return 9_000_000

    def lookupByUUIDString(self, name):
        if name not in self._domains:
            raise libvirt.libvirtError('no domain')
        return self._domains[name]


class House:
    """Stands for libvirt, Nova and the chains."""

    def __init__(self, clock):
        self.clock = clock
        self.domains, self.known, self.away, self.reached = {}, {}, {}, []
        self.asked = 0
        # To libvirt, beside Nova's.
        self.connections = []
        # What was told to who watches boots.
        self.told = []
        self.standing = StandingServers(self, self, lambda path: path == CACHE, self, clock)
        self.standing._woken = Woken(clock)

    def stand_still(self, server_ids):
        self.told.append((self.clock.now, sorted(server_ids)))

    def stands(self, name, image=IMAGE, reason=libvirt.VIR_DOMAIN_PAUSED_IOERROR, xml=None,
               runs=True):
        found = self.domains[name] = Domain(name, reason, xml or disk())
        found.on_resume = lambda: self.clock.now
        self.known[name] = LocalServer(name, image, True, 9.0, f'/instances/{name}', 'vda',
                                       'active', runs)
        return found

    def connect(self):
        self.connections.append(Connection(self.domains))
        return self.connections[-1]

    def domain(self, name):
        return self.domains.get(name)

    def servers(self):
        self.asked += 1
        return list(self.known.values())

    def server(self, name):
        return self.known.get(name)

    def reach_base(self, image_id):
        self.reached.append((image_id, self.clock.now))
        if error := self.away.get(image_id):
            raise error

    def is_read(self, image_id):
        return image_id not in self.away

    def pass_time(self, seconds):
        """Look whenever there is something to do."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.standing.look()
            self.standing._wait()
            # Nothing is to do at the end, or it is done the next time.
            self.clock.now = min(self.clock.now, end)
        self.standing.look()


class Woken:
    """Stands for the event that wakes who looks: time passes."""

    def __init__(self, clock):
        self._clock = clock

    def wait(self, seconds):
        self._clock.now += seconds
        return False

    def set(self):
        pass

    clear = set


def is_taken(lock):
    """Tell whether another thread has a lock."""
    if lock.acquire(0):
        lock.release()
        return False
    return True


def make_house(monkeypatch):
    """Return a house with a clock of its own."""
    clock = Clock()
    monkeypatch.setattr(standingservers, 'time', clock)
    return House(clock)

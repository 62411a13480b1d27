"""What is done about a half-done move: all cases, and a model of the moves that lead to them."""

import dataclasses
import itertools
import os

import pytest

from nova_bootcache.settling import pivot, pivotstate
from nova_bootcache.settling.pivotstate import (
    DISK,
    MARKER,
    SPARE,
    Found,
    Marker,
    Overlay,
    PivotConflict,
    PivotPhase,
    Recovery,
    decide_recovery,
)

OLD, NEW, OTHER, NONE = Overlay.OLD, Overlay.NEW, Overlay.OTHER, Overlay.NONE
LIVE = [phase for phase in PivotPhase if phase is not PivotPhase.REBASING]
RUNS = [(False, NONE), (True, NONE), (True, OLD), (True, NEW)]
CASES = [(phase, Found(disk, spare, running, runs_from, ran_on))
         for phase, disk, spare, (running, runs_from), ran_on
         in itertools.product(LIVE, Overlay, Overlay, RUNS, (False, True))]


@pytest.mark.parametrize('phase, found', CASES)
def test_every_case(phase, found):
    decision = decide_recovery(phase, found)
    if decision.refusal:
        assert decision == Recovery(refusal=decision.refusal)
        return
    names = [found.disk, found.spare]
    if decision.exchange:
        assert NONE not in names
        names.reverse()
    # Afterwards the valid overlay has the name, and it was there.
    assert names[0] is decision.valid is not NONE
    # QEMU is never left on a file that goes.
    if decision.valid is not OTHER and found.runs_from is not NONE:
        assert decision.valid is found.runs_from
    # Where it matters which one it is, an unknown file is never taken, nor lost.
    if OTHER in names and found.spare is not NONE:
        assert decision.valid in (OLD, NEW)
    if not found.running and decision.valid is not OTHER:
        assert decision.valid is (NEW if phase is PivotPhase.PIVOTED else OLD)
    assert decision.record_pivoted == (found.running and phase is PivotPhase.PIVOTING
                                       and decision.valid is NEW)
    # A second look at what the first one made changes nothing.
    again = decide_recovery(PivotPhase.PIVOTED if decision.record_pivoted else phase,
                            dataclasses.replace(found, disk=names[0], spare=names[1]))
    assert again == Recovery(decision.valid)
    # Nor does one after the other overlay is gone.
    gone = decide_recovery(PivotPhase.PIVOTED if decision.record_pivoted else phase,
                           dataclasses.replace(found, disk=names[0], spare=NONE, new_ran_on=False))
    assert gone == Recovery(decision.valid)


@pytest.mark.parametrize('phase, found, reason', [
    (PivotPhase.COPYING, Found(OLD, NEW, True, NEW), 'before that was complete'),
    (PivotPhase.PIVOTED, Found(NEW, OLD, True, OLD), 'after the new one'),
    (PivotPhase.PIVOTING, Found(OLD, NEW, True, NONE), 'does not tell'),
    (PivotPhase.PIVOTING, Found(NEW, OLD, new_ran_on=True), 'may have resumed'),
    (PivotPhase.PIVOTED, Found(OLD, NONE), 'the new overlay is valid, but'),
    (PivotPhase.COPYING, Found(NONE, OLD), 'the old overlay is valid, but'),
    (PivotPhase.COPYING, Found(OTHER, NEW), 'the old overlay is valid, but')])
def test_what_an_operator_has_to_look_at(phase, found, reason):
    assert reason in decide_recovery(phase, found).refusal


def test_a_directory_from_a_backup():
    """One overlay with another inode: there is nothing to choose."""
    for phase in LIVE:
        assert decide_recovery(phase, Found(OTHER, NONE)) == Recovery(OTHER)


@dataclasses.dataclass
class Model:
    """A move in progress: what is on disk, and what is true."""

    phase: PivotPhase = PivotPhase.COPYING
    disk: Overlay = OLD
    spare: Overlay = NONE
    job: bool = False
    qemu: Overlay = OLD
    suspended: bool = False
    complete: bool = False  # the new overlay has all data, on the medium

    def right(self):
        """The overlays that have all that the guest has ever synced."""
        if self.qemu is OLD:
            return {OLD, NEW} if self.complete and self.suspended else {OLD}
        # On the new one, but not a write of the guest since.
        return {OLD, NEW} if self.suspended else {NEW}


# As Pivot.begin and Pivot.finish do it.
STEPS = [
    {'spare': NEW}, {'disk': NEW, 'spare': OLD}, {'job': True}, {'disk': OLD, 'spare': NEW},
    {'phase': PivotPhase.PIVOTING}, {'suspended': True}, {'complete': True},
    {'qemu': NEW, 'job': False}, {'disk': NEW, 'spare': OLD}, {'phase': PivotPhase.PIVOTED},
    {'suspended': False}, {'spare': NONE}]
# As Pivot.abort does it in mid-job.
GIVEN_UP = [*STEPS[:4], {'disk': NEW, 'spare': OLD}, {'job': False}, {'disk': OLD, 'spare': NEW},
            {'spare': NONE}]


@pytest.mark.parametrize('steps', [STEPS[:count] for count in range(len(STEPS) + 1)]
                         + [GIVEN_UP[:count] for count in range(5, len(GIVEN_UP) + 1)])
@pytest.mark.parametrize('qemu_lives', [True, False])
def test_no_crash_of_the_model_loses_what_the_guest_synced(steps, qemu_lives):
    model = Model()
    for step in steps:
        model = dataclasses.replace(model, **step)
    found = Found(model.disk, model.spare, qemu_lives, model.qemu if qemu_lives else NONE)
    decision = decide_recovery(model.phase, found)
    assert not decision.refusal and decision.valid in model.right()
    if qemu_lives:
        assert decision.valid is model.qemu


# The files.

@pytest.fixture
def server(tmp_path):
    """A server's directory; gives a maker of files and a marker that fits them."""
    directory = str(tmp_path)

    def make(phase, disk='old', spare='new', **changes):
        inodes = {}
        for name, content in ((DISK, disk), (SPARE, spare)):
            if content:
                with open(f'{directory}/{name}', 'w') as stream:
                    stream.write(content)
                inodes[content] = os.stat(f'{directory}/{name}').st_ino
        marker = Marker(phase, 'vda', '/base', 'raw', inodes.get('old', 0), inodes.get('new'),
                        **changes)
        marker.save(directory)
        return directory

    return make


def content(directory):
    with open(f'{directory}/{DISK}') as stream:
        return stream.read()


@pytest.mark.parametrize('phase, disk, spare, left', [
    (PivotPhase.COPYING, 'old', 'new', 'old'), (PivotPhase.COPYING, 'new', 'old', 'old'),
    (PivotPhase.COPYING, 'old', '', 'old'), (PivotPhase.PIVOTING, 'old', 'new', 'old'),
    (PivotPhase.PIVOTING, 'new', 'old', 'old'), (PivotPhase.PIVOTED, 'new', 'old', 'new'),
    (PivotPhase.PIVOTED, 'new', '', 'new')])
def test_a_stopped_server_is_put_right(server, phase, disk, spare, left):
    directory = server(phase, disk, spare)
    assert pivot.is_under_way(directory)
    assert pivot.recover(directory, None) is Overlay(left)
    assert content(directory) == left and os.listdir(directory) == [DISK]
    assert pivot.recover(directory, None) is None and not pivot.is_under_way(directory)


def test_a_guest_that_ran_on_is_not_put_back(server):
    """Somebody resumed it by hand in the moment between the pivot and its record."""
    directory = server(PivotPhase.PIVOTING, 'new', 'old')
    late = os.stat(f'{directory}/{MARKER}').st_mtime + 3600
    os.utime(f'{directory}/{DISK}', (late, late))
    with pytest.raises(PivotConflict, match=r'Keep the right one of disk and disk\.settle'):
        pivot.recover(directory, None)
    assert content(directory) == 'new' and len(os.listdir(directory)) == 3
    # Where the old one was written, too, the guest went on with that, and the job with the guest.
    os.utime(f'{directory}/{SPARE}', (late, late))
    assert pivot.recover(directory, None) is OLD


def test_a_guest_may_have_gone_on_with_a_pivot_that_came_off_late(server):
    """However little later: QEMU was not known to have done it."""
    directory = server(PivotPhase.PIVOTING, 'old', 'new', unanswered=True)
    marked = os.stat(f'{directory}/{MARKER}').st_mtime
    os.utime(f'{directory}/{SPARE}', (marked + 1, marked + 1))
    with pytest.raises(PivotConflict, match='may have resumed the guest'):
        pivot.recover(directory, None)
    assert content(directory) == 'old' and len(os.listdir(directory)) == 3


@pytest.mark.parametrize('old, new', [(0, -1), (-9, -1), (9, 8)])
def test_a_qemu_that_ends_without_an_answer_has_not_pivoted(server, old, new):
    """As a hard reboot ends one that hangs; or the guest went on with the old one."""
    directory = server(PivotPhase.PIVOTING, 'old', 'new', unanswered=True)
    marked = os.stat(f'{directory}/{MARKER}').st_mtime
    for name, later in ((DISK, old), (SPARE, new)):
        os.utime(f'{directory}/{name}', (marked + later, marked + later))
    assert pivot.recover(directory, None) is OLD


def test_an_idle_guest_is_no_conflict(server):
    """Its old overlay is old, and the new one has just been written by the job."""
    directory = server(PivotPhase.PIVOTING)
    os.utime(f'{directory}/{DISK}', (1, 1))
    assert pivot.recover(directory, None) is OLD


def test_a_marker_comes_back_as_it_was(tmp_path):
    marker = Marker(PivotPhase.REBASING, 'vda', '/base', 'raw', 1, 2, True, ('/cache', 'qcow2'),
                    'ff00')
    late = Marker(PivotPhase.PIVOTING, 'vda', '/base', 'raw', 1, 2, unanswered=True)
    for written in (marker, late):
        written.save(str(tmp_path))
        assert Marker.load(str(tmp_path)) == written
    assert Marker.load(str(tmp_path / 'none')) is None


@pytest.mark.parametrize('text', ['', '[]', '{}', '{"version": 2}', '{"version": 1}',
                                  '{"version": 1, "phase": "none", "old_backing": []}'])
def test_a_marker_that_cannot_be_read_stops_everything(tmp_path, text):
    (tmp_path / MARKER).write_text(text)
    (tmp_path / DISK).write_text('disk')
    (tmp_path / SPARE).write_text('spare')
    with pytest.raises(PivotConflict, match=MARKER):
        pivot.recover(str(tmp_path), None)
    assert len(os.listdir(tmp_path)) == 3


def test_names_are_exchanged_in_one_step(server):
    directory = server(PivotPhase.COPYING)
    pivotstate.exchange(directory)
    assert content(directory) == 'new'
    os.unlink(f'{directory}/{SPARE}')
    with pytest.raises(FileNotFoundError):
        pivotstate.exchange(directory)
    assert content(directory) == 'new'


@pytest.mark.parametrize('start, found', [(b'\0' * 8192, 'raw'), (b'\xff' * 8192, 'raw')])
def test_a_raw_base(tmp_path, start, found):
    (tmp_path / 'base').write_bytes(start)
    assert pivot.base_format(str(tmp_path / 'base')) == found


def test_bases_of_other_kinds(tmp_path):
    (tmp_path / 'base').write_bytes(b'QFI\xfb' + (3).to_bytes(4, 'big') + bytes(8192))
    # A header that names another file is not safe; one of zeros behind the magic is.
    assert pivot.base_format(str(tmp_path / 'base')) == 'qcow2'
    (tmp_path / 'base').write_bytes(b'QFI\xfb' + (3).to_bytes(4, 'big') + b'\1' * 8192)
    with pytest.raises(pivotstate.PivotRefused):
        pivot.base_format(str(tmp_path / 'base'))
    (tmp_path / 'base').write_bytes(b'LUKS\xba\xbe' + (1).to_bytes(2, 'big') + bytes(8192))
    with pytest.raises(pivotstate.PivotRefused):
        pivot.base_format(str(tmp_path / 'base'))
    with pytest.raises(pivotstate.PivotRefused):
        pivot.base_format(str(tmp_path / 'none'))

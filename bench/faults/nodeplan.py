"""Storage nodes that fail: which cases there are, and what has to come of each. Pure."""

import dataclasses
import enum
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from bench.faults.report import Outcome
from bench.faults.wayplan import MOST_SECONDS, Figures
from bootcache import steps
from bootcache.steps import Process

NODES = 3
# What has to hold, in seconds, beside that a read is answered or its guest paused in time: until
# each guest reads again, whether its node is back or not.
ON_SECONDS = 60.0
# So long guests are waited for before that is called hanging.
GIVEN_UP = 120.0
DELETION = 'deletion'


class Meanwhile(enum.Enum):
    """What a storage node does when it is killed at a step."""

    REGISTERS = 'registers'    # it works on a new image
    DELETES = 'deletes'        # an image was deleted in Glance
    TAKES_OVER = 'takes over'  # another node is drained
    GIVES_UP = 'gives up'      # it is drained


# By the beginning of a step's name.
_MEANWHILE = {'retire': Meanwhile.DELETES, 'claim': Meanwhile.TAKES_OVER,
              'give up': Meanwhile.GIVES_UP}
# Of servers' requests, and of an image that is recorded anew: rows with one node have them.
_NOT_HERE = ('promote', 'replace')
# All steps of a storage node.
STEPS = {step.name: next((what for name, what in _MEANWHILE.items() if step.name.startswith(name)),
                         Meanwhile.REGISTERS)
         for step in steps.TABLE if step.process is Process.STORAGE
         and not step.name.startswith(_NOT_HERE)}
# Of the short run.
_QUICK_STEPS = 'register: named', 'claim: written', 'give up: withdrawn'


def node_name(number: int) -> str:
    """Return the name of a node, which is that of its service's process as well. Pure."""
    return f'storage-{number}'


@dataclasses.dataclass(frozen=True)
class Case:
    """Something that a storage node fails by.

    :ivar name: for people.
    :ivar seconds: for which it lasts at least: longer if guests have not gone on by then.
    :ivar full_seconds: the same in the full run; 0 for no other.
    :ivar moves: whether guests cannot read from the node, so that its images get other homes: all
        of them; False: none does; None: those that somebody asks for.
    :ivar is_gone: whether the node does nothing meanwhile: all that it has is to be there then.
    :ivar of_all: whether it is of all nodes.
    :ivar is_of_own_base: whether it is the node that has the base of an image on its own disk, as
        Glance's store does not have it: a node that takes the image over gets it again.
    :ivar of_each: whether it is of each node in the full run.
    """

    name: str
    seconds: float
    full_seconds: float = 0.0
    moves: bool | None = None
    is_gone: bool = False
    of_all: bool = False
    is_of_own_base: bool = False
    of_each: bool = True


CASES = (
    Case('killed', 25, moves=True, is_gone=True),
    Case('service-killed', 25, is_gone=True),
    Case('power-loss', 25, moves=True, is_gone=True),
    Case('frozen', 25, moves=True, is_gone=True),
    Case('disk-hangs', 35, is_of_own_base=True),
    Case('cut-from-database', 30),
    Case('cut-from-bus', 35),
    Case('full-disk', 15),
    Case('drained', 5, moves=True),
    Case('clock-moved', 15, moves=False),
    Case('got-again', 25, moves=True, is_gone=True, is_of_own_base=True, of_each=False),
    Case('database-away', 60, 600, moves=False, of_all=True, of_each=False),
    Case('killed-at', 25, moves=True, is_gone=True, of_each=False))
_AT = CASES[-1]


@dataclasses.dataclass(frozen=True)
class Turn:
    """A case of a node.

    :ivar case: what fails.
    :ivar node: number of the node, from 1 on; 0 for all of them, or for one that is found later.
    :ivar seconds: for which it lasts at least.
    :ivar step: at which the node is killed; empty for a case of no step.
    """

    case: Case
    node: int
    seconds: float
    step: str = ''

    @property
    def name(self) -> str:
        """What fails, for people."""
        return f'{self.case.name} {self.step}'.rstrip()

    @property
    def who(self) -> str:
        """The node's name, for people."""
        if self.node:
            return node_name(self.node)
        if self.step:
            return 'the home of most images'
        return 'all' if self.case.of_all else 'the home of an image that is in no store'


def chosen(names: Sequence[str], is_quick: bool) -> list[Turn]:
    """Return the turns that are asked for. Pure.

    :param names: of cases and steps, or parts of their names; all are, where there are none.
    :param is_quick: each case of one node; else of each.
    :raises ValueError: if there is no such name; it tells which there are.
    """
    # Where a name is whole, others that it is a part of are not meant.
    known = {case.name for case in CASES} | set(STEPS)
    wanted = {name for name in names if name in known} | {
        one for name in names if name not in known for one in known if name in one}
    for name in names:
        if name != DELETION and not any(name in one for one in known):
            raise ValueError(f'{name}: none of the cases ({", ".join(case.name for case in CASES)},'
                             f' {DELETION}) and steps ({", ".join(STEPS)})')
    if not names or _AT.name in wanted:
        wanted |= set(_QUICK_STEPS if is_quick else STEPS)
    cases = [case for case in CASES if case is not _AT and (not names or case.name in wanted)]
    at_steps = [Turn(_AT, 0, _AT.seconds, step) for step in STEPS if step in wanted]
    if is_quick:
        # One after the other: images that a node has lost stay with the others.
        return [*(Turn(case, 0 if case.of_all or case.is_of_own_base else number % NODES + 1,
                       case.seconds) for number, case in enumerate(cases)), *at_steps]
    return [*(Turn(case, node, case.full_seconds or case.seconds) for case in cases for node in (
        *((0,) if case.of_all or case.is_of_own_base else ()),
        *(range(1, NODES + 1) if case.of_each else ()))), *at_steps]


@dataclasses.dataclass(frozen=True)
class NodeOutcome(Outcome):
    """What came of a case.

    :ivar node: the node that failed; ``all``.
    :ivar moved: images that have another home than before.
    :ivar homes: images whose home the node was.
    :ivar seconds_paused: the longest for which a guest was paused.
    :ivar seconds_unanswered: the longest until a read was answered or its guest paused.
    :ivar seconds_back: from the node's return until all was as it is to be.
    :ivar recorded_twice: images.
    :ivar removed: what was removed of a node that did not do that.
    """

    node: str = ''
    moved: int = 0
    homes: int = 0
    seconds_paused: float = 0.0
    seconds_unanswered: float = 0.0
    seconds_back: float = 0.0
    recorded_twice: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def failed_boot(self) -> bool:
        """Whether something did not come to its end, or was done that may never be."""
        return super().failed_boot or bool(self.recorded_twice or self.removed)

    @property
    def is_wrong(self) -> bool:
        """Whether something is not as it has to be."""
        return super().is_wrong or self.failed_boot


def longest_gap(ends: Iterable[float], since: float, now: float) -> float:
    """Return the longest time in which a guest had no answer. Pure.

    :param ends: of its reads, in monotonic seconds.
    :param since: from when on.
    :param now: until when.
    """
    moments = [since, *sorted(one for one in ends if since < one < now), now]
    return max(after - before for before, after in itertools.pairwise(moments))


def faults_of(turn: Turn, figures: Sequence[Figures], gaps: Sequence[float], moved: int,
              homes: int) -> list[str]:
    """Return what is not as it has to be of a case. Pure.

    :param figures: of each guest.
    :param gaps: of each guest, in seconds.
    :param moved: images that have another home than before.
    :param homes: images whose home the node was.
    """
    case, found = turn.case, []
    if not homes:
        found.append('the node worked on no image: nothing failed')
    if case.moves and moved < homes:
        found.append(f'{homes - moved} of {homes} images have not got another home')
    if case.moves is False and moved:
        found.append(f'{moved} images have got another home, and their node works')
    if moved > homes:
        found.append(f'{moved - homes} images of nodes that work have got another home')
    if (longest := max((one.unanswered for one in figures), default=0.0)) > MOST_SECONDS:
        found.append(f'a read waited for {longest:.1f} s, and its guest ran')
    late = [gap for gap in gaps if gap > ON_SECONDS]
    if late:
        found.append(f'{len(late)} guests did not read for up to {max(late):.1f} s')
    return found


Rows = Mapping[str, Sequence[Mapping[str, object]]]


def unsettled(rows: Rows) -> list[str]:
    """Return what the database's rows say is under way, or not as it is to be. Pure."""
    names = {row['id']: row['name'] for row in rows['storage_nodes']}
    homes = {row['image_id']: row['node_id'] for row in rows['images']}
    found = [f'image {row["image_id"]} is {row["standing"]}, {row["goal"] or "no goal"}'
             for row in rows['images']
             if row['standing'] != 'done' or row['goal'] or not row['base_path']
             or not row['cache_file']]
    found += [f'{row["kind"]} {row["name"]} of image {row["image_id"]} is {row["state"]} on'
              f' {names.get(row["node_id"])}, and'
              f' {names.get(homes.get(row["image_id"]))} works on it' for row in rows['files']
              if row['state'] != 'ready' or homes.get(row['image_id']) != row['node_id']]
    return found


def files_of(rows: Rows, nodes: Collection[str]) -> set[str]:
    """Return what the database says that some nodes have, and the nodes themselves. Pure.

    What is being made, or removed, is left out.
    """
    names = {row['id']: str(row['name']) for row in rows['storage_nodes']}
    return {f'the node {name}' for name in names.values() if name in nodes} | {
        f'row of {row["name"]} of image {row["image_id"]} on {names[row["node_id"]]}'
        for row in rows['files'] if names.get(row['node_id']) in nodes and row['state'] == 'ready'}


def homes_of(rows: Rows) -> dict[str, str]:
    """Return the name of the node that works on each image. Pure."""
    names = {row['id']: str(row['name']) for row in rows['storage_nodes']}
    return {str(row['image_id']): names[row['node_id']] for row in rows['images']}


def moved_between(before: Rows, after: Rows) -> set[str]:
    """Return the images that another node works on, or has worked on meanwhile. Pure."""
    terms = {row['image_id']: row['term'] for row in before['images']}
    return {str(row['image_id']) for row in after['images']
            if terms.get(row['image_id'], row['term']) != row['term']}


def line(one: Outcome) -> str:
    """Return what is told of a case beside the line of its run."""
    assert isinstance(one, NodeOutcome)
    return f'{one.node}: {one.moved} of {one.homes} images moved, paused' \
        f' {one.seconds_paused} s, unanswered {one.seconds_unanswered} s, back after' \
        f' {one.seconds_back} s' + ''.join(
            f'; {what}: {", ".join(names)}' for what, names in (
                ('recorded twice', one.recorded_twice), ('removed', one.removed)) if names)

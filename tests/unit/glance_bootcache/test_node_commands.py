"""What operators see of storage nodes, and what they want of them."""

import dataclasses

import pytest
import sqlalchemy as sa
from fakes_clock import Clock

from bootcache.exception import DatabaseAway, RequestRefused
from bootcache.manifest import Manifest
from bootcache.rpc.messages import ListNodes, NodeWish, SetNodeWish
from glance_bootcache.db.models import StorageNodeRow
from glance_bootcache.nodes import node
from glance_bootcache.nodes.commands import NodeCommands
from glance_bootcache.nodes.membership import Membership, NodeRecord
from glance_bootcache.nodes.node import StorageNode
from glance_bootcache.storage.store import ImageStore

IMAGES = [f'{number:08x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in range(3)]


class Cloud:
    """Storage nodes in a database, as the first of them sees them."""

    def __init__(self, database, path, names):
        self.database, self.clock = database, Clock()
        self.numbers = {name: StorageNode(database, str(path / f'{name}.json'), name,
                                          lambda seconds: None).id for name in names}
        own = self.numbers[names[0]]
        self.store = ImageStore(str(path), database, own)
        self.membership = Membership(own, self.clock)
        self.commands = NodeCommands(database, self.membership, self.store)
        self.rows = {number: NodeRecord(number, name, 1) for name, number in self.numbers.items()}
        self.look()

    def look(self):
        """See the rows; what operators want is in the database."""
        wishes = dict(self.database.read(lambda connection: connection.execute(
            sa.select(StorageNodeRow.id, StorageNodeRow.wish)).tuples().all()))
        self.rows = {number: dataclasses.replace(row, wish=wishes[number] and NodeWish(
            wishes[number])) for number, row in self.rows.items()}
        self.membership.observe(self.rows.values())

    def pass_by(self, seconds, *silent):
        while seconds > 0:
            self.clock.now += min(5, seconds)
            seconds -= 5
            for number in {*self.rows} - {self.numbers[name] for name in silent}:
                self.rows[number] = dataclasses.replace(self.rows[number],
                                                        beat=self.rows[number].beat + 1)
            self.look()

    def listed(self, key):
        return {entry['name']: entry[key] for entry in self.commands.list_nodes()}


@pytest.fixture
def cloud(database, tmp_path):
    return Cloud(database, tmp_path, ['b', 'a', 'c'])


def test_all_nodes_are_listed_by_name(cloud):
    number = cloud.numbers['a']
    cloud.rows[number] = dataclasses.replace(
        cloud.rows[number], is_restored=True, rpc='2.1', look_rules=3, free_bytes=7)
    cloud.look()
    cloud.store.add(Manifest(IMAGES[0]))
    for image in IMAGES[1:]:
        cloud.store.add(Manifest(image), number)
    a, b, c = cloud.commands.list_nodes()
    assert a == {'name': 'a', 'state': 'up', 'wish': None, 'restored': True, 'silent': 0.0,
                 'images': 2, 'free_bytes': 7, 'rpc': '2.1', 'answers': False}
    assert (b['name'], b['images'], b['answers']) == ('b', 1, True)
    assert (c['name'], c['images'], c['answers'], c['restored']) == ('c', 0, False, False)


def test_a_node_that_has_seen_nobody_yet_lists_none(cloud):
    commands = NodeCommands(cloud.database, Membership(1), cloud.store)
    assert commands.list_nodes() == []


def test_states_and_wishes_are_listed(cloud):
    assert cloud.commands.set_wish('c', NodeWish.DRAINED)
    cloud.pass_by(20, 'a')
    assert cloud.listed('state') == {'a': 'away', 'b': 'up', 'c': 'up'}
    assert cloud.listed('wish') == {'a': None, 'b': None, 'c': 'drained'}
    assert cloud.listed('silent') == {'a': 20.0, 'b': 0.0, 'c': 0.0}
    cloud.pass_by(580, 'a')
    assert cloud.listed('state')['a'] == 'out'


def test_a_node_is_drained_and_works_as_all_others_again(cloud):
    assert cloud.commands.set_wish('c', NodeWish.DRAINED)
    cloud.look()
    assert not cloud.membership.node(cloud.numbers['c']).takes_images
    assert cloud.commands.set_wish('c', NodeWish.DRAINED), 'it is already'
    assert cloud.commands.set_wish('c', None)
    cloud.look()
    assert cloud.membership.node(cloud.numbers['c']).takes_images
    assert cloud.commands.set_wish('c', None)


def test_the_node_that_answers_may_be_drained_as_well(cloud):
    assert cloud.commands.set_wish('b', NodeWish.DRAINED)
    cloud.look()
    assert not cloud.membership.takes_images


def test_the_last_one_that_takes_images_is_not_drained(cloud):
    assert cloud.commands.set_wish('a', NodeWish.DRAINED)
    cloud.look()
    assert cloud.commands.set_wish('b', NodeWish.DRAINED)
    cloud.look()
    with pytest.raises(RequestRefused, match='no other storage node works that could take the'
                                             ' images of c'):
        cloud.commands.set_wish('c', NodeWish.DRAINED)
    assert cloud.commands.set_wish('a', None)
    cloud.look()
    assert cloud.commands.set_wish('c', NodeWish.DRAINED)


def test_nor_is_one_while_all_others_are_away(cloud):
    cloud.pass_by(20, 'a', 'c')
    with pytest.raises(RequestRefused, match='no other storage node works'):
        cloud.commands.set_wish('b', NodeWish.DRAINED)
    assert cloud.commands.set_wish('a', NodeWish.DRAINED), 'this one takes its images'


def test_a_node_that_works_is_not_forgotten(cloud):
    for name in 'a', 'b':
        with pytest.raises(RequestRefused, match=f'the storage node {name} works'):
            cloud.commands.set_wish(name, NodeWish.FORGOTTEN)
    cloud.pass_by(19, 'a')
    with pytest.raises(RequestRefused, match='ask again after 20 s'):
        cloud.commands.set_wish('a', NodeWish.FORGOTTEN)
    cloud.pass_by(1, 'a')
    assert cloud.commands.set_wish('a', NodeWish.FORGOTTEN)
    cloud.look()
    assert cloud.listed('wish')['a'] == 'forgotten'


def test_nobody_is_forgotten_by_a_node_that_cannot_judge(cloud):
    """Its database was away: so long nobody's beat was seen."""
    cloud.pass_by(600, 'a')
    cloud.clock.now += 60
    with pytest.raises(RequestRefused, match='works'):
        cloud.commands.set_wish('a', NodeWish.FORGOTTEN)


@pytest.mark.parametrize('wish', [None, *NodeWish])
def test_a_node_that_is_not_known_is_told_to_be_none(cloud, wish):
    assert cloud.commands.set_wish('nobody', wish) is False
    assert cloud.listed('wish') == {'a': None, 'b': None, 'c': None}


@pytest.mark.parametrize('wish', NodeWish)
def test_a_node_that_is_alone_has_nobody_to_take_its_images(database, tmp_path, wish):
    cloud = Cloud(database, tmp_path, ['a'])
    with pytest.raises(RequestRefused):
        cloud.commands.set_wish('a', wish)
    assert cloud.commands.set_wish('a', None)


def test_what_cannot_be_written_is_told(cloud, monkeypatch):
    def away(work):
        raise DatabaseAway('it does not answer')

    monkeypatch.setattr(cloud.database, 'write', away)
    with pytest.raises(DatabaseAway):
        cloud.commands.set_wish('a', NodeWish.DRAINED)


def test_what_a_node_wants_is_there_after_its_restart_unless_it_was_forgotten(
        cloud, tmp_path):
    """One that comes back is a node as any other."""
    assert cloud.commands.set_wish('c', NodeWish.DRAINED)
    assert node.wish(cloud.database, 'a', NodeWish.FORGOTTEN)
    for name in 'a', 'c':
        again = StorageNode(cloud.database, str(tmp_path / f'{name}.json'), name,
                            lambda seconds: None)
        assert again.id == cloud.numbers[name] and not again.is_restored
    cloud.look()
    assert cloud.listed('wish') == {'a': None, 'b': None, 'c': 'drained'}


def test_operators_ask_by_rpc(house):
    """The house is alone, and has not beaten."""
    assert house.endpoints.say(ListNodes.method) == []
    assert house.endpoints.say(SetNodeWish.method, name='storage-2', wish=None) is False
    assert house.endpoints.say(SetNodeWish.method, name='storage-1', wish=None) is True
    with pytest.raises(RequestRefused):
        house.endpoints.say(SetNodeWish.method, name='storage-1', wish='drained')
    assert house.rejected.counts() == {}

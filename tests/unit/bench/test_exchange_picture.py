"""The picture of who gives to whom is what the storage service's order says, and is in the page."""

import pathlib

from bench.exchange import picture

PAGES = pathlib.Path(__file__).resolve().parents[3] / 'doc' / 'source'


def test_the_storage_node_gives_to_two_and_racks_among_themselves():
    arrows = picture.arrows(['A', 'B'] * 5)
    assert [arrow.taker for arrow in arrows if arrow.kind == 'storage'] == [1, 2]
    assert {arrow.taker for arrow in arrows if arrow.kind == 'between'} == {2, 3, 4}
    takers = [arrow.taker for arrow in arrows]
    assert [takers.count(number) for number in range(1, 11)] == [1] + 9 * [2]
    assert all(arrow.giver < arrow.taker for arrow in arrows)


def test_the_page_has_what_the_script_draws(tmp_path):
    picture.draw(tmp_path / 'drawn.svg')
    name = 'exchange-peers.svg'
    assert f'images/{name}' in (PAGES / 'exchange.rst').read_text()
    there = (PAGES / 'images' / name).read_text()
    # Texts and lines; places of text depend on the machine's fonts.
    assert there.count('<path') == (tmp_path / 'drawn.svg').read_text().count('<path')
    assert 'within a rack' in there

"""What a process that exchanges files is told: nobody is found, few may be met, all is bounded."""

import dataclasses
import ipaddress

import pytest

from bootcache import exception
from bootcache.exchange import limits
from bootcache.exchange.limits import ExchangeLimits

OURS = ExchangeLimits('10.1.0.5', 10811, ('10.1.0.0/16', 'fd00:1::/64'))


def may_meet(address, networks=OURS.networks):
    """As libtorrent reads the rules: the last one that has an address counts."""
    address, may = ipaddress.ip_address(address), None
    for first, last, is_allowed in limits.rules(networks):
        first, last = ipaddress.ip_address(first), ipaddress.ip_address(last)
        if first.version == address.version and first <= address <= last:
            may = is_allowed
    return may


@pytest.mark.parametrize('address, may', [
    ('10.1.0.0', True), ('10.1.255.255', True), ('10.2.0.0', False), ('0.0.0.0', False),
    ('255.255.255.255', False), ('127.0.0.1', False), ('fd00:1::5', True), ('fd00:2::5', False),
    ('::', False), ('::1', False), ('ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff', False)])
def test_nobody_is_met_but_hosts_of_the_networks(address, may):
    assert may_meet(address) is may


def test_without_networks_nobody_is_met():
    assert may_meet('10.1.0.5', ()) is False


@pytest.mark.parametrize('what', ['enable_dht', 'enable_lsd', 'enable_upnp', 'enable_natpmp',
                                  'enable_incoming_utp', 'enable_outgoing_utp'])
def test_what_finds_strangers_is_off(what):
    assert limits.settings(OURS)[what] is False


@pytest.mark.parametrize('address, literal', [
    ('10.1.0.5', '10.1.0.5'), ('fd00:1::5', '[fd00:1::5]')])
def test_it_listens_with_tls_at_one_address_and_connects_from_it(address, literal):
    told = limits.settings(dataclasses.replace(OURS, address=address))
    assert told['listen_interfaces'] == f'{literal}:10811s'
    assert told['outgoing_interfaces'] == address


def test_a_source_sends_each_piece_to_few():
    source, others = limits.queue(False), limits.queue(True)
    assert source['max_allowed_in_request_queue'] < others['max_allowed_in_request_queue']


@pytest.mark.parametrize('change, says', [
    ({'address': 'host-1'}, 'exchange_address=host-1 is no address'),
    ({'address': '0.0.0.0'}, 'that of all interfaces'), ({'address': '::'}, 'that of all'),
    ({'networks': ()}, 'exchange_networks is empty'),
    ({'networks': ('10.1.0.1/16',)}, 'has host bits set'),
    ({'networks': ('nonsense',)}, 'exchange_networks'),
    ({'networks': ('10.2.0.0/16',)}, 'no network with this host')])
def test_what_makes_no_sense_is_told_with_its_option(change, says):
    limits.check(OURS)
    with pytest.raises(exception.ConfigurationError, match=says):
        limits.check(dataclasses.replace(OURS, **change))

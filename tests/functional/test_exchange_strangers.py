"""Who is no member of an exchange gets nothing, from wherever it comes."""

import shutil
import socket
import ssl

import pytest
from exchanging import fetch

from bootcache import exception


def test_of_another_ca_nobody_gets_anything(swarm, other_ca):
    source, stranger = swarm.source(), swarm.host(ca=other_ca)
    with pytest.raises(exception.ExchangeStalled):
        fetch(swarm, stranger, source)
    assert source.client.files()['given'] == 0


def test_a_certificate_for_nbd_admits_nobody(swarm):
    source = swarm.source()
    stranger = swarm.host()
    stranger.stop()
    folder = stranger.options['tls_directory']
    for kind in 'cert', 'key':
        shutil.copy(f'{folder}/client-{kind}.pem', f'{folder}/exchange-{kind}.pem')
    stranger.start(has_to=False)
    assert 'does not have the DNS name bootcache-exchange' in stranger.log()
    # And one that does not look at its own.
    assert not admits(source, swarm.torrent.name, f'{folder}/client-cert.pem',
                      f'{folder}/client-key.pem')


# Of the network whose hosts may connect.
STRANGER = '127.0.7.200', 0


def handshake(name):
    """What a peer sends first: the file is named by the first 20 bytes of its hash."""
    return (b'\x13BitTorrent protocol' + bytes(8) + bytes.fromhex(name)[:20]
            + b'-XX0000-000000000000')


def admits(host, name, *certificate):
    """Whether a host answers who connects by TLS, with a certificate and key or with none.

    TLS 1.3 tells a client after its own part that it was refused: by an alert, or by closing,
    whichever comes first.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(*certificate)
    # libtorrent finds the file by the server's name, its hash.
    with socket.create_connection(host.peer, 30, STRANGER) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=name[:40]) as connection:
                connection.sendall(handshake(name))
                return connection.recv(20) == handshake(name)[:20]
        except (ssl.SSLError, ConnectionError):
            return False


def test_a_member_is_admitted(swarm):
    """What the tests of strangers try is what a member does."""
    source, member = swarm.source(), swarm.host()
    folder = member.options['tls_directory']
    assert admits(source, swarm.torrent.name, f'{folder}/exchange-cert.pem',
                  f'{folder}/exchange-key.pem')


def test_who_shows_no_certificate_gets_nothing(swarm):
    source = swarm.source()
    assert not admits(source, swarm.torrent.name)
    # Without TLS.
    with socket.create_connection(source.peer, 10, STRANGER) as connection:
        connection.sendall(handshake(swarm.torrent.name))
        assert connection.recv(100)[:1] != b'\x13'
    assert source.client.files()['given'] == 0


def test_other_networks_are_not_met_whatever_their_certificate(swarm):
    source = swarm.source(exchange_networks='127.0.7.1/32')
    one = swarm.host()
    with pytest.raises(exception.ExchangeStalled):
        fetch(swarm, one, source)
    assert source.client.files()['given'] == 0

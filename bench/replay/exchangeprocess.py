"""The product's exchange as a process of a child: of the storage node, or of a host."""

import subprocess
import sys
import time
from pathlib import Path

from bootcache import exception
from bootcache.exchange.client import ExchangeClient

# Not the product's own: exporters of other rows are there.
PORT = 10820
_START_SECONDS = 600


def start(directory: Path, address: str, tls_directory: str
          ) -> tuple[subprocess.Popen[bytes], str]:
    """Start it in this process's namespace, and wait until it answers.

    :param directory: for its files; is made.
    :returns: the process, and the path of its socket.
    :raises RuntimeError: if it does not start.
    """
    directory.mkdir()
    conf, socket = directory / 'conf', f'{directory}/run/control.sock'
    conf.write_text(f'[bootcache]\nexchange_address = {address}\nexchange_port = {PORT}\n'
                    f'exchange_networks = 10.77.0.0/16\ntls_directory = {tls_directory}\n'
                    f'exchange_socket = {socket}\n')
    with open(directory / 'log', 'wb') as log:
        process = subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-m', 'bootcache.exchange.daemon', '--config-file',
             str(conf)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    deadline = time.monotonic() + _START_SECONDS
    while not _answers(ExchangeClient(socket)):
        if time.monotonic() > deadline or process.poll() is not None:
            raise RuntimeError(f'an exchange does not start: {(directory / "log").read_text()}')
        time.sleep(0.1)
    return process, socket


def _answers(client: ExchangeClient) -> bool:
    try:
        client.files()
    except exception.ExchangeFailed:
        return False
    return True

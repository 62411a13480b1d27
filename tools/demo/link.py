"""The demo's links: what Glance, the storage node and Ceph send over loopback is held to a rate.

Without it a whole image takes no time at all on its way to the host, as on no network there is.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator

DEVICE = "lo"
# By its handle the demo knows its own, also after it was killed.
HANDLE = "b0ca:"
_BURST = "256k"


class LinkError(RuntimeError):
    """The rate cannot be set; the message says why, and what to do."""


def parse(text: str) -> int | None:
    """Read ``--link``: Mbit/s, or None for ``none``.

    :raises ValueError: if it is neither.
    """
    if text == "none":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise ValueError(f"{text!r} is neither none nor a number of Mbit/s from 1 to 100000")
    return int(text)


@contextlib.contextmanager
def shaped(mbit: int | None, senders: Iterable[Iterable[int]], stays: bool) -> Iterator[None]:
    """Hold what is sent from ports to a rate.

    :param mbit: Mbit/s of each sender; None leaves all as it is.
    :param senders: the ports of each, on loopback.
    :param stays: whether it is left so, until remove() is called.
    :raises LinkError: if loopback is shaped already, or cannot be.
    """
    remove()
    if mbit is None:
        yield
        return
    if others := [one["kind"] for one in _qdiscs() if one["kind"] != "noqueue"]:
        raise LinkError(f"{DEVICE} has a queueing discipline already ({', '.join(others)}), which"
                        " is left as it is: tools/demo.sh --link none")  # fmt: skip
    _tc("qdisc", "add", "dev", DEVICE, "root", "handle", HANDLE, "htb")
    try:
        for number, ports in enumerate(senders, 1):
            flow = f"{HANDLE}{number}"
            _tc("class", "add", "dev", DEVICE, "parent", HANDLE, "classid", flow, "htb",
                "rate", f"{mbit}mbit", "burst", _BURST, "cburst", _BURST,
                "quantum", "65536")  # fmt: skip
            for port in ports:
                _tc("filter", "add", "dev", DEVICE, "parent", HANDLE, "protocol", "ip", "u32",
                    "match", "ip", "protocol", "6", "0xff", "match", "ip", "sport", str(port),
                    "0xffff", "flowid", flow)  # fmt: skip
        yield
    except BaseException:
        remove()
        raise
    if not stays:
        remove()


def remove() -> None:
    """Take the rate away that a demo has set, if one has."""
    if any(one["handle"] == HANDLE for one in _qdiscs()):
        _tc("qdisc", "del", "dev", DEVICE, "root")


def main() -> int:
    """End what a killed demo, or one with --keep, left."""
    try:
        remove()
    except LinkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _qdiscs() -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(_tc("-j", "qdisc", "show", "dev", DEVICE))
    return found


def _tc(*arguments: str) -> str:
    done = subprocess.run(["tc", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise LinkError(f"tc {' '.join(arguments)}: {done.stderr.strip()}; the demo runs without a"
                        " limit with tools/demo.sh --link none")  # fmt: skip
    return done.stdout


if __name__ == "__main__":
    raise SystemExit(main())

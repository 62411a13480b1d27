"""The demo's report: one table, report.json, its pictures, and what must hold."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

KINDS = ("stock-first", "stock-second", "bootcache-first", "bootcache-again")


@dataclass(frozen=True)
class Boot:
    """One measured boot.

    :ivar kind: one of KINDS.
    :ivar spawn_seconds: from the request to ACTIVE.
    :ivar login_seconds: from ACTIVE to the login prompt.
    :ivar bytes_to_host: image or cache bytes moved onto the host until the login prompt: what
        Glance and the exporter sent, and what the host read in Ceph itself.
    :ivar bytes_read_by_guest: by QEMU's count.
    :ivar bytes_from_base: read from the storage side's base, by the tap, or in Ceph, by librbd's
        count.
    :ivar requests_to_base: how many read requests that were.
    """

    kind: str
    spawn_seconds: float
    login_seconds: float
    bytes_to_host: int
    bytes_read_by_guest: int
    bytes_from_base: int
    requests_to_base: int


def table(boots: Sequence[Boot]) -> str:
    """The boots, a line each."""
    lines = [f"{'boot':16} {'spawn s':>8} {'login s':>8} {'to host MB':>11} {'guest read MB':>14}"
             f" {'from base MB':>13} {'requests':>9}"]  # fmt: skip
    for boot in boots:
        lines.append(
            f"{boot.kind:16} {boot.spawn_seconds:8.1f} {boot.login_seconds:8.1f}"
            f" {boot.bytes_to_host / 1e6:11.2f} {boot.bytes_read_by_guest / 1e6:14.2f}"
            f" {boot.bytes_from_base / 1e6:13.3f} {boot.requests_to_base:9d}"
        )
    return "\n".join(lines)


def store_line(store: dict[str, Any]) -> str:
    """Where Glance keeps its images, and by what the host read its base when all was compared."""
    kind = {"file": "Glance's images are files", "rbd": "Glance's images are in Ceph"}
    return (f"{kind[store['kind']]}, base_access = {store['base_access']}: of all of the image,"
            f" {store['read_from_exporter_bytes'] / 1e6:.1f} MB were read from the exporter,"
            f" {store['read_from_ceph_bytes'] / 1e6:.1f} MB by the host in Ceph")  # fmt: skip


def _of(boots: Sequence[Boot], kind: str) -> list[Boot]:
    return [boot for boot in boots if boot.kind == kind]


def broken_promises(document: dict[str, Any], boots: Sequence[Boot]) -> list[str]:
    """What does not hold, in bytes and requests; they are exact."""
    cache, working_set = document["cache_image"], document["working_set"]
    broken = []

    def must(holds: bool, text: str) -> None:
        if not holds:
            broken.append(text)

    for kind in KINDS:
        must(bool(_of(boots, kind)), f"there is no boot of kind {kind}")
    for boot in _of(boots, "bootcache-again"):
        must(boot.bytes_from_base == 0, f"a warm boot read {boot.bytes_from_base} bytes from"
             " the base")  # fmt: skip
        must(boot.bytes_to_host == 0, f"a warm boot moved {boot.bytes_to_host} bytes to the host")
    for boot in _of(boots, "bootcache-first"):
        must(boot.bytes_from_base < 0.01 * working_set["bytes"],
             f"the first boot read {boot.bytes_from_base} bytes from the base, 1 % of the working"
             f" set is {working_set['bytes'] // 100}")  # fmt: skip
        must(boot.bytes_to_host <= 1.1 * cache["bytes"],
             f"the first boot moved {boot.bytes_to_host} bytes to the host, over 1.1 times the"
             f" cache image's {cache['bytes']}")  # fmt: skip
        must(boot.bytes_to_host > 0, "the first boot fetched nothing: the host was not cold")
    for boot in _of(boots, "stock-first"):
        must(boot.bytes_to_host >= document["image"]["stored_bytes"],
             f"the stock boot moved {boot.bytes_to_host} bytes, less than the image")  # fmt: skip
    must(cache["bytes"] <= 1.02 * cache["data_bytes"],
         f"the cache image has {cache['bytes']} bytes, over 1.02 times its working set at its own"
         f" granularity, {cache['data_bytes']}")  # fmt: skip
    store = document["store"]
    # In Ceph it waits for OSDs, which have this machine's processors as well.
    must(store["kind"] != "file"
         or cache["build_seconds"] <= 2 * max(1.0, cache["data_bytes"] / 100e6),
         f"building took {cache['build_seconds']} s, over 2 s for each 100 MB")  # fmt: skip
    must(document["identical_to_base"], "the chain differs from the base")
    directly = store["base_access"] == "rbd"
    must(store["read_from_ceph_bytes" if directly else "read_from_exporter_bytes"] > 0
         and store["read_from_exporter_bytes" if directly else "read_from_ceph_bytes"] == 0,
         f"the base was not read as configured: {store_line(store)}")  # fmt: skip
    return broken


def seconds_verdict(boots: Sequence[Boot]) -> str:
    """How warm boots compare in seconds; they are noisy, so this is told and not judged."""
    stock = [boot.spawn_seconds + boot.login_seconds for boot in _of(boots, "stock-second")]
    warm = [boot.spawn_seconds + boot.login_seconds for boot in _of(boots, "bootcache-again")]
    difference = statistics.median(warm) - statistics.median(stock)
    spread = max(max(stock) - min(stock), max(warm) - min(warm))
    if len(stock) < 2 or len(warm) < 2:
        return (f"create to login: bootcache-again {difference:+.1f} s against stock-second, one"
                " boot each; --repeat shows the spread")  # fmt: skip
    within = "not worse" if difference <= spread else "WORSE"
    return (f"create to login: bootcache-again {difference:+.1f} s against stock-second (medians of"
            f" {len(warm)} and {len(stock)}), spread {spread:.1f} s: {within} beyond the"
            " spread")  # fmt: skip


def write(directory: Path, document: dict[str, Any], boots: Sequence[Boot]) -> None:
    """Write report.json."""
    directory.mkdir(parents=True, exist_ok=True)
    whole = {**document, "boots": [asdict(boot) for boot in boots]}
    (directory / "report.json").write_text(json.dumps(whole, indent=1) + "\n")


def draw_times(path: Path, boots: Sequence[Boot], note: str) -> None:
    """Draw the boots' times as bars: create to ACTIVE, and ACTIVE to login."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 0.5 * len(boots) + 2), dpi=120)
    labels = [f"{number}  {boot.kind}" for number, boot in enumerate(boots, 1)]
    spawn = [boot.spawn_seconds for boot in boots]
    axes.barh(labels, spawn, color="#d55e00", label="create to ACTIVE")
    axes.barh(labels, [boot.login_seconds for boot in boots], left=spawn, color="#0072b2",
              label="ACTIVE to login")  # fmt: skip
    for row, boot in enumerate(boots):
        axes.text(boot.spawn_seconds + boot.login_seconds, row,
                  f" {boot.bytes_to_host / 1e6:.0f} MB to host", va="center")  # fmt: skip
    axes.invert_yaxis()
    axes.set_xlim(right=1.25 * max(boot.spawn_seconds + boot.login_seconds for boot in boots))
    axes.set_xlabel("seconds")
    axes.set_title(note)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)

"""tools/demo.sh after set-up: bring the cloud up, run the steps, write the report."""

import argparse
import dataclasses
import shutil
import sys
from pathlib import Path
from typing import Any

from tools.ceph.cluster import CephError
from tools.cloud.bootcache import BootcacheCloud
from tools.cloud.client import ClientError
from tools.cloud.cloud import print_progress
from tools.cloud.processes import ServiceError
from tools.demo import link, nodekilled, report, snapshots, stores
from tools.demo.steps import Demo


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tools/demo.sh", description=__doc__)
    parser.add_argument("--image", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, default=Path("demo-report"), metavar="DIRECTORY",
                        help="where the report goes (default: demo-report)")  # fmt: skip
    parser.add_argument("--store", choices=stores.STORES, default=stores.FILE,
                        help="where Glance keeps its images: in files, or in a small real Ceph,"
                        " in which the host reads bases itself (default: file)")  # fmt: skip
    parser.add_argument("--repeat", type=int, default=1, metavar="N",
                        help="repeat the second and later boots N times, to see their spread"
                        " (default: 1)")  # fmt: skip
    parser.add_argument("--link", type=parse_link, default=parse_link("1000"), metavar="MBIT|none",
                        help="hold what Glance and the storage node send to a rate"
                        " (default: 1000 Mbit/s)")  # fmt: skip
    parser.add_argument("--nodes", type=int, default=1, choices=range(1, 4), metavar="N",
                        help="with 2 or 3: in the end so many storage nodes serve, and the one that"
                        " eight servers read from is killed (default: 1)")  # fmt: skip
    parser.add_argument("--keep", action="store_true",
                        help="leave the cloud up, and say how to use and stop it")  # fmt: skip
    return parser.parse_args()


def parse_link(text: str) -> int | None:
    """``--link``, as argparse wants it."""
    try:
        return link.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def bring_up(cloud: BootcacheCloud, store: stores.Store) -> None:
    """Bring the cloud up, with bootcache configured."""
    cloud.configure_bootcache()
    store.bring_up(cloud)
    # What is measured are boots; settling would fetch the base beside them, and copy disks.
    cloud.layer("nova", "70-demo", {"bootcache": {"settle_bandwidth": 0, "landing_bandwidth": 0}})
    cloud.up()


def run(cloud: BootcacheCloud, store: stores.Store, options: argparse.Namespace) -> list[str]:
    """Run the demo; the promises that do not hold."""
    demo = Demo(cloud, store, options.image, options.report, cloud.progress)
    cloud.progress("== 1. stock Nova, the baseline")
    demo.baseline(options.repeat)
    cloud.progress("== 2. the same image, registered with bootcache on")
    image = demo.register()
    cloud.progress("== 3. servers that boot from the cache image")
    server = demo.boot_with_bootcache(image["image_id"], options.repeat)
    demo.snapshot(server, snapshots.BOOTCACHE)
    identical, from_base = demo.compare(image["image_id"])
    cloud.progress("== 4. the gateway is killed below a server")
    killed = demo.kill_the_gateway(image["image_id"])
    cloud.progress("== 5. the report")
    kvm = (cloud.layout.state / "kvm").read_text().split()[1] == "yes"
    document = {
        "image": {"virtual_bytes": image["virtual_bytes"], "stored_bytes": image["stored_bytes"]},
        "working_set": {"bytes": image["working_set_bytes"],
                        "extents": image["working_set_extents"],
                        "boot_seconds": image["boot_seconds"], "ended_by": image["ended_by"]},
        "cache_image": {"bytes": image["cache_bytes"], "data_bytes": image["cache_data_bytes"],
                        "cluster_bytes": image["cache_cluster_bytes"],
                        "extents": image["cache_extents"],
                        "build_seconds": image["build_seconds"], "sha256": image["cache_sha256"]},
        "store": {"kind": options.store, "base_access": store.base_access,
                  "read_from_exporter_bytes": from_base.from_exporter,
                  "read_from_ceph_bytes": from_base.from_ceph},
        "link_mbit": options.link,
        "virtualization": "kvm" if kvm else "tcg",
        "identical_to_base": identical,
        "gateway_killed": dataclasses.asdict(killed),
        "snapshots": snapshots.to_json(demo.snapshots),
    }  # fmt: skip
    document["seconds"] = report.seconds_verdict(demo.boots)
    report.write(options.report, document, demo.boots)
    demo.draw_pattern(image["image_id"])
    demo.openstack.delete_server(server)
    note = "" if kvm else " (TCG: the guest's CPU hides most of the gain)"
    report.draw_times(options.report / "boot-times.png", demo.boots, f"Boot times{note}")
    print(report.table(demo.boots))
    print(report.store_line(document["store"]))
    print("the host's link: " + ("loopback, as it is" if options.link is None else
                                 f"{options.link} Mbit/s"))  # fmt: skip
    print(f"image {image['stored_bytes'] / 1e6:.1f} MB, working set"
          f" {image['working_set_bytes'] / 1e6:.1f} MB in {image['working_set_extents']} extents,"
          f" cache image {image['cache_bytes'] / 1e6:.1f} MB, built in"
          f" {image['build_seconds']:.2f} s")  # fmt: skip
    print(report.seconds_verdict(demo.boots) + note)
    print(killed)
    for line in snapshots.lines(demo.snapshots):
        print(line)
    print(f"written: {options.report}/report.json, working-set.json, read-pattern.png,"
          " boot-times.png")
    broken = [*report.broken_promises(document, demo.boots), *killed.broken_promises(),
              *snapshots.broken_promises(demo.snapshots)]  # fmt: skip
    if options.nodes > 1:
        cloud.progress(f"== 6. one of {options.nodes} storage nodes is killed")
        document["node_killed"] = kill_a_node(cloud, options)
        report.write(options.report, document, demo.boots)
    return broken


def kill_a_node(cloud: BootcacheCloud, options: argparse.Namespace) -> dict[str, Any]:
    """Kill a storage node below servers, and tell what they saw; for the report."""
    found = nodekilled.kill_the_node(cloud, options.nodes, options.report / "node-killed.png")
    print(found)
    print(f"written: {options.report}/node-killed.png")
    return dataclasses.asdict(found)


def main() -> int:
    """Run it; 0 only if every step really happened and every promise holds."""
    options = parse_arguments()
    cloud = BootcacheCloud(progress=print_progress())
    store = stores.make(options.store, cloud.home.parent)
    # A cloud that cannot be brought up because it is somebody else's is not ours to end.
    ours = not cloud.home.exists()
    broken = ["the demo did not run to its end"]
    try:
        options.report.mkdir(parents=True, exist_ok=True)
        bring_up(cloud, store)
        ours = True
        with link.shaped(options.link, store.senders(cloud), stays=options.keep):
            broken = run(cloud, store, options)
    except (CephError, ClientError, ServiceError, link.LinkError) as error:
        print(f"error: {error}", file=sys.stderr)
    finally:
        if not ours:
            print(f"The cloud in {cloud.home} was there before, and is left as it is.\n"
                  "End and remove it:            tools/demo.sh --down",
                  file=sys.stderr)  # fmt: skip
            if not store.was_there:
                store.down()
        elif options.keep:
            print(f"The cloud stays up. Use it:   . {cloud.openrc}\n"
                  f"bootcache's command:          bootcache --config-file {cloud.config_file}\n"
                  f"{store.usage()}"
                  "Stop it:                      tools/demo.sh --down")  # fmt: skip
        else:
            if broken and cloud.layout.log.is_dir():
                shutil.copytree(cloud.layout.log, options.report / "log", dirs_exist_ok=True)
                print(f"the services' logs are in {options.report}/log", file=sys.stderr)
            cloud.down(wipe=True)
            store.down()
    for promise in broken:
        print(f"BROKEN: {promise}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())

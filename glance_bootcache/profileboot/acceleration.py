"""Whether KVM really runs guests here, not only whether /dev/kvm exists."""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

# A boot sector that does what a guest's kernel needs: it enters 64-bit mode with paging, turns SSE
# on and uses it, counts down from 100 million, writes the greeting to port 0xe9 and leaves QEMU
# through port 0xf4. Some nested hypervisors have a /dev/kvm that interprets a guest's kernel
# instruction by instruction: boot sectors run there, but neither SSE nor that loop in time.
BOOT_SECTOR = bytes.fromhex(
    "fa31c08ed88ec08ed0bc007cbf0010b90018fcf3abc70600100320c70600200330c7060030830066b8a00000000f"
    "22e066b8001000000f22d866b9800000c00f32660d000100000f300f20c0660d010000800f22c00f0116c87cea5f"
    "7c08000f20c06683e0fb6683c8020f22c0b8a00600000f22e00f28c8660fefc0b900e1f505ffc975fc66b810008e"
    "d88ed0488d3512000000b90900000066bae900f36e31c0e6f4f4ebfd626f6f746361636865900000000000000000"
    "ffff0000009aaf00ffff00000092af001700b07c0000"
)
GREETING = b"bootcache"
TIMEOUT = 10.0


def guest_runs(
    accelerator: str, timeout: float = TIMEOUT, env: Mapping[str, str] | None = None
) -> bool:
    """Boot the trial guest with an accelerator of QEMU's, and say whether its greeting arrived.

    :param accelerator: kvm or tcg.
    :param timeout: seconds.
    :param env: environment of the trial's process; None for this process's own.
    """
    with tempfile.TemporaryDirectory(prefix="bootcache-kvm-") as directory:
        disk = Path(directory, "disk")
        disk.write_bytes(BOOT_SECTOR.ljust(510, b"\0") + b"\x55\xaa" + bytes(1 << 20))
        argv = ["qemu-system-x86_64", "-accel", accelerator, "-m", "64", "-nodefaults"]
        argv += ["-display", "none", "-no-reboot", "-drive", f"file={disk},format=raw,if=ide"]
        argv += ["-chardev", "stdio,id=out", "-device", "isa-debugcon,iobase=0xe9,chardev=out"]
        argv += ["-device", "isa-debug-exit,iobase=0xf4"]
        try:
            done = subprocess.run(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, timeout=timeout, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return False
        return GREETING in done.stdout


def kvm_works(timeout: float = TIMEOUT, env: Mapping[str, str] | None = None) -> bool:
    """Say whether a guest runs with KVM on this machine; a failing trial takes all its time."""
    return os.access("/dev/kvm", os.R_OK | os.W_OK) and guest_runs("kvm", timeout, env)

"""Fill ROOT/data with the same incompressible files each time; list their sums in ROOT/etc.

usage: data.py ROOT SUMS, where SUMS is the program for them
"""
import hashlib
import os
import subprocess
import sys

# Some end inside a block or a cluster, as files do; 148 MB in all.
SIZES = (700, 5000, 40000, 131072, 300001, 1000000)
GROUPS = 100
# The guest reads every so many groups when it boots: 9 MB, all over the disk.
BOOT_EVERY = 18


def main(root, sums):
    lists = {name: [] for name in ("data", "boot")}
    for group in range(GROUPS):
        directory = f"data/{group:02d}"
        os.makedirs(os.path.join(root, directory))
        for number, size in enumerate(SIZES):
            path = f"{directory}/{number}"
            content = hashlib.shake_128(path.encode()).digest(size)
            with open(os.path.join(root, path), "wb") as out:
                out.write(content)
            lists["data"].append(path)
            if group % BOOT_EVERY == 5:
                lists["boot"].append(path)
    for name, paths in lists.items():
        lines = subprocess.run([os.path.abspath(sums), *paths], cwd=root, check=True,
                               stdout=subprocess.PIPE, text=True).stdout
        with open(os.path.join(root, "etc", name + ".sums"), "w") as out:
            out.write(lines.replace("  data/", "  /data/"))


main(sys.argv[1], sys.argv[2])

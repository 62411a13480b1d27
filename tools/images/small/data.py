"""Fill ROOT/data with the same incompressible files each time; list their sums in ROOT/etc."""
import hashlib
import os
import sys

# Some end inside a block or a cluster, as files do; 148 MB in all.
SIZES = (700, 5000, 40000, 131072, 300001, 1000000)
GROUPS = 100
# The guest reads every so many groups when it boots: 9 MB, all over the disk.
BOOT_EVERY = 18


def main(root):
    lists = {name: [] for name in ("data", "boot")}
    for group in range(GROUPS):
        directory = f"data/{group:02d}"
        os.makedirs(os.path.join(root, directory))
        for number, size in enumerate(SIZES):
            path = f"{directory}/{number}"
            content = hashlib.shake_128(path.encode()).digest(size)
            with open(os.path.join(root, path), "wb") as out:
                out.write(content)
            line = f"{hashlib.sha256(content).hexdigest()}  /{path}\n"
            lists["data"].append(line)
            if group % BOOT_EVERY == 5:
                lists["boot"].append(line)
    for name, lines in lists.items():
        with open(os.path.join(root, "etc", name + ".sha256"), "w") as out:
            out.writelines(lines)


main(sys.argv[1])

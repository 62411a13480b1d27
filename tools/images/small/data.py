"""Fill ROOT/data with files that are the same each time and do not compress, and list their sums below ROOT/etc."""
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
        directory = "data/%02d" % group
        os.makedirs(os.path.join(root, directory))
        for number, size in enumerate(SIZES):
            path = "%s/%d" % (directory, number)
            content = hashlib.shake_128(path.encode()).digest(size)
            with open(os.path.join(root, path), "wb") as out:
                out.write(content)
            line = "%s  /%s\n" % (hashlib.sha256(content).hexdigest(), path)
            lists["data"].append(line)
            if group % BOOT_EVERY == 5:
                lists["boot"].append(line)
    for name, lines in lists.items():
        with open(os.path.join(root, "etc", name + ".sha256"), "w") as out:
            out.writelines(lines)


main(sys.argv[1])

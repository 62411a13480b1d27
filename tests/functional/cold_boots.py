"""What the tests of cold boots read."""


from storage_node import MIB

from bootcache.workingset import Extent

SET = Extent(4 * MIB, 300_000), Extent(0, 4096)

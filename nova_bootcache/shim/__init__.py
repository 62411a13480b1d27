"""``nova.virt.bootcache``: where Nova's loader finds the driver.

Nova imports ``nova.virt.<compute_driver>`` and looks nowhere else, so setup.cfg installs this
folder under that name, beside Nova's own modules. The real package is ``nova_bootcache``.
"""

from nova_bootcache.novadriver.driver import BootCacheLibvirtDriver

__all__ = ['BootCacheLibvirtDriver']

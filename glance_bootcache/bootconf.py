"""Options of boots that are recorded, in the group ``[bootcache]``."""

from oslo_config import cfg

# A prompt's line goes on where the kernel or cloud-init writes to the console as well.
DEFAULT_MARKER = r'(^|\s)login:(\s|$)'

opts = [
    cfg.StrOpt('boot_marker',
               default=DEFAULT_MARKER,
               help="""
Regular expression that a console line matches when a boot is over, where the
image has no ``bootcache_boot_marker``.
"""),
    cfg.BoolOpt('profile_boots',
                default=True,
                help="""
Whether an image is booted once when it is registered, to record what a boot
reads. If not, the first server that boots from it is recorded, and waits for
the storage node meanwhile. Images from which servers boot before they were
recorded are treated so in any case.
"""),
    cfg.IntOpt('refine_boots',
               default=3,
               min=0,
               max=100,
               help="""
How many times an image's working set may be refined by what later boots read
beyond it: by what two servers' boots on two hosts confirm, and by a quarter at
most. Each time warm hosts fetch the new cache image.
"""),
    cfg.StrOpt('profile_flavor',
               help="""
Name of the flavor of profile boots.

Possible values:

* A flavor's name.
* Unset: the smallest public flavor without extra specs, by memory, that fits
  the image's min_ram and min_disk and the base's size, with 512 MiB at least.
  Other flavors, as those for hosts with GPUs, huge pages or of one project, are
  only taken where one is named here.
"""),
    cfg.StrOpt('profile_availability_zone',
               help="""
Availability zone of profile boots. They have to run on a host with bootcache's
compute driver; name a zone of such hosts where there are others too.
"""),
    cfg.IntOpt('profile_timeout',
               default=900,
               min=10,
               help="""
Seconds after which a profile boot is ended. What it read until then becomes the
working set; a boot that read less than 1 MiB has failed.

Related options:

* ``profile_silence``
"""),
    cfg.IntOpt('profile_silence',
               default=60,
               min=5,
               help="""
Seconds without a first read from the base after which a boot counts as over
although no boot marker was seen. A profile boot is given three times as long:
its guest may still say its marker, or that it does not come up. Before 1 MiB
was read, silence does not end a profile boot, unless it has lasted five times
as long and nothing is on its console; before anything was read, or is on its
console, it ends no other one.
"""),
    cfg.IntOpt('profile_linger',
               default=20,
               min=0,
               help="""
Longest time in seconds for which a profile boot goes on after its marker was
seen, so that what starts beside the login prompt is recorded too. It ends
earlier when nothing new was read for five seconds.
"""),
]

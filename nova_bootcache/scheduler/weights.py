"""The weigher: hosts that hold an image's cache image are preferred for its servers.

``[filter_scheduler]weight_classes = nova.scheduler.weights.all_weighers,
nova_bootcache.scheduler.weights.BootCacheWeigher``
"""

from typing import Any

import nova.conf
from nova.scheduler import utils, weights

from nova_bootcache.published import warmth
from nova_bootcache.published.warmth import Level
from nova_bootcache.scheduler import conf, hostwarmth, imagefacts

CONF = nova.conf.CONF
conf.register_opts(CONF)

# From a local memory tier over a local disk to what is on its way; the full base last of the warm
# ones, as such a host needs no cache image and others may come to need theirs.
WEIGHTS = {Level.MEMORY: 1.0, Level.DISK: 0.95, Level.ARRIVING: 0.9, Level.BASE: 0.85,
           Level.COLD: 0.0}
# By number: an enumeration's hash takes longer than all else.
_BY_LEVEL = tuple(WEIGHTS[level] for level in Level)
# Of a host that is cold for a snapshot, and has its parent's cache image: it makes the snapshot's
# of that. More than half of its bytes need not travel, or it would not; and a host with a full base
# needs none of them.
NEARLY_WARM = 0.8


class BootCacheWeigher(weights.BaseHostWeigher):  # type: ignore[misc]
    """Weighs hosts by how warm they are for the requested image, from 0 (cold) to 1.

    Where no host is warm, or no image is asked for, all weigh the same.
    """

    # Else Nova stretches small differences, such as that between disk and memory, to all of it.
    minval = 0.0
    maxval = 1.0

    def __init__(self) -> None:
        """Follow the scheduler's choices from now on."""
        hostwarmth.follow_choices()

    def weight_multiplier(self, host_state: Any) -> float:
        """Return the multiplier: the host's aggregate's, else the option's."""
        multiplier: float = utils.get_weight_multiplier(
            host_state, conf.MULTIPLIER, CONF.filter_scheduler[conf.MULTIPLIER])
        return multiplier

    def _weigh_object(self, host_state: Any, request_spec: Any) -> float:
        """Weigh one host."""
        return self._weigh([host_state], request_spec)[0]

    def weigh_objects(self, weighed_obj_list: Any, weight_properties: Any) -> list[float]:
        """Weigh all hosts of a request: what they have in common is looked up once."""
        return self._weigh([weighed.obj for weighed in weighed_obj_list], weight_properties)

    @staticmethod
    def _weigh(host_states: list[Any], request_spec: Any) -> list[float]:
        image_id = hostwarmth.requested_image(request_spec)
        if image_id is None:
            return [0.0] * len(host_states)
        levels = hostwarmth.HOSTS.levels(host_states, warmth.image_key(image_id))
        found = [_BY_LEVEL[level] for level in levels]
        # Where no host publishes anything, as in a cloud without the driver, nobody is asked.
        if Level.COLD not in levels or not any(
                warmth.STATS_KEY in (getattr(state, 'stats', None) or {}) for state in host_states):
            return found
        facts = imagefacts.IMAGES.of(image_id, request_spec)
        if facts is None or facts.parent in (None, image_id):
            return found
        of_parent = hostwarmth.HOSTS.levels(host_states, warmth.image_key(facts.parent))
        return [NEARLY_WARM if level is Level.COLD and other in (Level.DISK, Level.MEMORY)
                else weight for weight, level, other in zip(found, levels, of_parent, strict=True)]

"""Stands for deployment.cloud.Cloud: a Nova whose work is done by the second look."""

import threading

from glance_bootcache.deployment.cloud import CloudRefused
from glance_bootcache.deployment.steps import Seen


def server(server_id, name='web', **more):
    """A server as Nova shows it."""
    return {'id': server_id, 'name': name, 'status': 'ACTIVE', 'image': {'id': 'x'},
            'tenant_id': 'p', 'OS-EXT-SRV-ATTR:host': 'compute1', 'OS-EXT-STS:task_state': None,
            'OS-EXT-AZ:availability_zone': 'nova', 'metadata': {},
            'flavor': {'original_name': 'small', 'vcpus': 1, 'ram': 512, 'disk': 10}, **more}


class FakeCloud:
    """Servers that are paused and snapshotted.

    :ivar calls: what was asked, in its order.
    :ivar refuses: by call and server, errors that are raised one after the other.
    :ivar broken: servers whose next snapshots come to nothing, and how many.
    :ivar looked: called before each look at a server.
    """

    def __init__(self, *servers):
        self.status = {one: 'ACTIVE' for one in servers}
        self.task, self.images, self.of = dict.fromkeys(servers, ''), {}, {}
        self.calls, self.refuses, self.broken = [], {}, {}
        self.looked = lambda server: None
        self._lock = threading.Lock()

    def _call(self, name, server):
        self.calls.append((name, server))
        if errors := self.refuses.get((name, server)):
            raise errors.pop(0)

    def see(self, server, image):
        """As Cloud.see; what was under way is done with the second look."""
        with self._lock:
            self.looked(server)
            if server not in self.status:
                return None
            seen = Seen(self.status[server], self.task[server], self.images.get(image))
            if self.task[server].startswith('image'):
                mine = self.of[server][-1]
                if self.broken.get(server, 0) > 0:
                    self.broken[server] -= 1
                    del self.images[mine]
                else:
                    self.images[mine] = 'active'
            elif self.task[server]:
                self.status[server] = {'pausing': 'PAUSED', 'unpausing': 'ACTIVE'}[
                    self.task[server]]
            self.task[server] = ''
            return seen

    def pause(self, server):
        """As Cloud.pause."""
        with self._lock:
            self._call('pause', server)
            self.task[server] = 'pausing'

    def unpause(self, server):
        """As Cloud.unpause."""
        with self._lock:
            self._call('unpause', server)
            self.task[server] = 'unpausing'

    def snapshot(self, server, name, checkpoint):
        """As Cloud.snapshot."""
        with self._lock:
            self._call('snapshot', server)
            image = f'{name}/{len(self.of.setdefault(server, []))}'
            self.of[server].append(image)
            self.images[image] = 'queued'
            self.task[server] = 'image_snapshot'
            return image

    def images_of(self, checkpoint):
        """As Cloud.images_of."""
        return {server: images[-1] for server, images in self.of.items()
                if images[-1] in self.images}

    def delete_image(self, image):
        """As Cloud.delete_image."""
        self.images.pop(image, None)


def refused(status=409, *, passes=True):
    """What Cloud raises."""
    return CloudRefused('Nova says no', status, passes)

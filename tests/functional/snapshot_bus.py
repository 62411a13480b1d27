"""The message bus in the place of RabbitMQ, for what hosts say of snapshots."""

from bootcache.rpc.messages import AbandonSnapshot, BeginSnapshot, FinishSnapshot, UploadSnapshot

HOST = 'compute-1'


class SnapshotBus:
    """What a host says to the storage service, which may be another one by now.

    :param house: has the storage service's ``jobs``.
    """

    def __init__(self, house):
        self._house, self.hostname = house, HOST

    def send(self, message):
        """As StorageClient.send."""
        jobs = self._house.jobs
        match message:
            case BeginSnapshot():
                return jobs.begin(message)
            case FinishSnapshot(snapshot_id, token):
                return jobs.finish(snapshot_id, token)
            case UploadSnapshot(snapshot_id, token):
                return jobs.upload(snapshot_id, token)
            case AbandonSnapshot(snapshot_id, token):
                return jobs.abandon(snapshot_id, token)
        raise AssertionError(message)

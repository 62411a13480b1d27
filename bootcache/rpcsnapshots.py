"""The calls of the storage service's RPC API of snapshots that share with their base."""

from typing import Any


class SnapshotCalls:
    """Those of rpcapi.StorageAPI, which sends them."""

    def _call(self, method: str, **arguments: Any) -> Any:
        raise NotImplementedError

    def begin_snapshot(self, image_id: str, snapshot_id: str, host: str, certificate: str,
                       token: str, virtual_bytes: int) -> dict[str, Any]:
        """Have a snapshot be made that shares with its base, or ask how far that is.

        It is asked again and again, also while the host sends: who is silent is given up.

        :param image_id: of which the server was made.
        :param snapshot_id: the image that the snapshot becomes; it waits for its data.
        :param certificate: as of :meth:`plan_boot`.
        :param token: a secret of the host's own, by which it is known to be the same.
        :param virtual_bytes: size of the server's disk.
        :returns: ``refused`` (why it goes stock Nova's way, in one line); or, once it can be
            written, ``server`` and ``tls`` (as of ``plan_boot``), ``export``, ``disk_format``
            (of the image that it becomes), ``image_hash`` and ``base_export`` (of what content the
            base is, likewise); nothing of these before.
        """
        answer: dict[str, Any] = self._call(
            'begin_snapshot', image_id=image_id, snapshot_id=snapshot_id, host=host,
            certificate=certificate, token=token, virtual_bytes=virtual_bytes)
        return answer

    def finish_snapshot(self, snapshot_id: str, token: str) -> dict[str, Any]:
        """Tell that all of a snapshot was sent, or ask how far it is.

        :param token: as of :meth:`begin_snapshot`.
        :returns: ``refused``, as there; or, once Glance can have it, ``url``, or ``upload`` where
            no store of Glance registers it (see :meth:`upload_snapshot`); nothing before.
        """
        answer: dict[str, Any] = self._call('finish_snapshot', snapshot_id=snapshot_id, token=token)
        return answer

    def upload_snapshot(self, snapshot_id: str, token: str) -> dict[str, Any]:
        """Have a finished snapshot be uploaded, or ask how far that is.

        The image waits for its data, and has its formats: Nova has told Glance of it. It gets no
        location.

        :param token: as of :meth:`begin_snapshot`.
        :returns: ``refused``, as there; or, once Glance has it, ``uploaded``; nothing before.
        """
        answer: dict[str, Any] = self._call('upload_snapshot', snapshot_id=snapshot_id, token=token)
        return answer

    def abandon_snapshot(self, snapshot_id: str, token: str) -> bool:
        """Have a snapshot be removed that Glance is not, or was not, told of.

        :param token: as of :meth:`begin_snapshot`.
        :returns: whether nothing is left of it by now.
        """
        gone: bool = self._call('abandon_snapshot', snapshot_id=snapshot_id, token=token)
        return gone

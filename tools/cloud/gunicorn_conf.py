"""gunicorn's configuration for the WSGI services of the cloud.

The command line adds the address, the application and, for Glance, ``--access-logfile``.
"""

import json
import sys
import time
from datetime import timedelta
from typing import Any

from gunicorn.glogging import Logger

workers = 1
threads = 8
timeout = 600
graceful_timeout = 3
worker_tmp_dir = "/dev/shm"
control_socket_disable = True
# With sendfile(2) gunicorn does not count the bytes it sends.
sendfile = False


class JsonAccessLogger(Logger):  # type: ignore[misc]
    """Writes the access log as JSON lines.

    ``time`` is when the response ended, ``sent`` the bytes of the response's body that were handed
    to the connection, without HTTP's own framing; of a broken download, the part before the break.
    """

    def access(self, resp: Any, req: Any, environ: Any, request_time: timedelta) -> None:
        if not self.cfg.accesslog:
            return
        line = {
            "time": round(time.time(), 3),
            "seconds": round(request_time.total_seconds(), 3),
            "method": environ.get("REQUEST_METHOD"),
            # The application may have rewritten environ's PATH_INFO.
            "path": req.path,
            "query": req.query,
            "status": int(str(resp.status or 0).split()[0]),
            "sent": resp.sent,
            "received": int(environ.get("CONTENT_LENGTH") or 0),
            "range": environ.get("HTTP_RANGE"),
            "agent": environ.get("HTTP_USER_AGENT"),
        }
        self.access_log.info("%s", json.dumps(line))


logger_class = JsonAccessLogger


def post_fork(server: Any, worker: Any) -> None:
    """Hide gunicorn's arguments: Keystone and Nova would parse them as their own."""
    del sys.argv[1:]

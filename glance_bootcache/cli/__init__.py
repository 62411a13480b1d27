"""The commands: ``bootcache``, one file a topic, and ``glance-bootcache``, the service."""

from oslo_service import backend

# Before anything else imports oslo.service, which takes eventlet if nobody says otherwise.
backend.init_backend(backend.BackendType.THREADING)

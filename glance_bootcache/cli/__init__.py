"""The commands: ``bootcache``, one file a topic, and ``glance-bootcache``, the service."""

import warnings

# Libraries that can use eventlet warn of its end where it is installed; nothing here uses it.
warnings.filterwarnings('ignore', message=r'\s*Eventlet is deprecated')

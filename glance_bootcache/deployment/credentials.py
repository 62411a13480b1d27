"""As whom Nova and Glance are asked: by the OS_* variables of the shell, or by [service_auth]."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1 import loading as ks_loading
from keystoneauth1 import session as ks_session
from oslo_config import cfg

from bootcache.exception import ConfigurationError
from glance_bootcache.conf import AUTH_GROUP
from glance_bootcache.glance import images

_ANSWER_SECONDS = 60


def open_session(read_conf: Callable[[], cfg.ConfigOpts], connections: int,
                 environment: Mapping[str, str] = os.environ) -> tuple[Any, str | None]:
    """Return a Keystone session and the region that is asked.

    :param read_conf: reads the storage service's configuration, if it is needed.
    :param connections: requests that may be under way at once.
    :raises ConfigurationError: if something is missing or wrong.
    """
    if environment.get('OS_AUTH_URL'):
        session: Any = _of_the_shell(environment)
        region = environment.get('OS_REGION_NAME') or None
    else:
        conf = read_conf()
        session, region = images.session(conf), conf[AUTH_GROUP].region_name
    adapter = ks_session.TCPKeepAliveAdapter(pool_maxsize=connections)
    for scheme in ('http://', 'https://'):
        session.session.mount(scheme, adapter)
    return session, region


def _of_the_shell(environment: Mapping[str, str]) -> Any:
    def given(option: Any) -> str | None:
        names = (f'OS_{one.name.replace("-", "_").upper()}' for one in (option, *option.deprecated))
        return next(filter(None, map(environment.get, names)), None)

    kind = environment.get('OS_AUTH_TYPE') or 'password'
    try:
        auth = ks_loading.get_plugin_loader(kind).load_from_options_getter(given)
    except ks_exceptions.ClientException as error:
        raise ConfigurationError(
            f'the OS_* variables of the shell cannot be used: {error}; source your openrc, or unset'
            f' OS_AUTH_URL to use [{AUTH_GROUP}] of the configuration') from error
    insecure = environment.get('OS_INSECURE', '').lower() in ('1', 'true', 'yes')
    certificate = (environment.get('OS_CERT'), environment.get('OS_KEY'))
    return ks_session.Session(
        auth, timeout=_ANSWER_SECONDS,
        verify=False if insecure else environment.get('OS_CACERT') or True,
        cert=certificate if all(certificate) else None)

"""Whether an error of Glance, Nova or Keystone passes by itself. Pure."""

import http
import re

from glance_bootcache.conf import AUTH_GROUP

# Too slow, too much asked for, and a token that has expired or that Keystone cannot check.
_PASSING_CODES = (401, 408, 429)
# In clients' words another one each time: the id of a request, and the address of an object.
_OF_ONE_REQUEST = re.compile(r' \(Request-ID: [^)]*\)| at 0x[0-9a-f]+')


def status(error: Exception) -> int:
    """Return the HTTP status of an answer; 0 if nobody has answered.

    :param error: of keystoneauth, glanceclient or novaclient.
    """
    for name in ('http_status', 'code'):
        found = getattr(error, name, None)
        if isinstance(found, int) and found:
            return found
    return 0


def passes(error: Exception) -> bool:
    """Tell whether it is worth asking again: nothing is wrong with what was asked.

    :param error: of keystoneauth, glanceclient or novaclient.
    """
    code = status(error)
    return not code or code in _PASSING_CODES or code >= 500


def is_refused(error: Exception) -> bool:
    """Tell whether the storage service's credentials were refused, whatever was asked.

    A token that has expired is one of those; keystoneauth gets another one, and asks again.

    :param error: of keystoneauth, glanceclient or novaclient.
    """
    return status(error) == http.HTTPStatus.UNAUTHORIZED


def told(error: Exception) -> str:
    """Return an error in words, with the cure where it may need one.

    :param error: any.
    """
    if not is_refused(error):
        return str(error)
    return (f'the credentials in [{AUTH_GROUP}] are refused (HTTP 401); if that stays so, correct'
            ' username, password, project_name and the domains there ("openstack token issue" tries'
            ' them), and restart glance-bootcache')


def lasting(words: str) -> str:
    """Return an error's words without what is another one each time.

    :param words: of :func:`told`.
    """
    return _OF_ONE_REQUEST.sub('', words)

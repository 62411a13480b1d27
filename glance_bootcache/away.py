"""Whether an error of Glance, Nova or Keystone passes by itself. Pure."""

# Too slow, too much asked for, and a token that has expired or that Keystone cannot check.
_PASSING_CODES = (401, 408, 429)


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

"""Whether an error of Glance, Nova or Keystone passes by itself. Pure."""

# Too slow, too much asked for, and a token that has expired or that Keystone cannot check.
_PASSING_CODES = (401, 408, 429)


def passes(error: Exception) -> bool:
    """Tell whether it is worth asking again: nothing is wrong with what was asked.

    :param error: of keystoneauth, glanceclient or novaclient. Without an HTTP status nobody has
        answered.
    """
    for name in ('http_status', 'code'):
        status = getattr(error, name, None)
        if isinstance(status, int) and status:
            return status in _PASSING_CODES or status >= 500
    return True

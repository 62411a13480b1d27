"""What oslo.config says of an option that cannot be, in words with the file and the cure."""

import re

from oslo_config import cfg

from bootcache import conf as bootcache_conf

# As ``ConfigOpts`` writes it; of an option that it cannot place there is no "from".
_SAID = re.compile(r'Value for option (?P<name>\S+)'
                   r"(?: from LocationInfo\(location=.*?, detail='(?P<file>.*?)'\))?"
                   r' is not valid: (?P<why>.*)', re.DOTALL)
_PYTHON = re.compile(r"invalid literal for (?P<kind>int|float)\(\)(?: with base 10)?: (?P<value>.*)"
                     r"|could not convert string to (?P<other>float): (?P<text>.*)", re.DOTALL)


def told(error: Exception, conf: cfg.ConfigOpts) -> str:
    """Return an error's text, of an option with its group, its file and what to do.

    :param error: any; of one that is none of an option's value its own text is returned.
    """
    found = _SAID.fullmatch(str(error)) if isinstance(error, cfg.Error | ValueError) else None
    if found is None:
        return str(error)
    name, why = found['name'], found['why']
    if python := _PYTHON.fullmatch(why):
        whole = 'whole ' if python['kind'] == 'int' else ''
        why = f'{python["value"] or python["text"]} is no {whole}number'
    group = bootcache_conf.GROUP
    known = group in conf and name.replace('-', '_') in conf[group]
    where = f' in {found["file"]}' if found['file'] else ''
    return (f'{f"[{group}]" if known else "option "}{name}{where}: {why};'
            ' correct it, or take it out for its default')

"""Sphinx: lists the messages of the RPC as bootcache.rpc.messages declares them."""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from bootcache.rpc import fields, messages, report
from bootcache.rpc.messages import MESSAGES, VERSION

_MEANING = re.compile(r'^:ivar (\w+): (.*(?:\n +.*)*)\n?', re.MULTILINE)


def parts() -> list[type]:
    """Return the declared answers, and the parts of a host's report."""
    return [part for module in (messages, report)
            for _name, part in inspect.getmembers(module, dataclasses.is_dataclass)
            if part.__module__ == module.__name__ and not issubclass(part, messages.Message)]


def _described(declared: Any) -> Iterator[str]:
    """Give a docstring's text, and each field with its meaning there and its bound."""
    known = inspect.cleandoc(declared.__doc__ or '')
    meanings = {name: ' '.join(meaning.split()) for name, meaning in _MEANING.findall(known)}
    yield from (f'   {line}' for line in _MEANING.sub('', known).splitlines())
    yield ''
    needed = fields.needed(declared)
    for name, bound in fields.bounds(declared).items():
        may_lack = '' if name in needed else '; may be left out'
        meaning = f': {meanings[name]}' if name in meanings else ''
        yield f'   * ``{name}`` ({bound.wanted}{may_lack}){meaning}'


def text() -> Iterator[str]:
    """Give the page's lines, in reStructuredText."""
    yield f'The version is {VERSION};'
    yield 'a message that is added later, or gets another field, has a later one.'
    for method, message in MESSAGES.items():
        kind = 'cast' if message.is_cast else 'call'
        yield from ('', f'``{method}``: {kind}, since {message.since}', '')
        yield from _described(message)
    yield from ('', 'Answers that are declared, and the parts of a host\'s report:')
    for part in parts():
        yield from ('', f'``{part.__name__}``', '')
        yield from _described(part)


class Messages(SphinxDirective):
    """``.. rpc-messages::``: each message, its fields and their bounds."""

    def run(self) -> list[nodes.Node]:
        """Return the page's nodes."""
        return self.parse_text_to_nodes('\n'.join(text()))


def setup(app: Any) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive('rpc-messages', Messages)
    return {'parallel_read_safe': True}

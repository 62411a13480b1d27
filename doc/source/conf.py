"""Sphinx: builds these pages and the manual pages, without network."""

import os
import sys

sys.path.insert(0, os.path.abspath('../..'))

project = 'bootcache'
copyright = 'The bootcache developers'
author = 'The bootcache developers'
extensions = ['oslo_config.sphinxext', 'cliff.sphinxext']
templates_path = []
exclude_patterns = []
html_theme = 'alabaster'
html_theme_options = {'description': 'Image caches for OpenStack Nova and Glance',
                      'page_width': '68em', 'sidebar_width': '16em'}
html_sidebars = {'**': ['about.html', 'navigation.html', 'searchbox.html']}
html_copy_source = False
smartquotes = False
# The commands' own options only; cliff's are the same everywhere.
autoprogram_cliff_ignored = ['--help', '--format', '--column', '--quote', '--noindent',
                             '--max-width', '--fit-width', '--print-empty', '--sort-column',
                             '--sort-ascending', '--sort-descending', '--variable', '--prefix']
man_pages = [
    ('cli', 'bootcache', 'look after cache images', [author], 1),
    ('glance-bootcache', 'glance-bootcache', 'the storage service of bootcache', [author], 1),
]


def _from_markdown(text):
    """Turn the little Markdown that CONTRIBUTING.md has into reStructuredText."""
    lines = []
    fenced = False
    for line in text.splitlines():
        if line.startswith('```'):
            fenced = not fenced
            lines += ['::', ''] if fenced else ['']
        elif fenced:
            lines.append(f'    {line}')
        elif line.startswith('#'):
            marks, title = line.split(' ', 1)
            lines += [title, ('=' if marks == '#' else '-') * len(title)]
        else:
            lines.append(line.replace('`', '``'))
    return '\n'.join(lines) + '\n'


def _read(app, docname, source):
    if docname == 'contributing':
        path = os.path.join(app.srcdir, '..', '..', 'CONTRIBUTING.md')
        with open(path, encoding='utf-8') as stream:
            source[0] = _from_markdown(stream.read())


def setup(app):
    app.connect('source-read', _read)

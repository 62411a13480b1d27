"""Sphinx: builds these pages and the manual pages, without network."""

import os
import sys

from docutils import nodes

sys.path.insert(0, os.path.abspath('../..'))
sys.path.insert(0, os.path.abspath('_ext'))

project = 'bootcache'
copyright = 'The bootcache developers'
author = 'The bootcache developers'
extensions = ['oslo_config.sphinxext', 'cliff.sphinxext', 'myst_parser', 'databasetables',
              'rpc_messages']
templates_path = []
exclude_patterns = []
# Blocks are commands and configuration; what is Python says so.
highlight_language = 'none'
html_theme = 'alabaster'
html_static_path = ['_static']
html_css_files = ['bootcache.css']
html_theme_options = {'description': 'Image caches for OpenStack Nova and Glance',
                      'page_width': '76em', 'sidebar_width': '16em', 'body_max_width': '56em'}
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
    ('bootcache-manage', 'bootcache-manage', 'look after database and files of bootcache', [author], 1),
    ('bootcache-status', 'bootcache-status', 'check bootcache before an upgrade', [author], 1),
]


def without_addresses(app, doctree, docname):
    """Take links between pages out of man pages, where each has an empty address behind it."""
    if app.builder.name == 'man':
        for link in list(doctree.findall(nodes.reference)):
            if not link.get('refuri'):
                link.replace_self(link.children)


def setup(app):
    app.connect('doctree-resolved', without_addresses)

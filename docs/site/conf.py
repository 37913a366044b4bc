# The site's configuration. scripts/docs runs Sphinx with it, over the pages that stage.py has laid out.
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
staged = json.loads(os.environ['LOCKSTEP_SITE'])

project = 'Lockstep'
author = 'the authors of Lockstep'
copyright = author
extensions = ['myst_parser', 'breathe', 'links']
site_pages = staged['pages']
site_headers = staged['headers']
site_titles = staged['titles']
source_suffix = {'.md': 'markdown', '.rst': 'restructuredtext'}
myst_heading_anchors = 6

primary_domain = 'cpp'
highlight_language = 'none'  # of indented blocks, which are commands and messages
breathe_projects = {'lockstep': staged['xml']}
breathe_default_project = 'lockstep'

html_theme = 'furo'
html_title = 'Lockstep ' + staged['version']
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_last_updated_fmt = None

# What the library's signatures name and other documentation describes, or nobody uses by name: LibTorch, the standard
# library, internals, and types that stand behind an interface.
nitpick_ignore_regex = [
    ('cpp:identifier', r'(std|at|c10|torch|nlohmann)(::.*)?'),
    ('cpp:identifier', r'(u?int(8|16|32|64)|size|ptrdiff)_t|SIGTERM|LossClosure'),
    ('cpp:identifier', r'(lockstep::)?(data::)?internal(::.*)?|Deal|ReplicaGroup|Slot|Iterator<.*'),
    ('cpp:identifier', r'lockstep(::(callbacks|data|metrics|rules|schedules|testing))?|data'),
]

# Links of the site: those in GitHub's form, to pages, headers and other files of the repository; codes of errors and
# names of pages that stand in a text; and names of the library that stand as code.
import html
import os
import re

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.nodes import make_refnode

import headers
import pages
import reference

logger = logging.getLogger(__name__)
CODE = r'LS-[A-Z0-9]+(?:-[A-Z0-9]+)*(?![A-Z0-9-])'
PAGE = r'docs/[a-z-]+\.md(?:#[a-z0-9-]+)?'
NAME = r'[A-Z]\w*(?:::\w+)+(?:\(\))?|[A-Z][a-z0-9]+[A-Z]\w*'  # a type of several words, or a member with its class
IN_TEXT = re.compile(r'((?<![\w-])%s|\b%s|\b(?:%s))' % (CODE, PAGE, NAME))
NOT_LINKED = (nodes.reference, nodes.title, nodes.literal_block, nodes.raw, addnodes.desc_signature)


def reference_to(app, page, target, children):
  """A reference from a page to `PATH#ANCHOR` of the repository, a file or a folder; None where there is none."""
  path, _, anchor = target.partition('#')
  labels = app.env.get_domain('std').anonlabels
  for file in (path, path + '/README.md'):
    name = pages.page_name(file)
    if app.config.site_pages.get(name) == file:
      _, label = labels.get('%s.md#%s' % (name, anchor), (name, None)) if anchor else (name, '')
      # A text that is the file's name becomes the title that the page has on the site.
      text = os.path.basename(''.join(child.astext() for child in children))
      title = app.config.site_titles.get(name)
      if title and text.partition('#')[0] == os.path.basename(file):
        children = [nodes.emphasis('', title)]
      return None if label is None else make_refnode(app.builder, page, name, label, children)
  if anchor or not os.path.exists(os.path.join(pages.ROOT, path)):
    return None
  if path in app.config.site_headers:
    _, label = labels.get(reference.label_of(path), ('', ''))
    return make_refnode(app.builder, page, app.config.site_headers[path], label, children)
  app.env.site_sources.add(path)
  uri = app.builder.get_relative_uri(page, 'source/' + path)
  return nodes.reference('', '', *children, refuri=uri, internal=True)


class Anchors(SphinxTransform):
  """Each heading has the anchor that it has on GitHub; that of a code has the code itself, and stands in the index."""

  default_priority = 800  # before Sphinx collects the index

  def apply(self, **kwargs):
    for section in self.document.findall(nodes.section):
      title = section[0].astext()
      is_code = re.fullmatch(CODE, title)
      for anchor in [section.get('myst-anchor', '').partition('#')[2]] + ([title] if is_code else []):
        if anchor and anchor not in section['ids']:
          section['ids'].append(anchor)
      if is_code:
        section.insert(1, addnodes.index(entries=[('single', title, section['ids'][0], '', None)]))


class RepositoryLinks(SphinxPostTransform):
  """Resolves the links of Markdown before MyST does, which takes them for links between the site's files."""

  default_priority = 8

  def run(self, **kwargs):
    page = self.env.docname
    for kind in (addnodes.pending_xref, addnodes.download_reference):
      for node in list(self.document.findall(kind)):
        if node.get('reftype') != 'myst':
          continue
        path, anchor = pages.target_of(node['reftarget'], self.config.site_pages[page])
        found = reference_to(self.app, page, path + ('#' + anchor if anchor else ''), node.children)
        if found is None:
          logger.warning('there is no such file or heading: %s', node['reftarget'], location=node)
          found = nodes.inline('', '', *node.children)
        node.replace_self(found)


class LinksOfTexts(SphinxPostTransform):
  """Makes links of codes of errors, of names of pages, and of the library's names, in texts and as code."""

  default_priority = 20

  def run(self, **kwargs):
    for node in list(self.document.findall(nodes.literal)):
      text = node.astext()
      if is_linked(node):
        continue
      found = self.code(text, node) if re.fullmatch(CODE, text) else self.name(text, node)
      if found is not None:
        node.replace_self(found)
    for node in list(self.document.findall(nodes.Text)):
      parts = IN_TEXT.split(node.astext())
      if len(parts) > 1 and not is_linked(node) and not isinstance(node.parent, nodes.literal):
        linked = [self.part(part, node) if i % 2 else nodes.Text(part) for i, part in enumerate(parts)]
        node.parent.replace(node, linked)

  def part(self, text, node):
    """What stands for a part of a text. A code or a page that is not there is a mistake; a word is a word."""
    child = nodes.Text(text)
    if re.fullmatch(NAME, text):
      return self.name(text, child) or child
    is_code = text.startswith('LS-')
    found = self.code(text, child) if is_code else reference_to(self.app, self.env.docname, text, [child])
    if found is None:
      logger.warning('there is no such code or page: %s', text, location=node.parent)
    return found or child

  def code(self, code, node):
    return reference_to(self.app, self.env.docname, 'docs/errors.md#' + code.lower(), [node.deepcopy()])

  def name(self, text, node):
    match = re.fullmatch(r'(?:lockstep::)?(\w+(?:::\w+)*)(?:\(.*\))?', text)
    page, anchor = self.env.site_names.get(match[1], (None, None)) if match else (None, None)
    return page and make_refnode(self.app.builder, self.env.docname, page, anchor, [node.deepcopy()])


def is_linked(node):
  while node is not None and not isinstance(node, NOT_LINKED):
    node = node.parent
  return node is not None


def remember_names(app, env):
  """The public names that a text may mean: types, and members with their class. Plain words such as `run` are none."""
  env.site_names = {}
  for name, _, kind, page, anchor, _ in env.get_domain('cpp').get_objects():
    short = name.removeprefix('lockstep::')
    if '::' in short or short[:1].isupper():
      known = env.site_names.setdefault(short, (page, anchor))
      if kind in ('class', 'struct', 'enum', 'type') and known != (page, anchor):
        env.site_names[short] = (page, anchor)


def find_alias(app, env, node, content):
  """A name of lockstep::data that lockstep:: has too, by a using-declaration."""
  page, anchor = env.site_names.get('data::' + node.get('reftarget', ''), (None, None))
  if node.get('refdomain') == 'cpp' and page:
    return make_refnode(app.builder, node['refdoc'], page, anchor, content)


def add_contents(app, page, source):
  """The lists of the first page, and the table of the examples, become the table of contents of the site."""
  file = app.config.site_pages.get(page)
  if page == 'index' or page == 'examples':
    for caption, entries in pages.contents_of(source[0], file, app.config.site_pages):
      source[0] += '\n```{toctree}\n:hidden:\n' + (':caption: %s\n' % caption if page == 'index' else '')
      source[0] += '\n' + '\n'.join('%s </%s>' % (title.replace('`', ''), name) for title, name in entries) + '\n```\n'


def source_pages(app):
  """A page for each file and folder that a page links to and that is no page itself."""
  for path in sorted(app.env.site_sources):
    full = os.path.join(pages.ROOT, path)
    if os.path.isdir(full):
      files = sorted(name for name in os.listdir(full) if os.path.isfile(os.path.join(full, name)))
      sources = ('.h', '.cpp', '.inc', '.cu')
      said = [headers.first_comment(os.path.join(path, name)) if name.endswith(sources) else '' for name in files]
      row = '<tr><td><code>%s</code></td><td>%s</td></tr>'
      rows = ''.join(row % (name, html.escape(comment)) for name, comment in zip(files, said))
      body = '<table class="docutils"><tbody>%s</tbody></table>' % rows
    else:
      with open(full, errors='replace') as file:
        language = {'.h': 'cpp', '.cpp': 'cpp', '.inc': 'cpp', '.py': 'python', '.sh': 'bash', '.yaml': 'yaml'}
        body = app.builder.highlighter.highlight_block(file.read(), language.get(os.path.splitext(path)[1], 'none'))
    yield 'source/' + path, {'title': path, 'body': '<h1><code>%s</code></h1>%s' % (path, body)}, 'page.html'


def start(app):
  app.env.site_sources = set()


def setup(app):
  app.add_config_value('site_pages', {}, '')
  app.add_config_value('site_headers', {}, '')
  app.add_config_value('site_titles', {}, '')
  app.add_transform(Anchors)
  app.add_post_transform(RepositoryLinks)
  app.add_post_transform(LinksOfTexts)
  app.connect('builder-inited', start)
  app.connect('source-read', add_contents)
  app.connect('env-updated', remember_names)
  app.connect('missing-reference', find_alias)
  app.connect('html-collect-pages', source_pages)
  return {'parallel_read_safe': False, 'parallel_write_safe': False}

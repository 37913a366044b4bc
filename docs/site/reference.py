# Makes the pages of the reference: for each group of public headers the names that they declare, in the headers' order.
# What stands with a name comes from its comment, by Doxygen and Breathe.
import glob
import os
import re
import xml.etree.ElementTree as ElementTree

import headers

NAMESPACE = re.compile(r'lockstep(::(data|metrics|rules|schedules|testing))?$')


class Declared:
  """A public name: its kind, as Doxygen calls it, where it is declared, and its parameters where it is a function."""

  def __init__(self, element, name):
    location = element.find('location')
    self.kind = element.get('kind')
    self.name = name
    self.header = location.get('declfile') or location.get('file')
    self.line = int(location.get('declline') or location.get('line'))
    self.element = element
    # As Breathe writes them to compare: types alone.
    self.parameters = '(%s)' % ', '.join(text_of(p.find('type')) for p in element.findall('param'))


def text_of(element):
  return '' if element is None else ''.join(element.itertext()).strip()


def is_public(name):
  return NAMESPACE.match(name.rpartition('::')[0]) is not None and not name.endswith('>')


def declared_names(xml):
  """Every public name at the level of a namespace."""
  names = []
  for path in sorted(glob.glob(os.path.join(xml, '*.xml'))):
    compound = ElementTree.parse(path).getroot().find('compounddef')
    if compound is None:
      continue
    name, kind = compound.findtext('compoundname'), compound.get('kind')
    if kind in ('class', 'struct', 'concept') and is_public(name):
      names.append(Declared(compound, name))
    elif kind == 'namespace' and NAMESPACE.match(name):
      for member in compound.iterfind('sectiondef/memberdef'):
        names.append(Declared(member, name + '::' + member.findtext('name')))
  return sorted(names, key=lambda declared: (declared.header, declared.line))


def directive_of(declared, overloaded, extension):
  if declared.kind == 'concept':  # Breathe has none for them
    parameters = ', '.join(text_of(p.find('type')) for p in declared.element.iterfind('templateparamlist/param'))
    comment = text_of(declared.element.find('detaileddescription'))
    return '.. cpp:concept:: template<%s> %s\n\n   %s\n' % (parameters, declared.name, comment)
  name = declared.name + (declared.parameters if overloaded else '')
  options = ''
  if declared.kind in ('class', 'struct'):
    # Protected members are for those who derive.
    options = '   :members:\n   :undoc-members:\n' + ('   :protected-members:\n' if extension else '')
  return '.. doxygen%s:: %s\n%s' % (declared.kind, name, options)


def titled(text, line, label=None):
  return ('.. _%s:\n\n' % label if label else '') + '%s\n%s\n\n' % (text, line * len(text))


def escaped(text):
  """A comment's text as reStructuredText: what stands between backticks is code."""
  parts = text.split('`')
  return ''.join('``%s``' % part if i % 2 else re.sub(r'([\\*_|])', r'\\\1', part) for i, part in enumerate(parts))


def label_of(header):
  return 'header-' + re.sub(r'[^a-z0-9]+', '-', header)


def write_pages(xml, folder):
  """Writes a page for each group and one that lists them. Returns the page on which each header stands."""
  declared = declared_names(xml)
  extensions = headers.includes_of('lockstep/extend.h')
  page_of = {}
  os.makedirs(folder)
  index = titled('The public headers', '=')
  index += 'Every public name and what it promises, by the header that declares it.\n\n'
  contents = '.. toctree::\n   :hidden:\n\n'
  for group in headers.all_groups():
    page = 'api/' + group.slug()
    page_of[group.umbrella] = 'api/index'
    page_of.update({header: page for header in group.headers})
    text = titled(group.title, '=') + escaped(group.text[:1].upper() + group.text[1:]) + '\n\n'
    index += '- :doc:`%s`\n\n' % group.slug()
    for header in group.headers:
      here = [one for one in declared if one.header == header]
      names = [one.name for one in here]
      links = [':cpp:any:`%s <%s>`' % (name.removeprefix('lockstep::'), name) for name in dict.fromkeys(names)
               if '::operator' not in name]
      if not links:
        continue
      text += titled('``%s``' % header, '-', label_of(header)) + escaped(headers.first_comment(header)) + '\n\n'
      text += '\n'.join(directive_of(one, names.count(one.name) > 1, header in extensions) for one in here) + '\n'
      index += '  - :ref:`%s <%s>`: %s\n' % (header.removeprefix('lockstep/'), label_of(header), ', '.join(links))
    index += '\n'
    contents += '   %s\n' % group.slug()
    with open(os.path.join(folder, group.slug() + '.rst'), 'w') as file:
      file.write(text)
  with open(os.path.join(folder, 'index.rst'), 'w') as file:
    file.write(index + contents)
  return page_of

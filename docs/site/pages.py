# The pages of the site: which files of the repository they are, and what they are called there.
import glob
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CONTENTS = 'docs/README.md'  # the first page: its lists are the table of contents


def page_name(path):
  """docs/data.md is the page data, README.md lockstep, and examples/01_train/README.md examples/01_train."""
  if path == CONTENTS:
    return 'index'
  if path == 'README.md':
    return 'lockstep'
  name = path.removeprefix('docs/').removesuffix('.md')
  return name.removesuffix('/README') if name.endswith('/README') else name.lower()


def all_pages():
  """The name of each page, and the file that it is."""
  patterns = ['*.md', 'docs/*.md', 'examples/README.md', 'examples/*/README.md', 'bench/README.md']
  files = [path for pattern in patterns for path in sorted(glob.glob(pattern, root_dir=ROOT))]
  return {page_name(path): path for path in files}


def target_of(link, page_file):
  """The path in the repository that a link of a page means, and its anchor."""
  path, _, anchor = link.partition('#')
  return os.path.normpath(os.path.join(os.path.dirname(page_file), path)) if path else page_file, anchor


def contents_of(text, page_file, pages):
  """The tables of contents that a page's lists and tables give: (heading, [(title, name of a page)]) for each."""
  names = {path: name for name, path in pages.items()}
  found, caption = [], ''
  for line in text.split('\n'):
    if line.startswith('## '):
      caption = line.removeprefix('## ')
    elif line.startswith(('- ', '| ')):
      for title, link in re.findall(r'\[([^]]+)\]\(([^)#]+)\)', line):
        path, _ = target_of(link, page_file)
        name = 'api/index' if path == 'lockstep/lockstep.h' else names.get(path) or names.get(path + '/README.md')
        if name is None or (page_file != CONTENTS and not path.startswith(os.path.dirname(page_file))):
          continue
        if not found or found[-1][0] != caption:
          found.append((caption, []))
        found[-1][1].append((title, name))
  return found

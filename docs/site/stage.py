# Lays out the pages of the site in a folder, under the names that they have there, and makes those of the reference.
# Usage: stage.py FOLDER XML   (of Doxygen); prints what conf.py needs to know, as JSON
# Usage: stage.py --headers    prints the public headers
import json
import os
import re
import sys

sys.dont_write_bytecode = True
import headers
import pages
import reference

if sys.argv[1] == '--headers':
  print('\n'.join(header for group in headers.all_groups() for header in group.headers))
  sys.exit()

folder, xml = sys.argv[1:]
staged = pages.all_pages()
for name, path in staged.items():
  link = os.path.join(folder, name + '.md')
  os.makedirs(os.path.dirname(link), exist_ok=True)
  os.symlink(os.path.join(pages.ROOT, path), link)
# Pictures lie beside pages here, and in docs/ seen from README.md.
for place in ('pictures', 'docs/pictures'):
  os.makedirs(os.path.dirname(os.path.join(folder, place)), exist_ok=True)
  os.symlink(os.path.join(pages.ROOT, 'docs/pictures'), os.path.join(folder, place))
header_pages = reference.write_pages(xml, os.path.join(folder, 'api'))
with open(os.path.join(pages.ROOT, pages.CONTENTS)) as file:
  contents = pages.contents_of(file.read(), pages.CONTENTS, staged)
titles = {name: title for _, entries in contents for title, name in entries}
with open(os.path.join(pages.ROOT, 'CMakeLists.txt')) as file:
  version = re.search(r'^project\(lockstep VERSION ([0-9.]+)', file.read(), re.M)[1]
print(json.dumps({'pages': staged, 'headers': header_pages, 'titles': titles, 'version': version, 'xml': xml}))

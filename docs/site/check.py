# Checks the finished site: each link leads to a page and an anchor that are there, nothing is loaded from elsewhere,
# and each code of docs/errors.md is an anchor of its page.
# Usage: check.py FOLDER   (of the site); exit code 1 where something is wrong
import html.parser
import os
import re
import sys
import urllib.parse

import pages


LOADED_BY_CSS = re.compile(r'(?:url\(|@import )["\']?(?:https?:)?//[^"\')]*')


class Page(html.parser.HTMLParser):
  """A page's anchors, its links, and what a browser loads with it."""

  def __init__(self, text):
    super().__init__()
    self.anchors, self.links, self.loaded = set(), set(), set()
    self.feed(text)

  def handle_starttag(self, tag, attributes):
    for name, value in attributes:
      if name == 'id' and value:
        self.anchors.add(value)
      elif tag == 'a' and name == 'href' and value:
        self.links.add(value)
      elif (name == 'src' or (name == 'href' and tag == 'link')) and value:
        self.loaded.add(value)


def main(folder):
  site, wrong = {}, []
  for path, _, names in os.walk(folder):
    for name in names:
      if name.endswith('.html'):
        file = os.path.relpath(os.path.join(path, name), folder)
        with open(os.path.join(folder, file)) as text:
          site[file] = Page(text.read())
      elif name.endswith('.css'):
        with open(os.path.join(path, name)) as text:
          wrong += ['%s loads %s' % (name, found) for found in LOADED_BY_CSS.findall(text.read())]
  count = 0
  for file, page in sorted(site.items()):
    for link in sorted(page.links | page.loaded):
      parts = urllib.parse.urlsplit(link)
      if parts.scheme in ('data', 'mailto') or (parts.scheme and link in page.links):
        continue
      count += 1
      if parts.scheme or parts.netloc:
        wrong.append('%s loads %s' % (file, link))
        continue
      path = urllib.parse.unquote(parts.path)
      target = os.path.normpath(os.path.join(os.path.dirname(file), path)) if path else file
      if target not in site:
        if not os.path.isfile(os.path.join(folder, target)):
          wrong.append('%s links to %s, and there is no %s' % (file, link, target))
      elif parts.fragment and urllib.parse.unquote(parts.fragment) not in site[target].anchors:
        wrong.append('%s links to %s, and there is no such anchor' % (file, link))
  with open(os.path.join(pages.ROOT, 'docs/errors.md')) as text:
    codes = re.findall(r'^## (LS-\S+)$', text.read(), re.M)
  wrong += ['errors.html has no anchor %s' % code for code in codes if code not in site['errors.html'].anchors]
  counts = (len(site), count, len(codes), len(wrong))
  print('\n'.join(wrong + ['%d pages, %d links, %d codes of errors, %d findings' % counts]))
  return 1 if wrong or not codes else 0


sys.exit(main(sys.argv[1]))

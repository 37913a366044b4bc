# The public headers: those that users include and all that these reach, in the groups that their comments make.
import os
import re

from pages import ROOT

KIT = ['lockstep/testing/%s.h' % one for one in ('local_replicas', 'local_workers', 'conformance', 'world_conformance')]


class Group:
  """Headers of one page: its title and what follows it in the comment above them, and the headers in their order."""

  def __init__(self, comment, umbrella):
    self.umbrella = umbrella
    self.title, _, self.text = ' '.join(comment).partition(': ')
    self.title = self.title.rstrip('.')
    self.headers = []

  def put_below(self, title):
    self.title = title + ': ' + self.title[0].lower() + self.title[1:]
    return self

  def slug(self):
    return re.sub(r'[^a-z]+', '-', self.title.lower()).strip('-')


def includes_of(header):
  with open(os.path.join(ROOT, header)) as file:
    return re.findall(r'^ *#include "(lockstep/[^"]*)"', file.read(), re.M)


def listed_in(umbrella):
  """The groups of a header that only includes others: each comment, with the includes below it."""
  groups, comment = [], []
  with open(os.path.join(ROOT, umbrella)) as file:
    lines = file.read().split('#pragma once', 1)[1].split('\n')
  for line in lines:
    if line.startswith('// '):
      comment.append(line.removeprefix('// '))
    elif line.startswith('#include "'):
      if comment:
        groups.append(Group(comment, umbrella))
        comment = []
      groups[-1].headers.append(line.split('"')[1])
  return groups


def all_groups():
  """Every public header stands in one group. One that no group lists stands behind the first that includes it."""
  groups = listed_in('lockstep/lockstep.h')
  for umbrella in ('lockstep/data.h', 'lockstep/extend.h'):
    at = next(i for i, group in enumerate(groups) if umbrella in group.headers)
    groups[at:at + 1] = [group.put_below(groups[at].title) for group in listed_in(umbrella)]
  kit = Group(['The kit for tests: see docs/testing.md.'], KIT[0])
  kit.headers = list(KIT)
  groups.append(kit)
  seen = set()
  for group in groups:
    group.headers = [header for header in group.headers if not (header in seen or seen.add(header))]
  for group in groups:
    todo = [(header, header) for header in group.headers]
    while todo:
      header, behind = todo.pop(0)
      for included in includes_of(header):
        if included not in seen and os.path.exists(os.path.join(ROOT, included)):
          seen.add(included)
          group.headers.insert(group.headers.index(behind) + 1, included)
          todo.append((included, included))
  return [group for group in groups if group.headers]


def first_comment(path):
  """What a source file says first that it is for."""
  lines = []
  with open(os.path.join(ROOT, path), errors='replace') as file:
    for line in file:
      text = line.strip()
      if text.startswith('#!'):
        continue
      if not text.startswith(('//', '#')) or text.startswith(('#include', '#pragma')):
        break
      lines.append(text.lstrip('/#').strip())
  return ' '.join(lines).strip()

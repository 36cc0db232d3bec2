"""Puts sources together for clang-tidy, which then parses and searches the headers they share once, not once a source.

A group is one text: its sources one after another. (Included from a common file they would not be "the main file",
and misc-unused-using-decls looks nowhere else; clang-tidy 14 does not heed #line.) The checks of
.clang-tidy look at one function or class at a time, or at one name, so that a group hides nothing when
  - its sources have the same flags;
  - no two define the same file-local name (else they do not compile together: compile_each.py then does each alone);
  - what a source brings in by a using-declaration or a macro, no other source of the group mentions.
An include that a source forgot may be given by another one: that is seen by the build, which compiles each alone.
"""
import re

MOST = 24  # sources a group: an even load for few cores, and a group stays under 1 GB

UNNAMED = re.compile(r"^namespace \{\n(.*?)^\}  // namespace$", re.S | re.M)
LOCAL = re.compile(r"^(?:static |inline |constexpr |const |using )+.*?\b(\w+)(?:\(|\[|\{| =|;)", re.M)
DEFINED = re.compile(r"^(?:(?:struct|class|enum class|enum) (\w+)|[A-Za-z_][\w:<>,&* ]*?[ &*](\w+)(?:\(|\[|\{| =|;))", re.M)
BROUGHT = re.compile(r"^\s*(?:using [\w:]*::(\w+);|#define (\w+))", re.M)


def names(groups):
    return {name for pair in groups for name in pair if name}


class Source:
    def __init__(self, text):
        self.words = set(re.findall(r"\w+", text))
        self.brought = names(BROUGHT.findall(text))
        self.local = set(LOCAL.findall(text)) | set(re.findall(r"^int (main)\(", text, re.M))
        for body in UNNAMED.findall(text):
            self.local |= names(DEFINED.findall(body))


class Group:
    def __init__(self, flags):
        self.flags, self.paths = flags, []
        self.words, self.brought, self.local = set(), set(), set()

    def takes(self, flags, source):
        return (self.flags == flags and len(self.paths) < MOST and not self.local & source.local
                and not self.brought & source.words and not source.brought & self.words)

    def add(self, path, source):
        self.paths.append(path)
        self.words |= source.words
        self.brought |= source.brought
        self.local |= source.local


def groups(sources):
    """sources: {path: (flags, text)}, flags a tuple; returns [(flags, [path])], the longest first."""
    made = []
    for path, (flags, text) in sorted(sources.items()):
        source = Source(text)
        group = next((group for group in made if group.takes(flags, source)), None)
        if group is None:
            group = Group(flags)
            made.append(group)
        group.add(path, source)
    return sorted(((group.flags, group.paths) for group in made), key=lambda pair: -len(pair[1]))


def together(texts):
    """The text of a group, and the line that each of its sources begins after."""
    text, begins = "", []
    for part in texts:
        begins.append(text.count("\n"))
        text += part + "\n"
    return text, begins

#!/usr/bin/env python3
"""Parses every file of the project, with the build's own flags.

  compile_each.py headers BUILD         each header compiles alone
  compile_each.py tidy BUILD            clang-tidy (.clang-tidy) and clang's thread-safety analysis, as errors
  compile_each.py self-test BUILD       faults of every kind, alone and in a group, must be refused
"""
import bisect
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import sources
import tidy_groups

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TIDY = ["clang-tidy", "--quiet", "--warnings-as-errors=*", "--config-file=" + os.path.join(ROOT, ".clang-tidy"),
        "--extra-arg=-Wthread-safety", "--extra-arg=-Wno-unknown-warning-option"]


def commands(build):
    return json.load(open(os.path.join(build, "compile_commands.json"), encoding="utf-8"))


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def flags_near(path, entries):
    """Include and define flags of the compile command whose file shares the longest path with `path`."""
    def shared(entry):
        return len(os.path.commonprefix([os.path.relpath(entry["file"], ROOT), path]))
    words = shlex.split(max(entries, key=shared)["command"])
    keep, i = [], 0
    while i < len(words):
        if words[i] in ("-isystem", "-I", "-D"):
            keep += words[i:i + 2]
            i += 1
        elif words[i].startswith(("-I", "-D", "-std", "-isystem")):
            keep.append(words[i])
        i += 1
    return keep


def flags_of(entry):
    """The flags of a compile command, without the compiler, its input and its output."""
    words = shlex.split(entry["command"])
    words = words[[i for i, word in enumerate(words) if word.startswith("-")][0]:]
    at = words.index("-o")
    code_only = ("-c", entry["file"], "-fPIC", "-fPIE")  # change no line of what is parsed
    return tuple(word for word in words[:at] + words[at + 2:] if word not in code_only)


def first_include(text):
    """What the first preprocessor line of a source includes, by its path from the root; None for another line."""
    first = re.search(r"^\s*#.*", text, re.M)
    found = first and re.match(r'\s*#\s*include\s+"([^"]+)"', first.group())
    return found.group(1) if found else None


def proven_by_the_build(entries):
    """Headers that a source includes before anything else, and whose object is newer than both: they compiled alone."""
    proven = set()
    for entry in entries:
        header = first_include(read(entry["file"])) if os.path.exists(entry["file"]) else None
        words = shlex.split(entry["command"])
        built = os.path.join(entry["directory"], words[words.index("-o") + 1])
        files = [entry["file"], os.path.join(ROOT, header or "")]
        if header and all(map(os.path.exists, [built, *files])):
            if os.path.getmtime(built) > max(map(os.path.getmtime, files)):
                proven.add(header)
    return proven


def run(command):
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return result.returncode, result.stdout + result.stderr


def each(work, jobs):
    """work(job) -> (what passed, what failed: {name: text}), for every job; prints what failed."""
    passed, failed = 0, 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for good, bad in pool.map(work, jobs):
            passed += good
            failed += len(bad)
            for name, text in bad.items():
                print(f"== {name}\n{text[:4000]}", flush=True)
    print(f"{passed} of {passed + failed} files pass")
    return 1 if failed else 0


def headers(build):
    entries = commands(build)
    proven = proven_by_the_build(entries)

    def alone(path):
        if path in proven:
            return 1, {}
        paths = [f'-D{name}=""' for name in ("SOUP_TEST_DATA_DIR", "SOUP_SOURCE_DIR", "SOUP_BINARY_DIR")]
        code, text = run(["g++", "-fsyntax-only", "-x", "c++", "-w", *flags_near(path, entries), *paths, path])
        return (0, {path: text}) if code else (1, {})

    every = sources.files(ROOT, ".h")
    print(f"{len(proven.intersection(every))} of {len(every)} were compiled alone by the build: first in a source")
    return each(alone, every)


def run_together(flags, paths, scratch):
    """clang-tidy over the sources as one text, with each warning at its place in its source."""
    text, begins = tidy_groups.together([read(os.path.join(ROOT, path)) for path in paths])
    unit = os.path.join(scratch, f"{len(paths)}_" + paths[0].replace("/", "_"))
    with open(unit, "w", encoding="utf-8") as f:
        f.write(text)

    def place(match):
        line = int(match.group(1)) - 1
        at = bisect.bisect_right(begins, line) - 1
        return f"{paths[at]}:{line - begins[at] + 1}:"
    code, said = run([*TIDY, unit, "--", *flags])
    return code, re.sub(re.escape(unit) + r":(\d+):", place, said)


def tidy_together(flags, paths, scratch):
    """(what passed, {path: text}). Sources that do not go together (a name that two define) are done one by one."""
    code, text = run_together(flags, paths, scratch)
    if code == 0:
        return len(paths), {}
    if len(paths) == 1:
        return 0, {paths[0]: text}
    clash = "clang-diagnostic-error" in text
    if clash:
        print(f"one by one, for they do not go together: {' '.join(paths)}\n{text[:1000]}", flush=True)
    passed, failed = 0, {}
    for path in paths:
        good, bad = tidy_together(flags, [path], scratch)
        passed += good
        failed.update(bad)
    return passed, failed if failed or clash else {" ".join(paths): text}


def tidy(build):
    own = set(sources.files(ROOT, ".cc"))
    wanted = {}
    for entry in commands(build):
        path = os.path.relpath(entry["file"], ROOT)
        if path in own and not path.startswith("tests/"):
            wanted[path] = (flags_of(entry), read(entry["file"]))
    with tempfile.TemporaryDirectory() as scratch:
        return each(lambda group: tidy_together(*group, scratch), tidy_groups.groups(wanted))


# check -> a source with that fault alone
FAULTS = {
    "thread-safety": "struct S { absl::Mutex mu; int n ABSL_GUARDED_BY(mu) = 0; int Get() { return n; } };",
    "bugprone-use-after-move": "size_t F(std::string s) { std::string t = std::move(s); return s.size() + t.size(); }",
    "bugprone-infinite-loop": "int F() { int i = 0; while (i < 3) { } return i; }",
    "bugprone-unused-raii": "struct L { L() {} ~L() { F(); } static void F(); }; void G() { L(); L::F(); }",
    "misc-unused-using-decls": "using std::vector;",
    "performance-move-const-arg": "std::string F(const std::string& s) { return std::move(s); }",
}


def self_test():
    """Every fault is refused, and no good source: in a group, alone, and where the group does not compile."""
    head = ("#include <string>\n#include <utility>\n#include <vector>\n"
            '#include "absl/base/thread_annotations.h"\n#include "absl/synchronization/mutex.h"\n')
    wrong = []
    with tempfile.TemporaryDirectory() as scratch:
        def source(name, text, head=head):
            path = os.path.join(scratch, name + ".cc")
            with open(path, "w", encoding="utf-8") as f:
                f.write(f"{head}namespace {re.sub('[^a-z]', '_', name)} {{\n{text}\n}}\n")
            return path
        bad = {check: source(check, text) for check, text in FAULTS.items()}
        good = source("good", "size_t F(const std::string& s) { return s.size(); }")
        flags = ("-std=c++20",)
        _, text = run_together(flags, [good, *bad.values()], scratch)
        wrong += [f"a group hides {check}" for check, path in bad.items() if not re.search(f"{re.escape(path)}:7:.*{check}", text)]
        wrong += ["a good source is refused in a group"] if good in text else []
        twice = [source(name, "}\nint two(int n) { return n; }\nnamespace x {", "") for name in ("one", "other")]
        passed, failed = tidy_together(flags, [*twice, bad["thread-safety"]], scratch)
        if passed != 2 or "thread-safety" not in failed.get(bad["thread-safety"], ""):
            wrong.append("sources that do not go together are not done one by one")
        if tidy_together(flags, twice, scratch) != (2, {}):
            wrong.append("good sources that do not go together are refused")
    paths = [paths for _, paths in tidy_groups.groups({
        "a.cc": ((), "using x::Y;\n"), "b.cc": ((), "x::Y y;\n"), "c.cc": ((), "namespace {\nint F(int n) {\n}\n}  // namespace\n"),
        "d.cc": ((), "namespace {\nint F() {\n}\n}  // namespace\n"), "e.cc": (("-O3",), "")})]
    if sorted(paths) != [["a.cc", "c.cc"], ["b.cc", "d.cc"], ["e.cc"]]:
        wrong.append(f"grouped as {paths}")
    if first_include('// x\n#include "a/b.h"\n#include <c>\n') != "a/b.h" or first_include('#define A\n#include "a.h"\n'):
        wrong.append("the first include is not found")
    print("\n".join(wrong) or "refused, as they should be")
    return 1 if wrong else 0


what, build = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
sys.exit({"headers": lambda: headers(build), "tidy": lambda: tidy(build), "self-test": self_test}[what]())

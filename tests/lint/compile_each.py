#!/usr/bin/env python3
"""Parses every file of the project one by one, with the build's own flags.

  compile_each.py headers BUILD         each header compiles alone
  compile_each.py tidy BUILD            clang-tidy (.clang-tidy) and clang's thread-safety analysis, as errors
  compile_each.py tidy-self-test BUILD  a file with an unguarded access must be refused
"""
import concurrent.futures
import json
import os
import shlex
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import sources

TIDY = ["clang-tidy", "--quiet", "--warnings-as-errors=*", "--extra-arg=-Wthread-safety", "--extra-arg=-Wno-unknown-warning-option"]


def commands(build):
    return json.load(open(os.path.join(build, "compile_commands.json"), encoding="utf-8"))


def flags_near(path, entries, root):
    """Include and define flags of the compile command whose file shares the longest path with `path`."""
    def shared(entry):
        return len(os.path.commonprefix([os.path.relpath(entry["file"], root), path]))
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


def run(command, cwd):
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    return result.returncode, result.stdout + result.stderr


def each(jobs):
    """jobs: {name: (command, cwd)}; prints what failed."""
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        pending = {pool.submit(run, command, cwd): name for name, (command, cwd) in jobs.items()}
        for done in concurrent.futures.as_completed(pending):
            code, text = done.result()
            if code:
                failed += 1
                print(f"== {pending[done]}\n{text[:4000]}")
    print(f"{len(jobs) - failed} of {len(jobs)} files pass")
    return 1 if failed else 0


def main():
    what, build = sys.argv[1:3]
    entries = commands(build)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if what == "headers":
        jobs = {}
        for path in sources.files(root, ".h"):
            paths = [f'-D{name}=""' for name in ("SOUP_TEST_DATA_DIR", "SOUP_SOURCE_DIR", "SOUP_BINARY_DIR")]
            command = ["g++", "-fsyntax-only", "-x", "c++", "-w", *flags_near(path, entries, root), *paths, path]
            jobs[path] = (command, root)
        return each(jobs)
    if what == "tidy":
        own = set(sources.files(root, ".cc"))
        jobs = {}
        for entry in entries:
            path = os.path.relpath(entry["file"], root)
            if path in own and not path.startswith("tests/"):
                jobs[path] = ([*TIDY, "-p", build, entry["file"]], root)
        return each(jobs)
    with tempfile.TemporaryDirectory() as scratch:
        bad = os.path.join(scratch, "race.cc")
        with open(bad, "w", encoding="utf-8") as f:
            f.write('#include "absl/base/thread_annotations.h"\n#include "absl/synchronization/mutex.h"\n'
                    "struct S {\n  absl::Mutex mu;\n  int n ABSL_GUARDED_BY(mu) = 0;\n  int Get() { return n; }\n};\n"
                    "int main() { return S().Get(); }\n")
        code, text = run([*TIDY, "--config-file=" + os.path.join(root, ".clang-tidy"), bad, "--", "-std=c++20"], root)
        ok = code != 0 and "thread-safety" in text
        print("refused, as it should be" if ok else f"not refused:\n{text}")
        return 0 if ok else 1


sys.exit(main())

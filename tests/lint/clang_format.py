#!/usr/bin/env python3
"""clang_format.py ROOT: every C++ file is as clang-format (Debian's, .clang-format) would write it."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import sources

root = sys.argv[1]
paths = sources.files(root, ".h", ".cc", ".cu", ".cuh")
result = subprocess.run(["clang-format", "--dry-run", "--Werror", *paths], cwd=root, capture_output=True, text=True)
if result.returncode:
    wrong = sorted({line.split(":")[0] for line in result.stderr.splitlines() if "error:" in line})
    print("not formatted; run: clang-format -i " + " ".join(wrong))
    sys.exit(1)
print(f"{len(paths)} files are formatted")

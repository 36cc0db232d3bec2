"""The project's own C++ files, as git sees them (tracked, and untracked but not ignored)."""
import os
import subprocess


def files(root, *endings):
    out = subprocess.run(["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard"],
                         check=True, capture_output=True, text=True).stdout
    return sorted(f for f in set(out.splitlines()) if f.endswith(endings) and os.path.exists(os.path.join(root, f)))

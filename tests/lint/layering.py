#!/usr/bin/env python3
"""layering.py ROOT: every #include "…" obeys the table of folders in docs/ARCHITECTURE.md. --self-test shows a breach caught."""
import re
import sys

import os
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import sources

# folder -> folders whose headers it may include, besides its own. The longest matching folder owns a file.
MAY_INCLUDE = {
    "kernels": [],
    "engine/base": [],
    "engine/io": ["engine/base"],
    "engine/model": ["engine/base"],
    "engine/plan": ["engine/base", "engine/model"],
    "engine/device": ["kernels", "engine/base", "engine/plan"],
    "engine/data": ["engine/base"],
    "engine/train": ["kernels", "engine"],
    "cache": ["engine/base", "engine/io", "engine/model", "kernels"],
    "daemon/common": ["proto", "engine/base", "engine/model", "engine/plan"],
    "daemon/control": ["proto", "daemon/common", "engine/base", "engine/plan", "engine/model", "cache"],
    "daemon/worker": ["proto", "daemon/common", "engine", "kernels"],
    "client": ["proto", "engine/base"],
    "bench": ["engine", "kernels"],
}
# Third-party headers that only some folders may see.
CONFINED = {
    r"cuda\w*\.h|cublas\w*\.h|cudnn\w*\.h": ("kernels/cuda", "engine/device"),
    r"cblas\.h": ("kernels/cpu",),
    r"grpc(pp)?/.*": ("daemon", "client", "proto"),
    r"absl/.*": ("engine", "cache", "daemon", "client", "bench"),
    r"rocksdb/.*": ("cache",),
    r"sqlite3\.h": ("daemon/control",),
    r"prometheus/.*": ("daemon/control",),
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def owner(path):
    best = ""
    for folder in list(MAY_INCLUDE) + ["proto"]:
        if path.startswith(folder + "/") and len(folder) > len(best):
            best = folder
    if not best and path.startswith("soup/"):
        return "proto"  # generated headers are included as soup/v1/…
    return best


def breaches(path, text):
    me = owner(path)
    if not me:
        return []
    found = []
    for _, target in INCLUDE.findall(text):
        other = owner(target)
        allowed = [me] + MAY_INCLUDE[me]
        if other and not any(other == a or other.startswith(a + "/") for a in allowed):
            found.append(f"{path}: {me} may not include {target}")
        for pattern, folders in CONFINED.items():
            if re.fullmatch(pattern, target) and not any(path.startswith(f + "/") for f in folders):
                found.append(f"{path}: {target} belongs in {', '.join(folders)} only")
    return found


def main():
    if sys.argv[1:] == ["--self-test"]:
        bad = breaches("engine/plan/x.h", '#include "daemon/control/job_store.h"\n') + \
            breaches("engine/train/x.cc", "#include <grpcpp/grpcpp.h>\n") + breaches("kernels/ops.h", '#include "absl/status/status.h"\n')
        good = breaches("engine/plan/x.h", '#include "engine/model/model_spec.h"\n#include <vector>\n')
        sys.exit(0 if len(bad) == 3 and not good else f"self-test: {bad} {good}")
    root = sys.argv[1]
    paths = sources.files(root, ".h", ".cc", ".cu", ".cuh")
    bad = [b for p in paths for b in breaches(p, open(os.path.join(root, p), encoding="utf-8").read())]
    print("\n".join(bad) or f"{len(paths)} files keep to the table")
    sys.exit(1 if bad else 0)


main()

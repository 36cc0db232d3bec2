"""check_gguf.py GOLDEN_CHECK DIR: golden_check on a golden folder whose weights and config come from a GGUF, written by PyPI's
gguf (tests/engine/io/make_gguf.py). Exit 77 (skipped) when gguf is not there. Not for gemma: the golden folders' query_pre_attn_scalar
is no metadata of a GGUF (make_golden.py --set query_pre_attn_scalar=32 makes folders for which it is the default)."""
import os, subprocess, sys, tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "io"))
try:
    import make_gguf
except ImportError as e:
    print("skipped:", e)
    sys.exit(77)

check, golden = sys.argv[1:]
golden = os.path.normpath(golden)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "model.gguf")
    make_gguf.family(path, golden, make_gguf.FAMILIES[os.path.basename(golden)])
    sys.exit(subprocess.run([check, golden, "--base", path]).returncode)

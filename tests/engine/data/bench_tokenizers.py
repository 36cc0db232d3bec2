"""bench_tokenizers.py PROBE SECONDS FILE...: engine/data against PyPI's tokenizers on one thread, side by side, for each
tokenizer.json FILE: prose and code as documents and as lines, other scripts, and texts that trap (one very long
word, runs of blanks, digits, nothing but rare characters). The fastest of the rounds that fit into SECONDS of the
process's own time counts for both; tokens must agree. Exit 1 when ours is slower anywhere, 77 (skipped) when tokenizers is not there."""
import glob, json, os, random, subprocess, sys, sysconfig, time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
try:
    import tokenizers
except ImportError:
    print("skipped: Python has no tokenizers")
    sys.exit(77)


def corpora():
    rng = random.Random(7)
    library = sysconfig.get_paths()["stdlib"]
    code = [open(f, encoding="utf-8", errors="ignore").read() for f in sorted(glob.glob(library + "/*.py"))[:120]]
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
    prose = [open(f, encoding="utf-8").read() for f in sorted(glob.glob(root + "/docs/*.md") + glob.glob(root + "/*.md"))]
    cases = [c["text"] for f in sorted(glob.glob(root + "/tests/golden/tokenizers/*.cases.json")) for c in json.load(open(f, encoding="utf-8"))]
    scripts = ["".join(chr(rng.randrange(a, b)) if rng.random() < 0.85 else " " for _ in range(2000)) for a, b in [(0x4e00, 0x9fa5), (0xac00, 0xd7a3), (0x410, 0x44f), (0x621, 0x63a), (0x905, 0x939), (0x3041, 0x3096)] for _ in range(8)]
    yield "code", code
    yield "prose", prose * 4
    yield "code, by line", [line for text in code[:40] for line in text.split("\n")]
    yield "cases", cases * 10
    yield "other scripts", scripts
    yield "one long word", ["a" * 200000, "ab" * 100000, "".join(rng.choice("abcdefgh") for _ in range(200000))]
    yield "blanks", [" " * 200000 + "x", "\n" * 200000, ("\t" * 50 + "x") * 2000, "x " * 100000]
    yield "digits and marks", ["1234567890" * 20000, "!?" * 100000, "\U0001f642" * 50000, "\u0301" * 50000]


def main():
    probe, seconds, files = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    slower = 0
    for path in files:
        theirs = tokenizers.Tokenizer.from_file(path)
        for name, texts in corpora():
            best, start = None, time.process_time()
            while best is None or time.process_time() - start < seconds:
                fresh = tokenizers.Tokenizer.from_str(theirs.to_str())  # each round learns the words anew
                at = time.process_time()
                encoded = fresh.encode_batch_fast(texts, add_special_tokens=False)
                took = time.process_time() - at
                best = took if best is None else min(best, took)
            data = "".join(json.dumps({"text": t}) + "\n" for t in texts)
            ours = json.loads(subprocess.run([probe, "tokenizer-speed", path, str(seconds)], input=data, capture_output=True, text=True, check=True).stdout)
            tokens = sum(len(e.ids) for e in encoded)
            assert tokens == ours["tokens"], (path, name, tokens, ours)
            rate = ours["bytes"] / 1e6
            slower += ours["seconds"] > best
            print("%-20s %-18s %6.1f MB: tokenizers %7.2f MB/s, ours %7.2f MB/s, %5.2fx" % (os.path.basename(path).replace(".json", ""), name, rate, rate / best, rate / ours["seconds"], best / ours["seconds"]))
    print("%d slower than tokenizers %s" % (slower, tokenizers.__version__))
    sys.exit(1 if slower else 0)


if __name__ == "__main__":
    main()

"""compare_tokenizers.py PROBE DIR [--plain] [FILE...]: encodes and decodes random and real strings with PyPI's
tokenizers and with engine/data, for every tokenizer.json of DIR and for variations of its components (none with
--plain), and for FILEs as they are, and compares; bytes that are no UTF-8 must be refused. SOUP_FUZZ_CASES: strings a
variation. Exit 77 (skipped) when tokenizers is not there. Prints the seed."""
import glob, json, os, random, subprocess, sys, tempfile, unicodedata

try:
    import tokenizers
except ImportError:
    print("skipped: Python has no tokenizers")
    sys.exit(77)

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


def added(i, content, **flags):
    return dict({"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}, **flags)


# Over characters: normaliser, Metaspace, byte fallback, unknown tokens, decoders.
def character_variations(base):
    space = lambda scheme, split: {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": split}
    model, prepend, replace = base["model"], {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    decoders = base["decoder"]["decoders"]
    for scheme in ("first", "always", "never"):
        for cut in (False, True):
            yield "metaspace %s %s" % (scheme, cut), dict(base, normalizer=None, pre_tokenizer=space(scheme, cut), decoder={"type": "Sequence", "decoders": [{"type": "ByteFallback"}, space(scheme, cut)]})
    yield "metaspace after replace", dict(base, normalizer=replace, pre_tokenizer=space("first", True), decoder=space("first", True))
    yield "gemma", dict(base, normalizer=replace, pre_tokenizer=split({"String": " "}, "MergedWithPrevious"), decoder={"type": "Sequence", "decoders": decoders[:3]})
    yield "split", dict(base, pre_tokenizer=sequence(split({"Regex": "\u2581+"}, "MergedWithNext"), {"type": "Digits", "individual_digits": True}))
    yield "prepend alone", dict(base, normalizer=prepend)
    yield "regex", dict(base, normalizer={"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": "\u2581"}, prepend]})
    yield "strip", dict(base, decoder={"type": "Sequence", "decoders": [{"type": "Strip", "content": "\u2581", "start": 1, "stop": 0}, {"type": "Replace", "pattern": {"Regex": "\u2581+"}, "content": "_"}, {"type": "Fuse"}, {"type": "Strip", "content": "_", "start": 2, "stop": 0}]})
    yield "no decoder", dict(base, decoder=None)
    yield "ignore_merges", dict(base, model=dict(model, ignore_merges=True))
    free = 1 + max(model["vocab"].values())
    tokens = [added(free, "<|sep|>", lstrip=True, rstrip=True), added(free + 1, "yo", single_word=True), added(free + 2, "<|a|>", normalized=True), added(free + 3, "<|a|>b", rstrip=True), added(free + 4, " x ", normalized=True, special=False)]
    tokens = [t for t in tokens if t["content"] not in model["vocab"]]
    tokens = [dict(t, id=free + i) for i, t in enumerate(tokens)]
    yield "added", dict(base, added_tokens=base["added_tokens"] + tokens)
    yield "added metaspace", dict(base, added_tokens=base["added_tokens"] + tokens, normalizer=None, pre_tokenizer=space("first", False))
    for fuse in (False, True):
        yield "no fallback %s" % fuse, dict(base, model=dict(model, byte_fallback=False, fuse_unk=fuse))
        some = {("\u2603" + k if k in ("<0xC3>", "<0xF0>", "<0x0A>") else k): v for k, v in model["vocab"].items()}
        few = [t for t in base["added_tokens"] if t["content"] in some]
        yield "some bytes %s" % fuse, dict(base, added_tokens=few, model=dict(model, vocab=some, fuse_unk=fuse))
    yield "no unk", dict(base, model=dict(model, byte_fallback=False, unk_token=None))
    # Merges that never cross a blank, as real vocabularies have them: texts are cut there.
    parts = lambda m: m.split(" ", 1) if isinstance(m, str) else m
    inside = lambda t: "\u2581" not in t.lstrip("\u2581")
    yield "words", dict(base, model=dict(model, merges=[m for m in model["merges"] if inside("".join(parts(m)))]))
    yield "byte merges", dict(base, model=dict(model, vocab=dict(model["vocab"], **{"<unk>\u2581": free, "<0xC3>\u2581": free + 1}), merges=[["<unk>", "\u2581"], ["<0xC3>", "\u2581"]] + model["merges"], byte_fallback=False))


def variations(base):
    yield "itself", base
    if base["model"].get("byte_fallback"):
        yield from character_variations(base)
        return
    pre = {
        "smollm": sequence({"type": "Digits", "individual_digits": True}, dict(BYTE_LEVEL, use_regex=True)),
        "digits": sequence({"type": "Digits", "individual_digits": False}, dict(BYTE_LEVEL, use_regex=True)),
        "llama3": sequence(split({"Regex": LLAMA3}), BYTE_LEVEL), "o200k": sequence(split({"Regex": O200K}), BYTE_LEVEL),
        "deepseek": sequence(split({"Regex": r"\p{N}{1,3}"}), split({"Regex": r"[一-龥぀-ゟ゠-ヿ]+"}), split({"Regex": DEEPSEEK}), BYTE_LEVEL),
        "prefix": dict(BYTE_LEVEL, add_prefix_space=True, use_regex=True), "plain": BYTE_LEVEL,
        "removed": sequence(split({"String": " "}, "Removed"), BYTE_LEVEL), "previous": sequence(split({"Regex": r"\s+"}, "MergedWithPrevious"), BYTE_LEVEL),
        "next": sequence(split({"Regex": r"\s"}, "MergedWithNext"), BYTE_LEVEL), "contiguous": sequence(split({"Regex": r"\p{P}"}, "Contiguous"), BYTE_LEVEL),
        "invert": sequence(split({"Regex": r"\p{L}+"}, "Removed", True), BYTE_LEVEL), "nested": sequence(sequence(split({"String": "a"})), sequence(BYTE_LEVEL)),
    }
    for name, value in pre.items():
        yield name, dict(base, pre_tokenizer=value)
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        yield form, dict(base, normalizer={"type": "Sequence", "normalizers": [{"type": form}]})
    model = base["model"]
    yield "ignore_merges", dict(base, model=dict(model, ignore_merges=True))
    yield "string merges", dict(base, model=dict(model, merges=[m if isinstance(m, str) else " ".join(m) for m in model["merges"]]))
    free = 1 + max(list(model["vocab"].values()) + [t["id"] for t in base["added_tokens"]])
    tokens = [added(free, "<|sep|>", lstrip=True, rstrip=True), added(free + 1, "yo", single_word=True), added(free + 2, "<|a|>"), added(free + 3, "<|a|>b"),
              added(free + 4, "éz", normalized=True, special=False), added(free + 5, " x ", normalized=True, special=False), added(free + 6, "zzt", single_word=True, lstrip=True, special=False)]
    for t in tokens:  # a token of the vocabulary keeps its id
        t["id"] = model["vocab"].get(t["content"], t["id"])
    tokens = [t for t in tokens if t["id"] < free] + [dict(t, id=free + i) for i, t in enumerate(t for t in tokens if t["id"] >= free)]
    yield "added", dict(base, added_tokens=base["added_tokens"] + tokens)
    yield "added NFD", dict(base, added_tokens=base["added_tokens"] + tokens, normalizer={"type": "NFD"})
    # Names nobody writes in place of two bytes' tokens: tokenizers numbers added tokens by the vocabulary's size.
    missing = {{"q": "\u2603q", "Ã": "\u2603A"}.get(k, k): v for k, v in model["vocab"].items()}
    parts = lambda m: m.split(" ") if isinstance(m, str) else m
    merges = [m for m in model["merges"] if all(p in missing for p in parts(m) + ["".join(parts(m))])]
    yield "missing bytes", dict(base, model=dict(model, vocab=missing, merges=merges))
    unk = {"<unk>" if k == "\u2603q" else k: v for k, v in missing.items()}
    yield "unk", dict(base, model=dict(model, vocab=unk, merges=merges, unk_token="<unk>"))
    yield "fused unk", dict(base, model=dict(model, vocab=unk, merges=merges, unk_token="<unk>", fuse_unk=True))


# Of Unicode 14, and of 15 and 16.
NEWER = [*range(0x870, 0x888), 0x0cf3, 0x1c89, 0x1c8a, 0x2427, *range(0x105c0, 0x105f0, 3), *range(0x10d40, 0x10d80, 3), *range(0x11f00, 0x11f59, 3), *range(0x13460, 0x143f0, 300), *range(0x1e4d0, 0x1e4f9, 2), 0x1fa75, 0x1fae9, *range(0x31350, 0x32390, 300), *range(0x2ebf0, 0x2ee50, 99),
         0x8ca, 0xc3c, 0x1ac1, 0x1df6, 0x32ff, 0xa7f2, 0xab69, 0x105d2, 0x307, 0x11935, 0x11930, 0x11938, 0x11f42, 0x16121, 0x1611f, 0x1e4ec, 0x1e4ee, 0x1fbf0]


def characters():
    ranges = [(0x20, 0x7f), (0xa0, 0x250), (0x250, 0x370), (0x370, 0x400), (0x400, 0x530), (0x5d0, 0x5eb), (0x620, 0x660), (0x660, 0x66a), (0x900, 0x950), (0x966, 0x970), (0xe01, 0xe3b), (0x1100, 0x1160),
              (0x1e00, 0x1f00), (0x2000, 0x2030), (0x2070, 0x2095), (0x20a0, 0x20be), (0x2150, 0x2189), (0x2460, 0x24ea), (0x3000, 0x3030), (0x3041, 0x3097), (0x30a0, 0x30ff), (0x4e00, 0x4f00), (0xac00, 0xad00), (0xff01, 0xff5f),
              (0x1d400, 0x1d455), (0x1f300, 0x1f380), (0x1f600, 0x1f640), (0x300, 0x345)]
    return [chr(c) for a, b in ranges for c in range(a, b) if unicodedata.category(chr(c)) != "Cn"]


def texts(rng, corpus, count):
    chars = characters()
    spaces = [" ", "  ", "\n", "\t", "\r\n", "\r", "\u00a0", "\u3000", "\u2028", "\u0085", "\x0b", "\x0c", "\x1c", "\u180e", "\u200b", "\ufeff"]
    words = ["the", "zzt", "yo", "Yo", "don't", "WE'LL", "it's", "\u017fs", "'\u017f", "1234567", "3.14", "x_y", "a-b", "<|sep|>", "<|a|>", "<|a|>b", "<|im_start|>", "<|im_end|>", "é", "éz", "e\u0301", "e\u0301z", "ﬁ", "Ǆ", "ß", "🙂", "👩‍👩‍👧", "日本語", "한국어", "नमस्ते", "שלום", "مرحبا", "²³", "½", "Ⅷ", "\x00", "\x7f", "...", "!?", "{}", "//", "q", "Ã"]
    yield from ["", " ", "\n\n  \n", "a" * 5000, " " * 300 + "x", "\n" * 300, "ab" * 2000, "9" * 1000]
    for _ in range(count):
        kind = rng.random()
        if kind < 0.05:  # code points of all planes
            planes = [0x110000, 0x10000, 0x3000, 0x20000]
            yield "".join(chr(c) for c in (rng.randrange(rng.choice(planes)) for _ in range(rng.randrange(1, 16))) if not 0xd800 <= c < 0xe000)
        elif kind < 0.1:
            yield "".join(rng.choice(words) if rng.random() < 0.3 else chr(rng.choice(NEWER)) for _ in range(rng.randrange(1, 12)))
        elif kind < 0.4:
            yield "".join(rng.choice(words) if rng.random() < 0.6 else rng.choice(spaces) for _ in range(rng.randrange(1, 12)))
        elif kind < 0.6:
            yield "".join(rng.choice(chars) if rng.random() < 0.8 else rng.choice(spaces) for _ in range(rng.randrange(1, 24)))
        else:
            at = rng.randrange(max(1, len(corpus) - 200))
            yield corpus[at:at + rng.randrange(1, 200)]


def compare(probe, path, lines):
    theirs = tokenizers.Tokenizer.from_file(path)
    data = "".join(json.dumps({"text": t}) + "\n" for t in lines)
    run = subprocess.run([probe, "tokenizer", path], input=data, capture_output=True, text=True)
    if run.returncode != 0:
        return ["does not load: " + run.stderr]
    bad = []
    for text, answer in zip(lines, run.stdout.split("\n")):
        ours, ids = json.loads(answer), theirs.encode(text, add_special_tokens=False).ids
        if ours.get("ids") != ids:
            bad.append("%r\n    tokenizers: %r\n    ours:       %r" % (text[:200], ids[:60], str(ours)[:400]))
        elif ours["decoded"] != theirs.decode(ids, skip_special_tokens=False):
            bad.append("%r decodes\n    tokenizers: %r\n    ours:       %r" % (text[:200], theirs.decode(ids, skip_special_tokens=False)[:200], ours["decoded"][:200]))
    return bad


# Bytes at random: refused when they are no UTF-8, and only then.
def compare_bytes(probe, path, rng, count):
    pieces = [b"a", b" ", b"<s>", b"\xc3\xa9", b"\xe2\x96\x81", b"\xf0\x9f\x99\x82", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x96", b"\x80", b"\xf0\x9f", b"\xc3"]
    lines = [b"".join(rng.choice(pieces) for _ in range(rng.randrange(1, 6))) for _ in range(count)]
    data = "".join(json.dumps({"hex": t.hex()}) + "\n" for t in lines)
    answers = subprocess.run([probe, "tokenizer", path], input=data, capture_output=True, text=True, check=True).stdout.split("\n")
    bad = []
    for text, answer in zip(lines, answers):
        try:
            text.decode("utf-8")
            valid = True
        except UnicodeDecodeError:
            valid = False
        if valid != ("ids" in json.loads(answer)) or (not valid and "not UTF-8" not in answer):
            bad.append("%r: %s" % (text, answer[:200]))
    return bad


def main():
    probe, folder = sys.argv[1:3]
    plain, files = "--plain" in sys.argv[3:], [a for a in sys.argv[3:] if a != "--plain"]
    seed = int(os.environ.get("SOUP_TEST_SEED", "20260101"))
    count = int(os.environ.get("SOUP_FUZZ_CASES", "100"))
    here = os.path.dirname(os.path.abspath(__file__))
    corpus = "".join(open(f, encoding="utf-8").read() for f in sorted(glob.glob(here + "/*.py") + glob.glob(here + "/*.cc") + glob.glob(folder + "/*.cases.json")))
    corpus += "".join(c["text"] for f in sorted(glob.glob(folder + "/*.cases.json")) for c in json.load(open(f, encoding="utf-8")))
    total = bad = 0
    for path in [f for f in sorted(glob.glob(folder + "/*.json")) if not f.endswith(".cases.json")] + files:
        base = json.load(open(path, encoding="utf-8"))
        for name, changed in [("itself", base)] if plain or path in files else variations(base):
            rng = random.Random("%d %s %s" % (seed, os.path.basename(path), name))
            with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as f:
                json.dump(changed, f)
                f.flush()
                lines = list(texts(rng, corpus, count))
                found = compare(probe, f.name, lines)
                if name == "itself" and not found:
                    found = compare_bytes(probe, f.name, rng, 200)
            total += len(lines)
            bad += len(found)
            for text in found[:3]:
                print("DIFFERS (%s, %s, SOUP_TEST_SEED=%d): %s" % (os.path.basename(path), name, seed, text))
    print("%d texts, %d differ, seed %d, tokenizers %s" % (total, bad, seed, tokenizers.__version__))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()

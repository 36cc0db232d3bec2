"""make_gguf_tokenizers.py DIR: writes <style>.gguf and <style>.cases.json of tests/golden/gguf_tokenizers, with PyPI's gguf
0.19, tokenizers 0.23 and transformers 5.24.

A SentencePiece-like vocabulary (from tests/golden/tokenizers/llama2_style.json) in three manners. The GGUF has what llama.cpp's
converter writes of it: pieces, scores, types, user-defined blanks as blanks with a score of -1000. The ids are those of the
tokenizer that transformers' converters make of it: merges by transformers' generate_merges, gemma's tab, Phi-3's rstrip."""
import json, os, sys

import gguf
from gguf import TokenType as K
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers.tokenization_utils_base import generate_merges

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "..", "..", "golden", "tokenizers", "llama2_style")
MARK = "\u2581"
TEXTS = ["a\n\nb\n\n\n\nc", "  x   y    z     w", "\t\tin\tin in", "a\tin\n\tin.", MARK + MARK + " literal " + MARK, "<0x09>\t", "<start_of_turn>user\nHi there<end_of_turn>\n<start_of_turn>model\n", "<s> one </s>  two<s>three",
         "<|user|>\n Hello\t\n<|end|> \n<|assistant|>\nHi<|end|><|endoftext|> \n x", "<|system|>   be brief<|end|>", "<unk> x<bos> y<eos>  z<pad>", " ", "  ", "\n", "\t", "\t\t\t", " \n \n  ", "日本語 🙂 naïve", "[PAD2511] <unused0>in"]


def pieces():
    model = json.load(open(SOURCE + ".json", encoding="utf-8"))["model"]
    order = sorted(model["vocab"], key=model["vocab"].get)
    merged = {a + b for a, b in model["merges"]}
    return [p for p in order if p not in merged and not p.startswith("<")], [p for p in order if p in merged]


def llama2(extra=()):
    characters, merged = pieces()
    out = [("<unk>", 0.0, K.UNKNOWN), ("<s>", 0.0, K.CONTROL), ("</s>", 0.0, K.CONTROL)]
    out += [("<0x%02X>" % b, 0.0, K.BYTE) for b in range(256)]
    out += [(p, -float(i), K.NORMAL) for i, p in enumerate(merged)] + [(p, -float(len(merged) + i), K.NORMAL) for i, p in enumerate(characters)]
    return out


def gemma():
    characters, merged = pieces()
    user = ["<mask>", "\n\n", "\n\n\n", "\n\n\n\n", MARK * 2, MARK * 3, MARK * 4, "\t\t", "\t\t\t", "<start_of_turn>", "<end_of_turn>", "<unused0>"]
    out = [("<pad>", 0.0, K.CONTROL), ("<eos>", 0.0, K.CONTROL), ("<bos>", 0.0, K.CONTROL), ("<unk>", 0.0, K.UNKNOWN)]
    out += [(p, 0.0, K.USER_DEFINED) for p in user] + [("<0x%02X>" % b, 0.0, K.BYTE) for b in range(256)]
    merged = [p for p in merged if p not in user] + ["\tin"]
    out += [(p, -float(i), K.NORMAL) for i, p in enumerate(merged)] + [(p, -float(len(merged) + i), K.NORMAL) for i, p in enumerate(characters)]
    return out


def merges_of(pieces, tab):
    vocab = {p: i for i, (p, _, _) in enumerate(pieces)}
    scores = {p: s for p, s, _ in pieces}
    if tab:
        vocab["\t"] = vocab["<0x09>"]
        scores = {("\t" if p == "<0x09>" else p): s for p, s in scores.items()}
    merges = generate_merges(vocab, scores)
    if tab:
        del vocab["<0x09>"]
    return vocab, merges


def hugging_face(style, pieces, added):
    vocab, merges = merges_of(pieces, style == "gemma")
    t = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace, back = normalizers.Replace(" ", MARK), [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if style == "gemma":
        t.normalizer, t.pre_tokenizer = replace, pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        t.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), replace])
        back.append(decoders.Strip(content=" ", left=1))
    t.decoder = decoders.Sequence(back)
    strips = {"</s>", *(p for p, _, _ in added)} - {"<|endoftext|>"} if style == "phi3" else set()
    for p, _, kind in pieces + added:
        if kind in (K.UNKNOWN, K.CONTROL):
            t.add_special_tokens([AddedToken(p, normalized=False, special=True, rstrip=p in strips)])
        elif kind == K.USER_DEFINED:
            t.add_tokens([AddedToken(p, normalized=False, special=False)])
    return t


def write(folder, style, arch, pieces, added):
    w = gguf.GGUFWriter(os.path.join(folder, style + ".gguf"), arch)
    tokens, scores, kinds = [], [], []
    for p, s, kind in pieces + added:
        if kind == K.USER_DEFINED:
            special = p in ("<mask>", "<start_of_turn>", "<end_of_turn>") or p.startswith("<unused")
            p, s, kind = (p, s, K.CONTROL) if special else (p.replace(MARK, " "), -1000.0, kind)
        tokens.append(p), scores.append(s), kinds.append(kind)
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_scores(scores)
    w.add_token_types(kinds)
    w.add_bos_token_id(tokens.index("<bos>" if style == "gemma" else "<s>"))
    w.add_eos_token_id(tokens.index("<eos>" if style == "gemma" else "</s>"))
    w.add_unk_token_id(tokens.index("<unk>"))
    w.add_add_bos_token(True)
    if style == "gemma":
        w.add_add_space_prefix(False)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main(folder):
    texts = [c["text"] for c in json.load(open(SOURCE + ".cases.json", encoding="utf-8"))] + TEXTS
    names = ["<|endoftext|>", "<|assistant|>", "<|placeholder1|>", "<|placeholder2|>", "<|placeholder3|>", "<|placeholder4|>", "<|system|>", "<|end|>", "<|placeholder5|>", "<|placeholder6|>", "<|user|>"]
    for style, arch, base, added in (("llama2", "llama", llama2(), []), ("gemma", "gemma2", gemma(), []), ("phi3", "phi3", llama2(), [(n, -1000.0, K.CONTROL) for n in names])):
        write(folder, style, arch, base, added + ([("[PAD%d]" % (len(base) + len(added) + i), -10000.0, K.UNUSED) for i in range(3)] if added else []))
        t = hugging_face(style, base, added)
        assert all(t.token_to_id(p) == i for i, (p, _, _) in enumerate(base + added) if not (style == "gemma" and p == "<0x09>"))
        cases = []
        for text in texts:
            ids = t.encode(text, add_special_tokens=False).ids
            cases.append({"text": text, "ids": ids, "decoded": t.decode(ids, skip_special_tokens=False)})
        with open(os.path.join(folder, style + ".cases.json"), "w", encoding="utf-8") as f:
            json.dump(cases, f, ensure_ascii=False, separators=(",", ":"))
            f.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])

"""make_gguf.py DIR: writes the GGUF files of tests/golden/gguf, with PyPI's gguf 0.19 and numpy.

quants.gguf: one tensor a type, of random blocks (scales of every kind, both signs, subnormal ones too), and
quants.f32: what gguf.quants.dequantize makes of each, in the order of the names, fp32 little-endian.
make_gguf.py --seeds DIR: the small models of tests/fuzz/corpus/gguf_model.
make_gguf.py --families DIR: <family>.gguf of each golden folder, tensors called as gguf's own name maps say (not kept in
the repository; SOUP_TEST_GGUF_DIR=DIR gguf_import_test compares their slabs with the folders').
llama.gguf: the golden llama (tests/golden/llama) as a GGUF: rows of q and k by interleaved pairs, matrices in
BF16, norms in F32; what is imported from it must have the same slabs."""
import json, os, struct, sys

import numpy as np
import gguf
from gguf import GGMLQuantizationType as T
from gguf.constants import GGML_QUANT_SIZES

HALVES = {T.Q8_0: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q4_K: [0, 2], T.Q6_K: [208]}  # where fp16 scales lie


def random_blocks(rng, kind, rows, columns):
    block, size = GGML_QUANT_SIZES[kind]
    n = rows * columns // block
    if kind == T.F32:
        return rng.normal(size=(rows, columns)).astype(np.float32)
    if kind in (T.F16, T.BF16):
        bits = (rng.normal(size=(rows, columns)).astype(np.float32)).view(np.uint32)
        return rng.normal(size=(rows, columns)).astype(np.float16) if kind == T.F16 else (bits >> 16).astype(np.uint16).view(np.uint8).reshape(rows, -1)
    data = rng.integers(0, 256, size=(n, size), dtype=np.uint8)
    for at in HALVES[kind]:
        scale = (rng.normal(size=n) * rng.choice([1, 1e-2, 1e-7, 30], size=n)).astype(np.float16)
        data[:, at:at + 2] = scale.view(np.uint8).reshape(n, 2)
    return data.reshape(rows, -1)


def quants(folder):
    rng = np.random.default_rng(20260101)
    writer = gguf.GGUFWriter(os.path.join(folder, "quants.gguf"), "llama")
    writer.add_uint32("test.u32", 7)
    writer.add_array("test.texts", ["a", "é", ""])
    expected = []
    for kind in sorted([T.F32, T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q4_1, T.Q4_K, T.Q6_K], key=lambda k: k.name):
        data = random_blocks(rng, kind, 3, 512)
        writer.add_tensor(kind.name.lower(), data, raw_dtype=None if kind in (T.F32, T.F16) else kind)
        expected.append(gguf.quants.dequantize(data, kind).astype(np.float32).reshape(-1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    np.concatenate(expected).astype("<f4").tofile(os.path.join(folder, "quants.f32"))


def read_safetensors(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    return {k: np.frombuffer(data[v["data_offsets"][0]:v["data_offsets"][1]], dtype=np.uint16).reshape(v["shape"]) for k, v in header.items() if k != "__metadata__"}


def interleaved(w, heads):
    d = w.shape[0] // heads
    return w.reshape(heads, 2, d // 2, -1).swapaxes(1, 2).reshape(w.shape)


def llama(folder, golden):
    config, weights = json.load(open(os.path.join(golden, "config.json"))), read_safetensors(os.path.join(golden, "model.safetensors"))
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(os.path.join(folder, "llama.gguf"), "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])
    writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    # A vocabulary of bytes and of a few merges: ids below the model's 320.
    from_byte = {b: c for b, c in zip(list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256)), [chr(b) for b in list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))])}
    from_byte.update({b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in from_byte)})
    tokens = [from_byte[b] for b in range(256)] + ["<s>", "</s>", "th", "the"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 256 + [3, 3, 1, 1])
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for m in messages %}{{ bos_token + m.role + ':' + m.content + eos_token }}{% endfor %}{% if add_generation_prompt %}{{ bos_token + 'assistant:' }}{% endif %}")
    parts = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
    names.update({f"blk.{i}.{s}.weight": f"model.layers.{i}.{l}.weight" for i in range(config["num_hidden_layers"]) for s, l in parts.items()})
    for name, source in names.items():
        if source not in weights:
            continue
        w = weights[source]
        if ".attn_q." in name or ".attn_k." in name:
            w = interleaved(w, heads if ".attn_q." in name else kv)
        if w.ndim == 1:
            writer.add_tensor(name, (w.astype(np.uint32) << 16).view(np.float32))
        else:
            writer.add_tensor(name, np.ascontiguousarray(w).view(np.uint8).reshape(w.shape[0], -1), raw_dtype=T.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


FAMILIES = {"llama": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3", "phi3": "PHI3", "gemma2": "GEMMA2", "gemma3": "GEMMA3", "mixtral": "LLAMA", "qwen3_moe": "QWEN3MOE"}


def as_f32(w):
    return (w.astype(np.uint32) << 16).view(np.float32)


def family(path, golden, arch):
    config, weights = json.load(open(os.path.join(golden, "config.json"))), read_safetensors(os.path.join(golden, "model.safetensors"))
    arch = gguf.MODEL_ARCH[arch]
    layers, heads, kv = config["num_hidden_layers"], config["num_attention_heads"], config["num_key_value_heads"]
    w = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    w.add_block_count(layers)
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config["rope_parameters"]
    w.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if "sliding_attention" in rope:
        w.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    if config.get("head_dim"):
        w.add_key_length(config["head_dim"])
        w.add_value_length(config["head_dim"])
    else:
        w.add_rope_dimension_count(config["hidden_size"] // heads)
    for key, add in (("num_local_experts", w.add_expert_count), ("num_experts_per_tok", w.add_expert_used_count), ("moe_intermediate_size", w.add_expert_feed_forward_length),
                     ("attn_logit_softcapping", w.add_attn_logit_softcapping), ("final_logit_softcapping", w.add_final_logit_softcapping)):
        if config.get(key) is not None:
            add(config[key])
    if arch.name in ("PHI3", "GEMMA2", "GEMMA3"):
        w.add_sliding_window(config.get("sliding_window") or 0)
    if arch.name == "PHI3":
        w.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
    gemma, names, experts = arch.name.startswith("GEMMA"), gguf.get_tensor_name_map(arch, layers), {}
    for name, data in weights.items():
        if ".experts." in name:  # merged, as the converter does
            one = name.replace("model.layers", "layers").replace("block_sparse_moe", "feed_forward") if "block_sparse_moe" in name else name
            before, after = one.split(".experts.")
            experts.setdefault(before + ".experts." + after.split(".", 1)[1], {})[int(after.split(".")[0])] = data
            continue
        to = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if arch.name == "LLAMA" and ("q_proj" in name or "k_proj" in name):
            data = interleaved(data, heads if "q_proj" in name else kv)
        if data.ndim == 1 or "ffn_gate_inp" in to:
            w.add_tensor(to, as_f32(data) + np.float32(1 if gemma and name.endswith("norm.weight") else 0))
        else:
            w.add_tensor(to, np.ascontiguousarray(data).view(np.uint8), raw_dtype=T.BF16)
    for name, parts in experts.items():
        merged = np.stack([parts[i] for i in range(len(parts))])
        w.add_tensor(names.get_name(name, try_suffixes=(".weight",)), merged.view(np.uint8), raw_dtype=T.BF16)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def seed(path, arch, parts, set_keys):
    """A model of one layer and next to nothing, with a small vocabulary: for tests/fuzz/corpus/gguf_model."""
    w = gguf.GGUFWriter(path, arch)
    for add, value in ((w.add_block_count, 1), (w.add_context_length, 16), (w.add_embedding_length, 8), (w.add_feed_forward_length, 8), (w.add_head_count, 2), (w.add_head_count_kv, 1),
                       (w.add_layer_norm_rms_eps, 1e-5), (w.add_rope_freq_base, 1e4)):
        add(value)
    set_keys(w)
    tokens = ["<unk>", "<s>", "</s>", "<0x09>", "\u2581", "a", "b", "ab", "\u2581ab", "  "]
    w.add_tokenizer_model("llama")
    w.add_token_list(tokens)
    w.add_token_scores([0.0] * 5 + [-9.0, -8.0, 0.0, -1.0, -1000.0])
    w.add_token_types([2, 3, 3, 6, 1, 1, 1, 1, 1, 4])
    for name, shape in {"token_embd": (10, 8), "output_norm": (8,), **{"blk.0." + n: s for n, s in parts.items()}}.items():
        w.add_tensor(name + ".weight", np.ones(shape, np.float32 if len(shape) == 1 else np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def seeds(folder):
    norms, attention, mlp = {"attn_norm": (8,), "ffn_norm": (8,)}, {"attn_q": (8, 8), "attn_k": (4, 8), "attn_v": (4, 8), "attn_output": (8, 8)}, {"ffn_gate": (8, 8), "ffn_up": (8, 8), "ffn_down": (8, 8)}
    post, qk = {"post_attention_norm": (8,), "post_ffw_norm": (8,)}, {"attn_q_norm": (4,), "attn_k_norm": (4,)}
    moe = lambda w: (w.add_expert_count(2), w.add_expert_used_count(1))
    window = lambda w: (w.add_sliding_window(4), w.add_key_length(4), w.add_value_length(4))
    phi3 = lambda w: (w.add_sliding_window(0), w.add_rope_scaling_orig_ctx_len(8), w.add_rope_dimension_count(2))
    seed(os.path.join(folder, "gemma3.gguf"), "gemma3", {**norms, **attention, **mlp, **post, **qk}, window)
    seed(os.path.join(folder, "phi3.gguf"), "phi3", {**norms, "attn_qkv": (16, 8), "attn_output": (8, 8), "ffn_up": (16, 8), "ffn_down": (8, 8)}, phi3)
    seed(os.path.join(folder, "mixtral.gguf"), "llama", {**norms, **attention, "ffn_gate_inp": (2, 8), **{k + "_exps": (2, 8, 8) for k in mlp}}, moe)
    seed(os.path.join(folder, "experts.gguf"), "llama", {**norms, **attention, "ffn_gate_inp": (2, 8), **{"%s.%d" % (k, e): (8, 8) for k in mlp for e in (0, 1)}}, moe)


if __name__ == "__main__":
    if sys.argv[1] == "--seeds":
        seeds(sys.argv[2])
        sys.exit()
    if sys.argv[1] == "--families":
        for name, arch in FAMILIES.items():
            family(os.path.join(sys.argv[2], name + ".gguf"), os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "golden", name), arch)
        sys.exit()
    quants(sys.argv[1])
    llama(sys.argv[1], os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "golden", "llama"))

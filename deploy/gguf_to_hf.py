#!/usr/bin/env python3
"""gguf_to_hf.py MODEL.gguf DIR: writes a Llama-shaped GGUF as an ordinary Hugging Face folder (bf16).

Undone on the way: GGUF keeps the rows of q and k in the order of interleaved rotary pairs; Hugging Face wants halves.
"""
import json
import os
import sys

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize


def to_bf16_bits(x):
    """fp32 array -> uint16 bf16 bits, round to nearest even."""
    u = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(path, tensors):
    """tensors: {name: uint16 array of bf16 bits}. numpy has no bf16, so the header is written by hand."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, bits in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [offset, offset + bits.nbytes]}
        offset += bits.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little"))
        f.write(text)
        for bits in tensors.values():
            f.write(np.ascontiguousarray(bits).tobytes())


def halves_order(w, heads):
    """[heads * d, n]: rows from interleaved pairs to two halves a head."""
    d = w.shape[0] // heads
    return w.reshape(heads, d // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


def main(source, target):
    reader = GGUFReader(source)
    meta = {k: f.contents() for k, f in reader.fields.items()}
    if meta["general.architecture"] != "llama":
        sys.exit(f"{source}: architecture {meta['general.architecture']} is not supported, only llama")
    heads, kv_heads = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
    hidden, layers = meta["llama.embedding_length"], meta["llama.block_count"]
    weights = {t.name: dequantize(t.data, t.tensor_type).reshape(tuple(reversed(t.shape.tolist()))) for t in reader.tensors}

    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
             "output.weight": "lm_head.weight"}
    parts = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
             "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    for layer in range(layers):
        for short, long in parts.items():
            names[f"blk.{layer}.{short}.weight"] = f"model.layers.{layer}.{long}.weight"
    unknown = sorted(set(weights) - set(names))
    if unknown:
        sys.exit(f"{source}: tensors that a llama has not: {unknown}")
    tensors = {}
    for name, w in weights.items():
        if name.endswith("attn_q.weight"):
            w = halves_order(w, heads)
        elif name.endswith("attn_k.weight"):
            w = halves_order(w, kv_heads)
        tensors[names[name]] = to_bf16_bits(w)

    os.makedirs(target, exist_ok=True)
    write_safetensors(os.path.join(target, "model.safetensors"), dict(sorted(tensors.items())))

    bos, eos = meta["tokenizer.ggml.bos_token_id"], meta["tokenizer.ggml.eos_token_id"]
    pad, unk = meta["tokenizer.ggml.padding_token_id"], meta["tokenizer.ggml.unknown_token_id"]
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "mlp_bias": False,
        "hidden_act": "silu", "hidden_size": hidden, "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": meta["llama.rope.dimension_count"], "vocab_size": meta["llama.vocab_size"],
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": float(np.format_float_positional(np.float32(meta["llama.attention.layer_norm_rms_epsilon"]))),
        "rope_theta": meta["llama.rope.freq_base"], "rope_scaling": None,
        "tie_word_embeddings": "output.weight" not in weights,
        "bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad, "torch_dtype": "bfloat16",
    }
    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    control = 3  # GGUF's token type for special tokens
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, (t, kind) in enumerate(zip(tokens, kinds)) if kind == control]
    if meta["tokenizer.ggml.pre"] != "smollm":
        sys.exit(f"{source}: pre-tokenizer {meta['tokenizer.ggml.pre']} is not known to this script, only smollm")
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(tokens)}, "merges": meta["tokenizer.ggml.merges"]},
    }
    tokenizer_config = {
        "tokenizer_class": "GPT2Tokenizer", "add_bos_token": bool(meta["tokenizer.ggml.add_bos_token"]),
        "add_prefix_space": False, "bos_token": tokens[bos], "eos_token": tokens[eos], "pad_token": tokens[pad],
        "unk_token": tokens[unk], "clean_up_tokenization_spaces": False,
        "model_max_length": meta["llama.context_length"], "chat_template": meta["tokenizer.chat_template"],
    }
    for name, value in (("config.json", config), ("tokenizer.json", tokenizer), ("tokenizer_config.json", tokenizer_config)):
        with open(os.path.join(target, name), "w", encoding="utf-8") as f:
            json.dump(value, f, ensure_ascii=False, indent=1)
            f.write("\n")
    print(f"{target}: {len(tensors)} tensors, {sum(t.nbytes for t in tensors.values()) / 1e6:.0f} MB")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])

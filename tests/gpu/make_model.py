#!/usr/bin/env python3
"""Writes a model folder of a named shape with random weights, for runs that need a size and no sense.

  make_model.py SHAPE TOKENIZER_DIR OUT_DIR

The tokenizer is that of TOKENIZER_DIR (a folder with tokenizer.json); its ids must lie below the shape's vocabulary.
Standard library only: weights are bfloat16 of both signs between 2^-7 and 2^-5, norms are 1.
"""
import json
import os
import shutil
import struct
import sys

# name: hidden, intermediate, layers, heads, kv heads, head dim, vocabulary, head tied to the embedding
SHAPES = {
    "tiny": (64, 128, 4, 4, 2, 16, 512, True),
    "smollm-135m": (576, 1536, 30, 9, 3, 64, 49152, True),
    "llama-1b": (2048, 8192, 16, 32, 8, 64, 128256, True),
}
SIGNS = bytes(0x3C if i & 1 else 0xBC for i in range(256))


def random_bf16(n):
    out = bytearray(2 * n)
    out[0::2] = os.urandom(n)
    out[1::2] = os.urandom(n).translate(SIGNS)
    return bytes(out)


def tensors(shape):
    hidden, inner, layers, heads, kv, dim, vocab, tied = shape
    yield "model.embed_tokens.weight", (vocab, hidden)
    for i in range(layers):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", (hidden,)
        yield p + "self_attn.q_proj.weight", (heads * dim, hidden)
        yield p + "self_attn.k_proj.weight", (kv * dim, hidden)
        yield p + "self_attn.v_proj.weight", (kv * dim, hidden)
        yield p + "self_attn.o_proj.weight", (hidden, heads * dim)
        yield p + "post_attention_layernorm.weight", (hidden,)
        yield p + "mlp.gate_proj.weight", (inner, hidden)
        yield p + "mlp.up_proj.weight", (inner, hidden)
        yield p + "mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    if not tied:
        yield "lm_head.weight", (vocab, hidden)


def main():
    name, tokenizer, out = sys.argv[1:]
    shape = SHAPES[name]
    hidden, inner, layers, heads, kv, dim, vocab, tied = shape
    os.makedirs(out, exist_ok=True)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(tokenizer, file), out)
    ids = json.load(open(os.path.join(tokenizer, "config.json")))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "attention_bias": False,
        "mlp_bias": False, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": dim, "vocab_size": vocab,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": tied, "rope_theta": 10000.0,
        "bos_token_id": ids["bos_token_id"], "eos_token_id": ids["eos_token_id"], "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
    header, offset = {}, 0
    for tensor, dims in tensors(shape):
        count = dims[0] * (dims[1] if len(dims) > 1 else 1)
        header[tensor] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [offset, offset + 2 * count]}
        offset += 2 * count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(out, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for tensor, dims in tensors(shape):
            count = dims[0] * (dims[1] if len(dims) > 1 else 1)
            f.write(b"\x80\x3f" * count if len(dims) == 1 else random_bf16(count))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes a folder of golden data (README.md) for a tiny random decoder of any supported family.

    make_golden.py OUT --family gemma2 [--set sliding_window=4] [--set rope_parameters='{...}'] [--like-golden]

Needs torch, transformers and peft: test-time only. Computes in float64 with eager attention, one row
at a time, so that no padding and no batch-mate enters. For folders that the committed ones do not
cover: other head counts, windows, rope types, experts.
"""
import argparse
import copy
import json
import os

import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file

FAMILIES = {
    "llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral", "phi3": "Phi3",
    "gemma2": "Gemma2", "gemma3": "Gemma3Text", "mixtral": "Mixtral", "qwen3_moe": "Qwen3Moe",
}
SIZES = dict(vocab_size=320, hidden_size=64, intermediate_size=160, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
             initializer_range=0.08, rms_norm_eps=1e-5, use_cache=False, pad_token_id=0,
             bos_token_id=1, eos_token_id=2)
EXTRA = {
    "qwen3": dict(head_dim=32), "gemma2": dict(head_dim=32, query_pre_attn_scalar=24, sliding_window=8),
    "gemma3": dict(head_dim=32, query_pre_attn_scalar=24, sliding_window=8),
    "mistral": dict(sliding_window=8),
    "mixtral": dict(num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": dict(head_dim=32, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=48,
                      norm_topk_prob=True),
}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
TARGETS = {"phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], "mixtral": ATTENTION,
           "qwen3_moe": ATTENTION}
# Norms are 1 + spread N and biases spread N; A is a N (None: N / sqrt(in)), B is b N; "masked" leaves every n-th token
# out too. GOLDEN: as the committed golden folders are.
HARSH = dict(spread=0.2, a=None, b=0.1, every=5, lengths={"full": [24, 17, 9], "masked": [31, 5, 12, 20]})
GOLDEN = dict(spread=0.1, a=0.05, b=0.05, every=None, lengths={"full": [24, 24], "masked": [31, 12, 19]})


def write_checkpoint(family, settings, out, spread=HARSH["spread"]):
    """A random model of these settings as a Hugging Face folder; weights by torch's seed. Returns it in fp32."""
    name = FAMILIES[family]
    config_class = getattr(transformers, name + "Config")
    model_class = getattr(transformers, name.removesuffix("Text") + "ForCausalLM")
    config = config_class(**settings, attn_implementation="eager")
    if hasattr(config, "_experts_implementation"):
        config._experts_implementation = "eager"
    model = model_class(config).float()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.dim() == 1:  # norms and biases away from their neutral values
                p.add_(spread * torch.randn_like(p))
            elif not p.any():
                p.normal_(0, config.initializer_range)
            p.copy_(p.to(torch.bfloat16).float())
    if config.tie_word_embeddings:
        model.tie_weights()
    # A copy: in bf16 the rotary frequencies would be rounded too.
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(out, safe_serialization=True)
    return model


def make_model(args, manner):
    settings = {**SIZES, **EXTRA.get(args.family, {})}
    for item in args.set:
        key, value = item.split("=", 1)
        try:
            settings[key] = json.loads(value)
        except json.JSONDecodeError:
            settings[key] = value
    torch.manual_seed(args.seed)
    return write_checkpoint(args.family, settings, args.out, manner["spread"]).double().eval()


def logits_of(model, ids):
    return model(input_ids=torch.tensor([ids])).logits[0]


def batch_loss(model, batch):
    total, count, rows = 0.0, 0, []
    for ids, labels in batch:
        logits = logits_of(model, ids)
        rows.append(logits.detach())
        target = torch.tensor(labels[1:])
        keep = target != -100
        total = total + torch.nn.functional.cross_entropy(
            logits[:-1][keep], target[keep], reduction="sum")
        count += int(keep.sum())
    return total / count, torch.cat(rows)


def make_batches(vocab, manner, generator):
    """Rows of (ids, labels) by batch: "full" trains on all, "masked" on a part."""
    batches, every = {}, manner["every"]
    for name, of_rows in manner["lengths"].items():
        batches[name] = []
        for n in of_rows:
            ids = torch.randint(3, vocab, (n,), generator=generator).tolist()
            labels = list(ids)
            if name == "masked":
                for i in range(n):
                    if i < n // 3 or (every and i % every == 0):
                        labels[i] = -100
            batches[name].append((ids, labels))
    return batches


def random_adapter(model, lora, generator, manner):
    """The model with LoRA on it, A and B both away from zero, and its adapter by PEFT's names."""
    peft = get_peft_model(model, LoraConfig(**lora, lora_dropout=0.0, task_type="CAUSAL_LM"))
    adapter = {}
    for key, p in peft.named_parameters():
        if not p.requires_grad:
            continue
        with torch.no_grad():
            scale = manner["b"] if "lora_B" in key else manner["a"] or p.shape[1] ** -0.5
            p.copy_((torch.randn(p.shape, generator=generator) * scale).float())
        adapter[key.replace(".default", "")] = p
    return peft, adapter


def train(peft, adapter, batches):
    """8 AdamW steps of README.md: loss and gradient norm of each."""
    optimizer = torch.optim.AdamW(adapter.values(), lr=1e-2, betas=(0.9, 0.999), eps=1e-8,
                                  weight_decay=0.01)
    steps = []
    for step in range(8):
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] = 5e-3 if step == 0 else 1e-2
        loss, _ = batch_loss(peft, batches["full" if step % 2 == 0 else "masked"])
        loss.backward()
        norm = torch.sqrt(sum((p.grad ** 2).sum() for p in adapter.values()))
        coefficient = min(1.0, 1.0 / (norm.item() + 1e-6))
        for p in adapter.values():
            p.grad.mul_(coefficient)
        optimizer.step()
        steps.append({"loss": loss.item(), "grad_norm": norm.item()})
    return steps


def write_golden(model, out, lora, manner, seed):
    """What transformers and peft compute of a float64 model, in README.md's files."""
    generator = torch.Generator().manual_seed(seed)
    batches = make_batches(model.config.vocab_size, manner, generator)
    tensors, golden = {}, {}
    for name, rows in batches.items():
        lengths = manner["lengths"][name]
        width = max(lengths)
        tensors[f"{name}.input_ids"] = torch.tensor([r + [0] * (width - len(r)) for r, _ in rows])
        tensors[f"{name}.labels"] = torch.tensor([r + [-100] * (width - len(r)) for _, r in rows])
        tensors[f"{name}.lengths"] = torch.tensor(lengths)
        with torch.no_grad():
            loss, logits = batch_loss(model, rows)
        golden[f"base_loss.{name}"] = loss.item()
        tensors[f"base_logits.{name}"] = logits.float()

    with open(os.path.join(out, "adapter.json"), "w") as f:
        json.dump(lora, f)
    peft, adapter = random_adapter(model, lora, generator, manner)

    def state():
        return {k: p.detach().float().contiguous() for k, p in adapter.items()}

    save_file(state(), os.path.join(out, "adapter_init.safetensors"))
    for name, rows in batches.items():
        for p in adapter.values():
            p.grad = None
        loss, logits = batch_loss(peft, rows)
        loss.backward()
        golden[f"lora_loss.{name}"] = loss.item()
        tensors[f"lora_logits.{name}"] = logits.float()
        for key, p in adapter.items():
            tensors[f"grad.{name}.{key}"] = p.grad.float()
    golden["train"] = train(peft, adapter, batches)
    save_file(state(), os.path.join(out, "adapter_after8.safetensors"))
    save_file(tensors, os.path.join(out, "golden.safetensors"))
    with open(os.path.join(out, "golden.json"), "w") as f:
        json.dump(golden, f, indent=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--like-golden", action="store_true", help="spreads, lengths and masks of the golden folders")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    manner = GOLDEN if args.like_golden else HARSH
    lora = dict(r=4, lora_alpha=8, target_modules=TARGETS.get(args.family, ATTENTION + MLP))
    write_golden(make_model(args, manner), args.out, lora, manner, args.seed + 7)


if __name__ == "__main__":
    main()

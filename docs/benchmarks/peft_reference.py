#!/usr/bin/env python3
"""The quickstart's step by transformers + peft on the CPU, for comparison (docs/BENCHMARKS.md).

  peft_reference.py MODEL_DIR commands.jsonl [STEPS]

Same model, data, batch (16 records), adapter (r 8, alpha 16, all seven linears), AdamW, fp32 arithmetic; records padded to the
longest of the batch, as transformers' collators do. Prints real tokens a second (padding not counted).
"""
import json
import sys
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

model_dir, data, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 6
torch.manual_seed(42)
tokenizer = AutoTokenizer.from_pretrained(model_dir)
model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.0)

rows = []
for line in open(data, encoding="utf-8"):
    r = json.loads(line)
    prompt = tokenizer(r["prompt"], add_special_tokens=False).input_ids
    answer = tokenizer(r["completion"], add_special_tokens=False).input_ids + [tokenizer.eos_token_id]
    rows.append((prompt + answer, [-100] * len(prompt) + answer))

times, tokens = [], 0
for step in range(steps):
    batch = rows[step * 16:(step + 1) * 16]
    width = max(len(ids) for ids, _ in batch)
    pad = tokenizer.pad_token_id
    ids = torch.tensor([i + [pad] * (width - len(i)) for i, _ in batch])
    labels = torch.tensor([l + [-100] * (width - len(l)) for _, l in batch])
    mask = torch.tensor([[1] * len(i) + [0] * (width - len(i)) for i, _ in batch])
    start = time.perf_counter()
    loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step > 0:  # the first one warms up
        times.append(time.perf_counter() - start)
        tokens += int(mask.sum())
    print(f"step {step + 1}: loss {loss.item():.4f}, {int(mask.sum())} tokens, {time.perf_counter() - start:.2f} s")
print(f"{torch.get_num_threads()} threads, torch {torch.__version__}: {tokens / sum(times):.1f} tokens/s over {len(times)} steps")

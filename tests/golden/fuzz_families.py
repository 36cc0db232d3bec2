#!/usr/bin/env python3
"""fuzz_families.py GOLDEN_CHECK [--folders N] [--seed S] [--family F] [--keep DIR]: checkpoints that nobody chose.

Makes random folders of every family (sizes, heads, windows, layer patterns, rope types, biases, experts, LoRA targets),
writes their config.json as checkpoints in the wild have it (older spellings, keys left out or null, the class's own
defaults, keys of later versions), lets transformers + peft read that very folder in float64, and holds golden_check
against what they compute. A folder that golden_check refuses by name (exit 2) is no fault; one that transformers refuses
is left out; one that both take and that differs is a fault, and stays in DIR. Prints the seed. Exits with 77 (skipped)
where torch, transformers or peft are not there.
"""
import argparse
import collections
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import traceback

try:
    import torch
    import transformers
    import make_golden
    from safetensors.torch import load_file
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

TYPES = {"gemma3": "gemma3_text"}
SLIDING, FULL = "sliding_attention", "full_attention"


def sizes(r, family):
    kv = r.choice([1, 1, 2, 2, 3, 4])
    heads = kv * r.choice([1, 2, 3, 4])
    if heads > 12:
        heads = kv
    head_dim = r.choice([8, 10, 12, 16, 20, 24, 32, 40])
    free = family in ("llama", "qwen3", "mistral", "gemma2", "gemma3", "mixtral", "qwen3_moe")
    hidden = heads * r.choice([8, 12, 16, 20]) if free and r.random() < 0.6 else heads * head_dim
    if hidden < 16:
        hidden, heads, kv = 24, 2, 1
    s = dict(vocab_size=r.randint(64, 400), hidden_size=hidden, intermediate_size=r.choice([40, 64, 72, 96, 136, 160]),
             num_hidden_layers=r.choice([1, 2, 3, 3, 4, 5]), num_attention_heads=heads, num_key_value_heads=kv,
             max_position_embeddings=r.choice([96, 128, 512, 4096]), initializer_range=0.08,
             rms_norm_eps=r.choice([1e-6, 1e-5, 1e-3]), use_cache=r.random() < 0.5, pad_token_id=0, bos_token_id=1,
             eos_token_id=r.choice([2, [2, 5], [7]]), tie_word_embeddings=r.random() < 0.5)
    # transformers cannot scale the rope of a mixtral without it
    if free and (hidden != heads * head_dim or family == "mixtral" or r.random() < 0.7):
        s["head_dim"] = head_dim
    return s


def head_dim_of(s):
    return s.get("head_dim") or s["hidden_size"] // s["num_attention_heads"]


def rope(r, family, s, rotary):
    """A rope block, in the newer spelling."""
    block = {"rope_theta": r.choice([100.0, 5000.0, 10000.0, 500000.0, 1000000.0]), "rope_type": "default"}
    kinds = ["default", "default", "linear", "dynamic", "llama3", "yarn"] if family != "phi3" else ["default", "longrope"]
    kind = block["rope_type"] = r.choice(kinds)
    if kind == "default":
        return block
    block["factor"] = r.choice([2.0, 4.0, 8, 40, 1.0, 1.5])
    if kind in ("llama3", "yarn", "longrope"):
        block["original_max_position_embeddings"] = r.choice([16, 32, 64, 100])
    if kind == "llama3":
        block["low_freq_factor"], block["high_freq_factor"] = r.choice([(1.0, 4.0), (1, 2), (0.5, 8.0)])
    if kind == "yarn":
        if r.random() < 0.3:
            block["beta_fast"], block["beta_slow"] = r.choice([(32, 1), (16.0, 2.0), (4, 1)])
        if r.random() < 0.3:
            block["mscale"], block["mscale_all_dim"] = r.choice([(1.0, 1.0), (1.0, 0.8), (0.707, 0.707), (0, 1.0)])
        if r.random() < 0.2:
            block["attention_factor"] = r.choice([1.0, 1.2])
        if r.random() < 0.2:
            block["truncate"] = False
    if kind == "longrope":
        del block["factor"]
        block["short_factor"] = [round(r.uniform(1, 2), 3) for _ in range(rotary // 2)]
        block["long_factor"] = [round(r.uniform(1, 8), 3) for _ in range(rotary // 2)]
        if r.random() < 0.3:
            block["attention_factor"] = 1.1
        if r.random() < 0.3:
            block["factor"] = 4.0
    return block


def layer_types(r, n):
    return [r.choice([SLIDING, FULL]) for _ in range(n)]


def settings(r, family):
    s = sizes(r, family)
    n, dim = s["num_hidden_layers"], head_dim_of(s)
    window = r.choice([1, 2, 3, 7, 8, 16, 33, 64, 65, 100, 200])
    if family == "llama":
        s["attention_bias"], s["mlp_bias"] = r.random() < 0.4, r.random() < 0.4
    if family in ("qwen3", "qwen3_moe", "gemma2", "gemma3"):
        s["attention_bias"] = r.random() < 0.4
    if family in ("qwen2", "qwen3", "qwen3_moe"):
        s["use_sliding_window"] = r.random() < 0.6
        s["sliding_window"] = window
        s["max_window_layers"] = r.choice([0, 1, 2, n])
        if family != "qwen3_moe" and s["use_sliding_window"] and r.random() < 0.4:
            s["layer_types"] = layer_types(r, n)
    if family in ("mistral", "mixtral", "phi3"):
        s["sliding_window"] = r.choice([None, window, window])
    if family in ("gemma2", "gemma3"):
        s["sliding_window"] = window
        s["query_pre_attn_scalar"] = r.choice([dim, 24, 144, 7])
        s["attn_logit_softcapping"] = r.choice([None, 50.0, 5.0])
        s["final_logit_softcapping"] = r.choice([None, 30.0, 4.0])
        if r.random() < 0.4:
            s["layer_types"] = layer_types(r, n)
        elif family == "gemma3" and r.random() < 0.5:
            s["sliding_window_pattern"] = r.choice([1, 2, 3])
        s["hidden_activation"] = r.choice(["gelu_pytorch_tanh", "gelu_pytorch_tanh", "silu"])
    elif r.random() < 0.2:
        s["hidden_act"] = r.choice(["gelu_pytorch_tanh", "gelu_new", "swish", "gelu", "relu"])
    if family == "mixtral":
        s["num_local_experts"] = r.choice([1, 2, 4, 7])
        s["num_experts_per_tok"] = r.randint(1, min(3, s["num_local_experts"]))
    if family == "qwen3_moe":
        s["num_experts"] = r.choice([2, 4, 8, 9])
        s["num_experts_per_tok"] = r.randint(1, min(4, s["num_experts"]))
        s["moe_intermediate_size"] = r.choice([24, 48, 56])
        s["norm_topk_prob"] = r.random() < 0.5
        s["decoder_sparse_step"] = r.choice([1, 1, 2, 3])
        s["mlp_only_layers"] = r.choice([[], [], [0], [n - 1], list(range(n))])
    if family == "gemma3":
        s["rope_parameters"] = {FULL: rope(r, family, s, dim), SLIDING: rope(r, family, s, dim)}
    else:
        part = r.choice([1.0, 0.5, 0.75]) if family == "phi3" else 1.0
        rotary = int(dim * part)
        if rotary % 2:
            part, rotary = 1.0, dim
        s["rope_parameters"] = rope(r, family, s, rotary)
        if family == "phi3":
            s["rope_parameters"]["partial_rotary_factor"] = part
            s["original_max_position_embeddings"] = s["rope_parameters"].get("original_max_position_embeddings", 32)
    return s


def older_spelling(r, family, config):
    """config.json as before rope_parameters."""
    block = config.pop("rope_parameters", None)
    config.pop("layer_types", None) if r.random() < 0.3 else None
    if not block:
        return
    if family == "gemma3":
        config["rope_theta"] = block[FULL].pop("rope_theta")
        config["rope_local_base_freq"] = block[SLIDING].pop("rope_theta")
        block = block[FULL]
    else:
        config["rope_theta"] = block.pop("rope_theta")
    part = block.pop("partial_rotary_factor", None)
    if part is not None and part != 1.0 or r.random() < 0.2:
        config["partial_rotary_factor"] = part or 1.0
    if block.get("rope_type", "default") == "default":
        config["rope_scaling"] = None
        return
    if r.random() < 0.5:
        block["type"] = block["rope_type"]
        # In Gemma 3's, transformers 5 does not see `type`, 4 did: scaling that is written is applied here.
        if family != "gemma3" and r.random() < 0.7:
            del block["rope_type"]
            if block["type"] == "longrope":
                block["type"] = r.choice(["su", "yarn", "longrope"])
    config["rope_scaling"] = block


STRAY = {"attention_bias": [True, False], "mlp_bias": [True, False], "sliding_window": [None, 4, 9],
         "use_sliding_window": [True, False], "max_window_layers": [0, 1, None], "sliding_window_pattern": [2, 3],
         "layer_types": [None, "random"], "head_dim": [None, 16, 8], "num_key_value_heads": [None, 1],
         "tie_word_embeddings": [True, False], "rms_norm_eps": [1e-2, 0.1], "partial_rotary_factor": [0.5, 1.0],
         "attn_logit_softcapping": [2.0, None], "final_logit_softcapping": [3.0, None], "query_pre_attn_scalar": [9],
         "rope_theta": [77.0, 1000000], "rope_scaling": [{"type": "linear", "factor": 3.0}, {"rope_type": "default"}],
         "norm_topk_prob": [True, False], "num_experts_per_tok": [1], "hidden_act": ["gelu", "silu", "gelu_new"],
         "hidden_activation": ["gelu", "silu"], "mlp_only_layers": [[0], [1]], "decoder_sparse_step": [2],
         "use_bidirectional_attention": [True, False], "use_qk_norm": [True, False], "attention_dropout": [0.1],
         "scale_embedding": [True], "logits_scaling": [2.0], "original_max_position_embeddings": [16, 64],
         "max_position_embeddings": [4096], "rope_local_base_freq": [33.0], "pretraining_tp": [2],
         "no_rope_layers": [[1, 0, 1]], "attention_chunk_size": [8], "rope_interleaved": [True]}


def stray(r, config):
    """A key nobody expects there, or another value of one."""
    key = r.choice(sorted(STRAY))
    value = r.choice(STRAY[key])
    config[key] = layer_types(r, config["num_hidden_layers"]) if value == "random" else value
    return f"{key}={config[key]}"


def leave_out(r, config, defaults):
    """Keys whose value is the class's own default, and some that say nothing."""
    for key, value in list(config.items()):
        if key in ("model_type", "architectures", "num_attention_heads", "hidden_size", "vocab_size"):
            continue
        if key in defaults and defaults[key] == value and r.random() < 0.7:
            del config[key]
    for key in ("layer_types", "head_dim", "architectures"):
        if r.random() < 0.15:
            config.pop(key, None)


def lora(r, family):
    every = make_golden.TARGETS.get(family, make_golden.ATTENTION + make_golden.MLP)
    targets = every if r.random() < 0.5 else sorted(r.sample(every, r.randint(1, len(every))))
    rank = r.choice([1, 2, 3, 4, 8, 11])
    return dict(r=rank, lora_alpha=rank * r.choice([0.5, 1, 2]), target_modules=targets, use_rslora=r.random() < 0.2)


def read_model(folder, dtype=torch.float64):
    config = transformers.AutoConfig.from_pretrained(folder)
    if hasattr(config, "_experts_implementation"):
        config._experts_implementation = "eager"
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, config=config, attn_implementation="eager", dtype=dtype, output_loading_info=True)
    wrong = [k for k in ("missing_keys", "unexpected_keys", "mismatched_keys") if info.get(k)]
    if wrong:
        raise ValueError(f"weights do not fit: {wrong}")
    return model.to(dtype).eval()


def own_rounding(folder, adapter):
    """What transformers' own fp32 is off by, from adapters that differ by one rounding: the worst relative error of a
    gradient, and of a loss or gradient norm of the 8 steps."""
    model = make_golden.get_peft_model(read_model(folder, torch.float32), make_golden.LoraConfig(
        **adapter, lora_dropout=0.0, task_type="CAUSAL_LM"))
    golden = load_file(folder + "/golden.safetensors")
    start = load_file(folder + "/adapter_init.safetensors")
    trained = {k.replace(".default", ""): p for k, p in model.named_parameters() if p.requires_grad}
    batches = {batch: [(ids[:n].tolist(), labels[:n].tolist()) for ids, labels, n in zip(
        golden[batch + ".input_ids"], golden[batch + ".labels"], golden[batch + ".lengths"].tolist())]
        for batch in ("full", "masked")}
    with open(folder + "/golden.json") as f:
        steps = json.load(f)["train"]
    gradient = drift = 0.0
    for trial in range(5):
        generator = torch.Generator().manual_seed(trial)
        for key, p in trained.items():
            p.data.copy_(start[key] * (1 + 1e-7 * torch.randn(p.shape, generator=generator)))
        for batch, rows in batches.items():
            for p in trained.values():
                p.grad = None
            make_golden.batch_loss(model, rows)[0].backward()
            for key, p in trained.items():
                want = golden[f"grad.{batch}.{key}"]
                gradient = max(gradient, ((p.grad - want).norm() / want.norm().clamp_min(1e-30)).item())
        for got, want in zip(make_golden.train(model, trained, batches), steps):
            drift = max(drift, *(abs(got[k] / want[k] - 1) for k in want))
    return gradient, drift


def one(r, family, folder, checker):
    wanted = settings(r, family)
    torch.manual_seed(r.randrange(1 << 30))
    try:
        make_golden.write_checkpoint(family, wanted, folder)
    except Exception as e:
        return "unmade", f"{e}"
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    defaults = json.loads(getattr(transformers, make_golden.FAMILIES[family] + "Config")().to_json_string(use_diff=False))
    notes = []
    if r.random() < 0.5:
        older_spelling(r, family, config)
        notes.append("older")
    if r.random() < 0.6:
        leave_out(r, config, defaults)
        notes.append("silent")
    if r.random() < 0.4:
        notes.append(stray(r, config))
    with open(path, "w") as f:
        json.dump(config, f, indent=1)
    adapter = lora(r, family)
    # Attention works in blocks of 64; dynamic rope changes beyond max_position_embeddings.
    fit = [n for n in (2, 3, 5, 9, 16, 17, 31, 40, 63, 64, 65, 130, 300) if n <= wanted["max_position_embeddings"]]
    lengths = {name: [r.choice(fit) for _ in range(r.randint(1, 4))] for name in ("full", "masked")}
    try:
        model = read_model(folder)
        make_golden.write_golden(model, folder, adapter, dict(make_golden.HARSH, lengths=lengths), r.randrange(1 << 30))
    except Exception as e:
        done = subprocess.run([checker, folder], capture_output=True, text=True)
        return "reference refuses", f"{notes} {type(e).__name__}: {str(e)[:200]!r}; here {done.returncode} {done.stderr.strip()[:200]}"
    placement = r.choice(["", "--slots 0 --retention keep", "--records 1 --relayout", "--slots 3 --retention host",
                          "--resident 1 --head-resident"])
    done = subprocess.run([checker, folder] + placement.split(), capture_output=True, text=True)
    if done.returncode == 2:
        return "refused", f"{notes} {done.stderr.strip()[:300]}"
    if done.returncode == 0:
        return "same", f"{notes}"
    bad = [line for line in done.stdout.splitlines() if line.endswith("FAIL")]
    told = f"{notes} {placement} rc {done.returncode} {len(bad)} failed: {bad[:3]} {done.stderr[:300]}"
    gradient, drift = own_rounding(folder, adapter)
    told += f" transformers in fp32: gradients {gradient:.1e}, steps {drift:.1e}"
    # 8 steps of AdamW multiply rounding where gradients are near 0, gradients where the model is steep.
    excused = ("train.", "adapter_") if drift > 2e-5 else ()
    excused += ("grad.",) if gradient > 2e-5 else ()
    fine = done.returncode == 1 and all(line.startswith(excused) for line in bad)
    return "ill-conditioned" if fine else "FAULT", told


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checker")
    parser.add_argument("--folders", type=int, default=int(os.environ.get("SOUP_FUZZ_FOLDERS", "27")))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SOUP_FUZZ_SEED", random.randrange(1 << 30))))
    parser.add_argument("--family", choices=make_golden.FAMILIES)
    parser.add_argument("--keep", help="where folders with a fault stay")
    parser.add_argument("--only", type=int, nargs="*", default=[], help="numbers of folders, of a seed's")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    families = [args.family] if args.family else list(make_golden.FAMILIES)
    counts = collections.Counter()
    print(f"seed {args.seed}", flush=True)
    for i in range(args.folders):
        family = families[i % len(families)]
        if args.only and i not in args.only:
            continue
        with tempfile.TemporaryDirectory() as parent:
            folder = os.path.join(parent, "model")
            os.mkdir(folder)
            result, note = one(random.Random(f"{args.seed}/{i}"), family, folder, args.checker)
            counts[result] += 1
            if args.verbose or result == "FAULT":
                print(f"{i} {family}: {result} {note}", flush=True)
            if result == "FAULT" and args.keep:
                shutil.copytree(folder, os.path.join(args.keep, f"{args.seed}-{i}-{family}"))
    print(dict(counts))
    # A run that compared nothing proves nothing.
    return 1 if counts["FAULT"] or counts["same"] * 4 < args.folders else 0


if __name__ == "__main__":
    sys.exit(main())

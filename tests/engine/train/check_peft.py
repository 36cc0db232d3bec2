#!/usr/bin/env python3
"""check_peft.py GOLDEN_CHECK FOLDER: an adapter that the engine exports, in peft's hands.

golden_check --export writes the folder's adapter as PEFT files; peft puts it on the folder's model; the logits must be
those of the golden data. Exits with 77 (skipped) where torch, transformers or peft are not there.
"""
import subprocess
import sys
import tempfile

try:
    import peft
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

LIMIT = 1e-5  # relative L2; the golden logits are fp32


def main():
    checker, folder = sys.argv[1:]
    torch.set_num_threads(1)
    golden = load_file(f"{folder}/golden.safetensors")
    with tempfile.TemporaryDirectory() as parent:
        adapter = parent + "/adapter"
        subprocess.run([checker, folder, "--export", adapter], check=True)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float64)
        if hasattr(model.config, "_experts_implementation"):
            model.config._experts_implementation = "eager"  # the grouped one knows no float64
        model = peft.PeftModel.from_pretrained(model, adapter).double().eval()
    worst = 0.0
    for batch in ("full", "masked"):
        rows = []
        with torch.no_grad():
            for ids, n in zip(golden[batch + ".input_ids"], golden[batch + ".lengths"]):
                rows.append(model(input_ids=ids[None, : int(n)]).logits[0])
        got, want = torch.cat(rows), golden["lora_logits." + batch].double()
        error = ((got - want).norm() / want.norm()).item()
        print(f"lora_logits.{batch} {error:.3e} {LIMIT:.0e} {'PASS' if error <= LIMIT else 'FAIL'}")
        worst = max(worst, error)
    # The adapter must matter, else equal logits say nothing.
    base = golden["base_logits.full"].double()
    moved = ((golden["lora_logits.full"].double() - base).norm() / base.norm()).item()
    return 0 if worst <= LIMIT < moved else 1


if __name__ == "__main__":
    sys.exit(main())

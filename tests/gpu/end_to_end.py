#!/usr/bin/env python3
"""The product on a GPU, end to end: see run_on_gpu.sh, which starts this.

Starts soupd with its own state directory, trains one job undisturbed, and then the same job again and again while things
go wrong: a warm start, a worker killed with SIGKILL, an illegal access on the device, soupd killed with SIGKILL, a
stranger that takes the card's memory, the least budget, a second job in the same passes. Every adapter must have the
bytes of the undisturbed one.
"""
import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))


def say(text):
    print(text, flush=True)


class Failure(Exception):
    pass


class Soup:
    """One soupd in a folder, and soupctl on it."""

    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.state = os.path.join(folder, "state")
        self.daemon = None
        self.env = dict(os.environ, SOUP_ENDPOINT="unix:" + self.state + "/soupd.sock")
        # The real worker, with the hook that strikes only the job of that name.
        self.worker = os.path.join(folder, "worker")
        real = os.path.join(options.bin, "soup-worker")
        with open(self.worker, "w") as f:
            f.write(f'#!/bin/sh\ncase "$*" in *--prepare*) exec {real} "$@";; esac\n'
                    f'exec {real} "$@" --test-die=struck:{options.strike}:fault-once\n')
        os.chmod(self.worker, 0o755)

    def start(self):
        log = open(os.path.join(self.folder, "soupd.log"), "a")
        self.daemon = subprocess.Popen(
            [os.path.join(self.options.bin, "soupd"), "--state-dir", self.state, "--model-root", self.folder,
             "--backend", self.options.backend, "--worker-binary", self.worker, "--metrics-listen", "127.0.0.1:0"],
            stdout=log, stderr=log)
        self.until(lambda: self.ctl("node", "-o", "json", check=False).returncode == 0, 30, "soupd answers")

    def stop(self):
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.terminate()
            self.daemon.wait(60)

    def kill(self):
        self.daemon.kill()
        self.daemon.wait(60)

    def ctl(self, *args, check=True):
        done = subprocess.run([os.path.join(self.options.bin, "soupctl"), *args], env=self.env, capture_output=True,
                              text=True, timeout=self.options.patience)
        if check and done.returncode != 0:
            raise Failure(f"soupctl {' '.join(args)}: exit {done.returncode}: {done.stderr}")
        return done

    def json(self, *args):
        return json.loads(self.ctl(*args, "-o", "json").stdout)

    def node(self):
        return self.json("node")

    def until(self, done, seconds, what):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.daemon.poll() is not None:
                raise Failure(f"soupd ended with {self.daemon.returncode} before: {what}")
            value = done()
            if value:
                return value
            time.sleep(0.02)
        raise Failure(f"not within {seconds} s: {what}")

    def worker_up(self):
        def look():
            worker = self.node()["workers"][0]
            return worker if worker.get("up") else None
        return self.until(look, 60, "a worker is up")

    def job_file(self, name, more=""):
        path = os.path.join(self.folder, name + ".yaml")
        with open(path, "w") as f:
            f.write(self.options.job.format(name=name, model=self.options.model, data=self.options.data) + more)
        return path

    def submit(self, name, more=""):
        return self.ctl("submit", self.job_file(name, more), "-o", "name").stdout.split()[-1]

    def metrics(self):
        """Metric lines by name and labels."""
        address = open(os.path.join(self.state, "metrics.addr")).read().strip()
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}

    def job(self, job_id):
        return self.json("get", job_id)

    def steps(self, job_id):
        return int(self.job(job_id).get("steps_done", 0))

    def await_step(self, job_id, step):
        self.until(lambda: self.steps(job_id) >= step, self.options.patience, f"step {step} of {job_id}")

    def finish(self, job_id, expected=None):
        done = self.ctl("wait", job_id, check=False)
        job = self.job(job_id)
        if done.returncode != 0:
            raise Failure(f"{job_id} is {job.get('state')}: {job.get('message')}: {done.stderr}")
        path = os.path.join(self.state, "artifacts", job_id, "adapter_model.safetensors")
        digest = hashlib.sha256(open(path, "rb").read()).hexdigest()
        if expected is not None and digest != expected:
            raise Failure(f"{job_id}: the adapter's SHA-256 is {digest}, undisturbed it is {expected}")
        return job, digest

    def first_step_seconds(self, job_id):
        """From submit to the end of the first step, by soupd's own clock."""
        metrics = self.json("metrics", job_id)
        steps = metrics["steps"] if isinstance(metrics, dict) else metrics
        return (int(steps[0]["unix_ms"]) - int(self.job(job_id)["created_unix_ms"])) / 1000

    def step_seconds(self, job_id):
        metrics = self.json("metrics", job_id)
        steps = metrics["steps"] if isinstance(metrics, dict) else metrics
        times = sorted(float(s["step_seconds"]) for s in steps[1:])
        return times[len(times) // 2]


def nvidia_smi(query):
    try:
        return subprocess.run(["nvidia-smi", query, "--format=csv,noheader,nounits"], capture_output=True, text=True,
                              timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def used_mib():
    out = nvidia_smi("--query-gpu=memory.used")
    return int(out.split()[0]) if out else None


def undisturbed(soup, report):
    job_id = soup.submit("calm")
    job, digest = soup.finish(job_id)
    report["cold first step (import, GEMM tuning), s"] = soup.first_step_seconds(job_id)
    report["steps"] = int(job["steps_done"])
    return digest


def warm(soup, report, digest):
    for name in ("warm", "warm-again"):
        job_id = soup.submit(name)
        soup.finish(job_id, digest)
        seconds = soup.first_step_seconds(job_id)
        report[f"{name} job: submit to the end of its first step, s"] = seconds
        report[f"{name} job: median step, s"] = soup.step_seconds(job_id)
    if soup.options.backend == "cuda" and seconds > 1.0:
        raise Failure(f"a warm job's first step ended {seconds} s after its submit, at most 1 s was allowed")


def memory(soup, report, digest):
    before = used_mib()
    job_id = soup.submit("measured")
    soup.await_step(job_id, 3)
    device = soup.node()["devices"][0]
    report["node while it runs"] = {k: device.get(k) for k in ("name", "backend", "overhead_bytes", "arena_bytes",
                                                               "memory_bytes", "free_bytes", "copy_bytes_per_second",
                                                               "gemm_flops", "dequant_bytes_per_second")}
    during = used_mib()
    soup.finish(job_id, digest)
    if before is not None and during is not None:
        report["nvidia-smi used, MiB: idle worker, running, difference"] = [before, during, during - before]
    shown = {name: value for name, value in soup.metrics().items() if name.startswith("soupd_device_memory")}
    report["metrics"] = shown
    planned = int(soup.job(job_id)["planned_arena_bytes"])
    peak = shown[f'soupd_device_memory_peak_bytes{{device="{device.get("index", 0)}"}}']
    if peak != int(device["overhead_bytes"]) + planned:
        raise Failure(f"the peak metric is {peak}, overhead and planned arena are {device['overhead_bytes']} + {planned}")


def least_budget(soup, report, digest):
    plan = soup.json("plan", soup.job_file("least"))
    kib = -(-int(plan["minimum_bytes"]) // 1024)
    vram = kib * 1024
    before = used_mib()
    job_id = soup.submit("least", f"resources: {{vram: {kib}KiB}}\n")
    soup.await_step(job_id, 3)
    during = used_mib()
    soup.finish(job_id, digest)
    report["least budget: vram of the job, its step, s"] = [vram, soup.step_seconds(job_id)]
    if soup.options.backend == "cuda" and during is not None:
        report["least budget: nvidia-smi used, MiB: before, while it runs"] = [before, during]
        # What the device shows beyond overhead and arena may be 16 MiB.
        if during << 20 > vram + (16 << 20):
            raise Failure(f"a job of vram {vram} took {during} MiB on the device")


def together(soup, report, digest):
    ids = [soup.submit(name) for name in ("twin-a", "twin-b")]
    for job_id in ids:
        soup.finish(job_id, digest)


def killed_worker(soup, report, digest):
    job_id = soup.submit("killed")
    soup.await_step(job_id, soup.options.steps // 3)
    start = time.monotonic()
    pid = soup.worker_up()["pid"]
    os.kill(pid, signal.SIGKILL)
    at = soup.steps(job_id)
    soup.await_step(job_id, min(at + 1, soup.options.steps))
    report["kill -9 of the worker: next step after, s"] = round(time.monotonic() - start, 3)
    job, _ = soup.finish(job_id, digest)
    if int(job["attempts"]) < 2:
        raise Failure("the worker was killed and the job knows nothing of it")


def struck(soup, report, digest):
    job_id = soup.submit("struck")
    job, _ = soup.finish(job_id, digest)
    if int(job["attempts"]) != 2:
        raise Failure(f"the illegal access was to cost one attempt; it has {job['attempts']}")
    log = soup.ctl("logs", job_id).stdout
    lines = [line for line in log.splitlines() if "illegal" in line or "signal 11" in line]
    if not lines:
        raise Failure("the job's log says nothing of the illegal access")
    report["illegal access, as the job's log tells it"] = lines[0]


def killed_soupd(soup, report, digest):
    job_id = soup.submit("orphan")
    soup.await_step(job_id, soup.options.steps // 3)
    worker = soup.worker_up()["pid"]
    soup.kill()
    start = time.monotonic()
    while os.path.exists(f"/proc/{worker}") and time.monotonic() - start < 5:
        time.sleep(0.01)
    if os.path.exists(f"/proc/{worker}"):
        raise Failure("a worker outlived its soupd by 5 s")
    report["kill -9 of soupd: its worker was gone after, s"] = round(time.monotonic() - start, 3)
    soup.start()
    soup.finish(job_id, digest)
    report["kill -9 of soupd: job done after, s"] = round(time.monotonic() - start, 3)


def stranger(soup, report, digest):
    hog = os.path.join(soup.folder, "hog")
    if shutil.which("nvcc") is None:
        report["memory taken by a stranger"] = "not run: no nvcc to build hog.cu"
        return
    subprocess.run(["nvcc", "-o", hog, os.path.join(HERE, "hog.cu")], check=True)
    holder = subprocess.Popen([hog, "32"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        report["stranger"] = holder.stdout.readline().strip()
        job_id = soup.submit("waits")

        def refused():
            job = soup.job(job_id)
            return job if job["state"] == "QUEUED" and job.get("reason") == "OUT_OF_MEMORY" else None
        job = soup.until(refused, soup.options.patience, "the job waits for memory and says so")
        report["memory taken by a stranger: the job says"] = job["message"]
    finally:
        holder.stdin.close()
        holder.wait(60)
    soup.finish(job_id, digest)
    # And in the middle of a run: nothing happens, for the arena is held.
    job_id = soup.submit("runs-on")
    soup.await_step(job_id, 3)
    holder = subprocess.Popen([hog, "32"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    holder.stdout.readline()
    job, _ = soup.finish(job_id, digest)
    holder.stdin.close()
    holder.wait(60)
    if int(job["attempts"]) != 1:
        raise Failure("a stranger's memory disturbed a job that held its own")


JOB = """name: {{name}}
base: {{{{path: "{{model}}", format: {format}}}}}
data: {{{{train: "{{data}}", max_length: {length}, packing: false}}}}
lora: {{{{r: 8, alpha: 16, targets: [q_proj, k_proj, v_proj, o_proj]}}}}
training: {{{{batch_size: 8, max_steps: {steps}, epochs: 100, learning_rate: 1.0e-3, save_every: 10,
           precision: {precision}}}}}
output: "{out}/{{name}}"
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True, help="folder of soupd, soup-worker and soupctl")
    parser.add_argument("--tokenizer", required=True, help="folder with a small tokenizer")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--shape", default="smollm-135m")
    parser.add_argument("--format", default="nf4")
    parser.add_argument("--model", help="a model folder of your own instead of a random one of --shape")
    parser.add_argument("--precision", default="auto", help="training.precision of the jobs")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--patience", type=float, default=240)
    parser.add_argument("--out", help="folder for the report and the logs")
    options = parser.parse_args()
    options.bin = os.path.abspath(options.bin)
    options.strike = options.steps // 2
    folder = tempfile.mkdtemp(prefix="soup-gpu-", dir="/tmp")
    if options.model is None:
        options.model = os.path.join(folder, "model")
        subprocess.run([sys.executable, os.path.join(HERE, "make_model.py"), options.shape, options.tokenizer,
                        options.model], check=True)
    else:
        shutil.copytree(options.model, os.path.join(folder, "model"))
        options.model = os.path.join(folder, "model")
    options.data = os.path.join(folder, "train.jsonl")
    with open(options.data, "w") as f:
        for i in range(64):
            words = " ".join(hashlib.sha256(f"{i} {j}".encode()).hexdigest() for j in range(1 + i % 8))
            f.write(json.dumps({"text": words}) + "\n")
    options.job = JOB.format(format=options.format, length=options.length, steps=options.steps, precision=options.precision,
                             out=folder)
    soup = Soup(options, folder)
    report = {"device": nvidia_smi("--query-gpu=name,driver_version,memory.total"), "shape": options.shape,
              "format": options.format, "precision": options.precision}
    failures = []
    try:
        soup.start()
        start = time.monotonic()
        soup.worker_up()
        report["worker up after, s"] = round(time.monotonic() - start, 3)
        say(soup.ctl("node").stdout)
        digest = undisturbed(soup, report)
        say(f"undisturbed: {digest}")
        for part in (warm, memory, least_budget, together, killed_worker, struck, killed_soupd, stranger):
            if part is stranger and options.backend != "cuda":
                continue
            try:
                part(soup, report, digest)
                say(f"ok: {part.__name__}")
            except (Failure, subprocess.SubprocessError, OSError, KeyError) as error:
                failures.append(f"{part.__name__}: {error!r}")
                say(f"FAILED: {failures[-1]}")
    except Failure as error:
        failures.append(str(error))
        say(f"FAILED: {error}")
    finally:
        soup.stop()
    report["failures"] = failures
    say(json.dumps(report, indent=1))
    if options.out:
        os.makedirs(options.out, exist_ok=True)
        with open(os.path.join(options.out, "end_to_end.json"), "w") as f:
            json.dump(report, f, indent=1)
        shutil.copy(os.path.join(folder, "soupd.log"), os.path.join(options.out, "end_to_end_soupd.log"))
        profiles = os.path.join(soup.state, "profile")
        if os.path.isdir(profiles):
            for name in os.listdir(profiles):
                if name.startswith("machine-"):
                    shutil.copy(os.path.join(profiles, name), os.path.join(options.out, "machine_profile.json"))
    shutil.rmtree(folder, ignore_errors=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

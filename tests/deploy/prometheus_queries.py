#!/usr/bin/env python3
"""prometheus_queries.py BIN_DIR SOURCE_DIR: a real soupd with a real job, Debian's Prometheus scraping it; every query of the
Grafana dashboard and every recording and alerting rule must return data. Standard library only."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

BIN, SOURCE = sys.argv[1], sys.argv[2]
DEADLINE_S = 150


def until(what, check):
    """check() until it is true; its last answer. Ends the test after DEADLINE_S."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        answer = check()
        if answer:
            return answer
        time.sleep(0.3)
    sys.exit(f"timed out: {what}")


def read(path):
    try:
        return open(path, encoding="utf-8").read()
    except FileNotFoundError:
        return ""


def dashboard_queries():
    board = json.loads(read(os.path.join(SOURCE, "deploy/grafana/soupd.json")))
    for panel in board["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
            yield f"panel {panel['title']}", query


def rule_queries(prometheus):
    """Recording rules by the series they made; alerts by the left side of their comparison (which must have data even
    while nothing is wrong)."""
    for group in prometheus("rules")["groups"]:
        for rule in group["rules"]:
            if rule["type"] == "recording":
                yield f"rule {rule['name']}", rule["name"]
            else:
                yield f"alert {rule['name']}", re.split(r"\s(?:==|>|<|>=|<=)\s", rule["query"])[0]


def main():
    work = tempfile.mkdtemp(prefix="soupd-prometheus-")
    started = []

    def start(name, *command, env=None):
        log = open(os.path.join(work, name + ".log"), "w", encoding="utf-8")
        started.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=work, env=env))
        return started[-1]

    try:
        state = os.path.join(work, "state")
        shutil.copytree(os.path.join(SOURCE, "tests/cases/_base/bytes"), os.path.join(work, "models/base"))
        start("soupd", os.path.join(BIN, "soupd"), "--state-dir", state, "--model-root", os.path.join(work, "models"),
              "--metrics-listen", "127.0.0.1:0", "--listen", f"unix:{work}/s.sock")
        address = until("soupd's metrics address", lambda: read(os.path.join(state, "metrics.addr")).strip())

        with open(os.path.join(work, "train.jsonl"), "w", encoding="utf-8") as f:
            for i in range(64):
                f.write(json.dumps({"prompt": f"count {i}: ", "completion": " ".join(str(i + k) for k in range(12))}) + "\n")
        with open(os.path.join(work, "job.yaml"), "w", encoding="utf-8") as f:
            f.write(f"name: metrics\nbase: {{path: {work}/models/base, format: bf16}}\n"
                    "data: {train: train.jsonl, max_length: 256}\nlora: {r: 4, alpha: 8}\n"
                    "training: {epochs: 100000, batch_size: 8, learning_rate: 1.0e-4, save_every: 5}\noutput: out\n")
        env = dict(os.environ, SOUP_ENDPOINT=f"unix:{work}/s.sock")
        subprocess.run([os.path.join(BIN, "soupctl"), "submit", "job.yaml"], cwd=work, env=env, check=True)

        config = read(os.path.join(SOURCE, "deploy/prometheus/prometheus.yml"))
        config = config.replace("127.0.0.1:9464", address).replace("scrape_interval: 5s", "scrape_interval: 1s")
        config = config.replace("evaluation_interval: 15s", "evaluation_interval: 1s")
        with open(os.path.join(work, "prometheus.yml"), "w", encoding="utf-8") as f:
            f.write(config)
        shutil.copy(os.path.join(SOURCE, "deploy/prometheus/soupd.rules.yml"), work)
        # Port 0 is not told by Prometheus; a free one is asked of the kernel first.
        import socket
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        start("prometheus", "prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb",
              f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn")

        def prometheus(path, **query):
            url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
            try:
                with urllib.request.urlopen(url, timeout=5) as reply:
                    return json.load(reply)["data"]
            except urllib.error.HTTPError as e:
                sys.exit(f"{query}: {e.read().decode()}")
            except OSError:
                return None

        def evaluated():
            data = prometheus("rules")
            rules = [r for g in data["groups"] for r in g["rules"]] if data else []
            return rules and all(r["health"] == "ok" for r in rules) and data

        until("every rule evaluated without error", evaluated)
        queries = list(dashboard_queries()) + list(rule_queries(prometheus))
        missing = dict(queries)

        def all_answered():
            for what, query in list(missing.items()):
                if prometheus("query", query=query)["result"]:
                    del missing[what]
            return not missing

        # Panels with several targets share a name: check each query, not each name.
        missing = {f"{what} [{i}]": query for i, (what, query) in enumerate(queries)}
        end = time.monotonic() + DEADLINE_S
        while not all_answered() and time.monotonic() < end:
            if any(p.poll() is not None for p in started):
                sys.exit("a program ended: " + read(os.path.join(work, "soupd.log"))[-3000:])
            time.sleep(1)
        for what, query in missing.items():
            print(f"no data: {what}: {query}")
        if missing:
            sys.exit(f"{len(missing)} of {len(queries)} queries gave no data")
        metrics = urllib.request.urlopen(f"http://{address}/metrics", timeout=5).read()
        subprocess.run(["promtool", "check", "metrics"], input=metrics, check=True)
        print(f"{len(queries)} queries gave data; promtool check metrics is clean")
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(work, ignore_errors=True)


main()

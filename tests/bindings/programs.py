"""What the tests of this folder share: arguments, and programs in each language."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINDINGS = ROOT / "bindings"
LANGUAGES = ("c", "cpp", "go", "node", "python")
_TOOLS = {"c": "gcc", "cpp": "g++", "go": "go", "node": "node", "python": "python3"}


def arguments():
    """The command line: the library, the model, and the program `pagedllm`."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--binary", type=Path, help="of same_answers.py: the program to serve with")
    given = parser.parse_args()
    for name, path in vars(given).items():
        setattr(given, name, path and path.absolute())
    return given


def installed(languages=LANGUAGES):
    """The languages that this machine has; says which are skipped."""
    found = [language for language in languages if shutil.which(_TOOLS[language])]
    for language in languages:
        if language not in found:
            print(f"skipped: {_TOOLS[language]} is not installed")
    return found


class Programs:
    """Builds programs against one library, in a folder that goes away."""

    def __init__(self, library):
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)
        for name in ("libpagedllm.so", "libpagedllm.so.1"):
            (self.folder / name).symlink_to(library)
        self.environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.folder),
            "CGO_LDFLAGS": f"-L{self.folder}",
            "PAGEDLLM_LIBRARY": str(library),
            "PYTHONPATH": str(BINDINGS / "python"),
            "NODE_PATH": str(self.folder / "node_modules"),
        }
        (self.folder / "node_modules").mkdir()
        (self.folder / "node_modules" / "pagedllm").symlink_to(BINDINGS / "node")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._folder.cleanup()

    def run(self, command, **more):
        """Runs a command to its end."""
        words = [str(word) for word in command]
        return subprocess.run(words, env=self.environment, check=True, **more)

    def build(self, language, source):
        """The words that start the program of a source file."""
        if language == "node":
            return ["node", str(source)]
        if language == "python":
            return [sys.executable, str(source)]
        program = self.folder / f"{source.stem}-{language}"
        if language == "go":
            self.run(["go", "build", "-o", program, "."], cwd=source.parent)
        else:
            compiler, standard = ("gcc", "c11") if language == "c" else ("g++", "c++17")
            self.run(
                [compiler, f"-std={standard}", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror"]
                + ["-O1", "-I", ROOT / "include", source, "-o", program]
                + ["-L", self.folder, "-lpagedllm"]
            )
        return [str(program)]

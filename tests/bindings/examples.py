"""Each language's example on a real model: it chats, its text comes in pieces, Ctrl-C cancels."""

import json
import signal
import subprocess
import time

from programs import BINDINGS, Programs, arguments, installed

EXAMPLES = {
    "c": "c/example/chat.c",
    "cpp": "cpp/example/chat.cc",
    "go": "go/example/chat/main.go",
    "node": "node/example/chat.js",
    "python": "python/example/chat.py",
}
MAX_LINES = 39
LIMIT = 120


def question(language, text):
    """The last argument of an example. C and C++ have no JSON at hand."""
    if language in ("c", "cpp"):
        return json.dumps([{"role": "user", "content": text}])
    return text


def start(programs, words):
    return subprocess.Popen(words, env=programs.environment, stdout=subprocess.PIPE, bufsize=0)


def answer(programs, words):
    """Runs to the end; the pieces that were read."""
    child = start(programs, words)
    pieces = list(iter(lambda: child.stdout.read(4096), b""))
    assert child.wait(LIMIT) == 0, child.returncode
    return pieces


def interrupted(programs, words):
    """Interrupts after the first piece; all that was said."""
    child = start(programs, words)
    said = child.stdout.read(4096)
    child.send_signal(signal.SIGINT)
    said += b"".join(iter(lambda: child.stdout.read(4096), b""))
    assert child.wait(LIMIT) == 0, child.returncode
    return said.decode()


def main():
    given = arguments()
    with Programs(given.library) as programs:
        for language in installed():
            began = time.monotonic()
            source = BINDINGS / EXAMPLES[language]
            lines = len(source.read_text().splitlines())
            assert lines <= MAX_LINES, f"{source} has {lines} lines"
            words = [*programs.build(language, source), str(given.model)]
            short = question(language, "Explain gravity in three sentences.")
            pieces = answer(programs, [*words, short])
            text = b"".join(pieces).decode()
            assert len(text) > 3 and "[cancelled]" not in text, text
            assert len(pieces) > 2, f"{len(pieces)} pieces: {text}"
            story = question(language, "Tell me a very long story.")
            said = interrupted(programs, [*words, story])
            assert said.endswith(" [cancelled]\n"), said
            print(f"{language:6} {len(pieces)} pieces, cancelled, {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()

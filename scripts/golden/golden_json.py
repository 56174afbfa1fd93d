"""Golden files: compact JSON, one line per list entry, so that a change can be read as a diff."""

import json
from pathlib import Path


def write_json(path: Path, golden: dict) -> None:
    """Writes `golden`, a dictionary of plain values and of lists of entries."""
    lines = []
    for key, value in golden.items():
        if isinstance(value, list):
            rows = ",\n".join(compact(row) for row in value)
            lines.append(f"{json.dumps(key)}:[\n{rows}\n]")
        else:
            lines.append(f"{json.dumps(key)}:{compact(value)}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def compact(value) -> str:
    """JSON without spaces, characters as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

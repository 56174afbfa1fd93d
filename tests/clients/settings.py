"""Where the server is and what its model is called, from BASE_URL and MODEL."""

import os

BASE_URL = os.environ.get("BASE_URL", "http://127.0.0.1:8000").rstrip("/").removesuffix("/v1")
MODEL = os.environ.get("MODEL", "SmolLM2-135M-Instruct")
API_KEY = os.environ.get("API_KEY", "none")


def count(name: str, default: int) -> int:
    """A number from the environment, so that a quick run is the same program."""
    return int(os.environ.get(name, default))

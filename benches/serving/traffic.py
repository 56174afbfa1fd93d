"""The requests of a benchmark: the same list for the same seed, whatever server answers.

Prompts are texts of a wanted length in words; a word of `WORDS` is one token, with its space, in
the vocabularies of today, so a prompt of `n` words has close to `n` tokens. What a server counted
comes back in its usage, and that is what reports show.
"""

import random
from dataclasses import dataclass

WORDS = ("time year people way day man thing woman life child world school state family student "
         "group country problem hand part place case week company system program question work "
         "number night point home water room mother area money story fact month lot right study "
         "book eye job word business issue side kind head house service friend father power hour "
         "game line end member law car city name team minute idea body back parent face level "
         "office door health person art war history party result change morning reason").split()


@dataclass(frozen=True)
class Request:
    """One request: its prompt and how many tokens to generate."""

    prompt: str
    max_tokens: int


def requests_of(count: int, seed: int, input_len: tuple[int, int], output_len: int,
                shared_prefix: int = 0) -> list[Request]:
    """`count` requests with prompts of `input_len` tokens (least, most), behind a shared prefix."""
    draw = random.Random(seed)
    prefix = [draw.choice(WORDS) for _ in range(shared_prefix)]
    made = []
    for _ in range(count):
        words = [draw.choice(WORDS) for _ in range(draw.randint(*input_len))]
        made.append(Request(" ".join(prefix + words), output_len))
    return made

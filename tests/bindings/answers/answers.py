"""As answers.c, through the Python binding."""

import json
import sys

from pagedllm import LLM, SamplingParams

model, options, params = sys.argv[1:4]
params = SamplingParams(max_tokens=None, extra=json.loads(params))
with LLM(model, **json.loads(options)) as llm:
    for line in sys.stdin:
        kind, text = line.rstrip("\n").split("\t")
        if kind == "generate":
            print(*llm.generate(text, params)[0].outputs[0].token_ids)
        else:
            endpoint = "chat_completions" if kind == "chat" else "completions"
            for event in llm.complete(endpoint, text):
                print(event.text)
        print()

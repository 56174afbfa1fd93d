"""Time of events through the Python binding: python overhead.py MODEL OPTIONS STREAMS TOKENS

To be run on the engine without a model, test-executor:FOLDER, of a library with that feature.
"""

import json
import sys
import time

from pagedllm import LLM, SamplingParams

model, options = sys.argv[1], json.loads(sys.argv[2])
count, tokens = int(sys.argv[3]), int(sys.argv[4])
params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
with LLM(model, **options) as llm:
    start, cpu_start = time.perf_counter(), time.process_time()
    streams = [llm.stream([1], params) for _ in range(count)]
    seen = sum(len(event.token_ids) for stream in streams for event in stream)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    print(json.dumps({"tokens": seen, "wall_s": wall, "cpu_s": cpu}))
    assert seen == count * tokens

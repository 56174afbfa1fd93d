//! Chat templates against what transformers renders.

mod support;

use std::time::{Duration, UNIX_EPOCH};

use pagedllm_tokenizer::{ChatInput, ChatTemplate, SpecialTokens, TemplateError};
use serde_json::{Map, Value};
use support::{NAMES, golden, tokenizer};

fn input(chat: &Value, now: u64) -> ChatInput {
    let mut kwargs = chat["kwargs"].as_object().unwrap().clone();
    let mut flag = |name: &str| kwargs.shift_remove(name).is_some_and(|value| value == true);
    let add_generation_prompt = flag("add_generation_prompt");
    let continue_final_message = flag("continue_final_message");
    ChatInput {
        messages: chat["messages"].clone(),
        tools: kwargs.shift_remove("tools"),
        documents: kwargs.shift_remove("documents"),
        add_generation_prompt,
        continue_final_message,
        kwargs,
        now: UNIX_EPOCH + Duration::from_secs(now),
    }
}

/// Lines that say how the template's results differ from the golden ones.
fn differences(name: &str, template: &ChatTemplate, results: &Value) -> Vec<String> {
    let golden = golden("templates.json");
    let now = golden["now"].as_u64().unwrap();
    let mut wrong = Vec::new();
    for (chat, expected) in
        golden["chats"].as_array().unwrap().iter().zip(results.as_array().unwrap())
    {
        let found = template.render_exact(&input(chat, now));
        let agrees = match &found {
            Ok(prompt) => expected["prompt"] == **prompt,
            Err(TemplateError::Raised { message }) => expected["raised"] == **message,
            Err(_) => expected["fails"] == true,
        };
        if !agrees {
            wrong.push(format!(
                "{name}/{}\n  found    {found:?}\n  expected {expected}",
                chat["name"]
            ));
        }
    }
    wrong
}

// T12, T13, T14, T15, T16.
#[test]
fn own_templates_render_as_in_transformers() {
    let golden = golden("templates.json");
    let special = SpecialTokens(golden["special_tokens"].as_object().unwrap().clone());
    let mut wrong = Vec::new();
    for entry in golden["templates"].as_array().unwrap() {
        let name = entry["name"].as_str().unwrap();
        let template = ChatTemplate::compile(entry["source"].as_str().unwrap(), &special).unwrap();
        wrong.extend(differences(name, &template, &entry["results"]));
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

// T12, T18.
#[test]
fn real_templates_render_as_in_transformers() {
    let mut wrong = Vec::new();
    for name in NAMES {
        let Some(tokenizer) = tokenizer(name) else { continue };
        let golden = golden(&format!("{name}.json"));
        let Some(template) = tokenizer.chat_template(None) else {
            assert!(golden.get("results").is_none(), "{name} has no template");
            continue;
        };
        let special = golden["special_tokens"].as_object().cloned().unwrap_or_else(Map::new);
        assert_eq!(tokenizer.special_tokens().0, special, "{name}");
        wrong.extend(differences(name, &template.unwrap(), &golden["results"]));
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

//! Errors, limits, and what the service says of itself.

use super::*;

#[test]
fn a_dead_device_is_a_500_without_its_details_h36() {
    let behaviour = Behaviour { fails_at: Some(2), ..Behaviour::default() };
    let service = Service::new(llm(behaviour), ServiceOptions::default());
    let body = json!({"prompt": "ab", "max_tokens": 50});
    for _ in 0..2 {
        let error = ask(&service, Endpoint::Completions, &body).expect_err("it fails and stays so");
        assert_eq!(error.status, 500);
        assert!(!error.message.contains("secret"), "{error}");
    }
}

#[test]
fn unknown_fields_are_reported_or_refused_h32() {
    let body = json!({"prompt": "a", "topk": 3, "user": "u", "zeta": null, "alpha": {"x": 1}});
    let answer = service()
        .complete(Endpoint::Completions, body.to_string().as_bytes(), &Caller::default())
        .expect("accepted");
    assert_eq!(answer.ignored_params, ["alpha", "topk"]);
    let options = ServiceOptions { strict_params: true, ..ServiceOptions::default() };
    let strict = Service::new(llm(Behaviour::default()), options);
    let error = ask(&strict, Endpoint::Completions, &body).expect_err("strict");
    assert_eq!((error.status, error.param.as_deref()), (400, Some("alpha")));
    completion(&strict, json!({"prompt": "a", "user": "u"}));
}

#[test]
fn errors_have_a_status_and_a_code_h36() {
    let service = service();
    let error = ask(&service, Endpoint::Completions, &json!({"model": "gpt", "prompt": "a"}));
    let error = error.expect_err("unknown");
    assert_eq!((error.status, error.code), (404, Some("model_not_found")));
    assert_eq!(
        error.body(),
        json!({"error": {"message": "the model `gpt` does not exist",
            "type": "invalid_request_error", "param": "model", "code": "model_not_found"}})
    );
    let long = json!({"model": "x".repeat(1 << 20), "prompt": "a"});
    let error = ask(&service, Endpoint::Completions, &long).expect_err("unknown");
    assert!(error.message.len() < 1000, "O13: bounded");
    refused(&service, Endpoint::Completions, &json!({"model": 5, "prompt": "a"}), "model");

    let behaviour = Behaviour {
        max_num_queued: 1,
        max_num_seqs: 1,
        pace: Duration::from_millis(1),
        ..Behaviour::default()
    };
    let service = Service::new(llm(behaviour), ServiceOptions::default());
    let body = json!({"prompt": "a", "max_tokens": 2000}).to_string();
    let submit = || service.complete(Endpoint::Completions, body.as_bytes(), &Caller::default());
    let answers: Vec<_> = (0..20).map(|_| submit()).collect();
    let error = answers.iter().find_map(|answer| answer.as_ref().err()).expect("a full queue");
    assert_eq!(error.status, 429);
    assert!(error.retry_after.is_some());
}

#[test]
fn work_of_one_request_is_bounded_o17() {
    let service = service();
    let body = json!({"prompt": vec!["a"; 100_000], "n": 128});
    refused(&service, Endpoint::Completions, &body, "prompt");
    let body = json!({"prompt": vec!["a"; 1024], "n": 128});
    refused(&service, Endpoint::Completions, &body, "n");
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
    let messages = json!([{"role": "user", "content": "x"}]);
    let body = json!({"messages": messages, "tools": vec![tool.clone(); 100_000]});
    refused(&service, Endpoint::ChatCompletions, &body, "tools");
    let body = json!({"messages": vec![json!({"role": "user", "content": "x"}); 100_000]});
    refused(&service, Endpoint::ChatCompletions, &body, "messages");
    chat(&service, json!({"messages": messages, "tools": [tool], "max_tokens": 2}));
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    let service = service();
    let messages = json!([{"role": "user", "content": "x"}]);
    let tool = json!({"type": "function", "function": {"name": "f"}});
    for (name, value) in [
        ("tool_choice", json!("required")),
        ("tool_choice", json!({"type": "function", "function": {"name": "f"}})),
        ("tool_choice", json!("sometimes")),
        ("response_format", json!({"type": "json_object"})),
        ("response_format", json!({"type": "json_schema", "json_schema": {}})),
        ("guided_json", json!({"type": "object"})),
        ("structured_outputs", json!({"regex": "a"})),
        ("functions", json!([{"name": "f"}])),
        ("use_beam_search", json!(true)),
        ("chat_template", json!("{{ x }}")),
        ("modalities", json!(["text", "audio"])),
    ] {
        let body = json!({"messages": messages, "tools": [tool], name: value});
        refused(&service, Endpoint::ChatCompletions, &body, name);
    }
    for fine in [
        json!({"tools": [tool], "tool_choice": "auto"}),
        json!({"tools": [tool], "tool_choice": "none"}),
        json!({"tool_choice": "none", "parallel_tool_calls": false}),
        json!({"response_format": {"type": "text"}, "use_beam_search": false}),
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
    ] {
        let mut body = fine;
        body["messages"] = messages.clone();
        body["max_tokens"] = 2.into();
        chat(&service, body);
    }
}

#[test]
fn models_are_listed_under_all_their_names() {
    let names = vec!["a/b".to_owned(), "c".to_owned()];
    let options = ServiceOptions { served_model_names: names, ..ServiceOptions::default() };
    let service = Service::new(llm(Behaviour::default()), options);
    let list = service.models();
    assert_eq!(list["data"][0]["id"], "a/b");
    assert_eq!(list["data"][1]["id"], "c");
    assert_eq!(list["data"][0]["max_model_len"], MAX_MODEL_LEN);
    assert!(service.model_card("a/b").is_ok());
    assert_eq!(service.model_card("d").expect_err("unknown").status, 404);
    let answer = completion(&service, json!({"model": "c", "prompt": "x"}));
    assert_eq!(answer["model"], "c");
    assert_eq!(completion(&service, json!({"prompt": "x"}))["model"], "a/b");
}

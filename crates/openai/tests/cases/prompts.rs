//! Prompts: as text, as token ids, in lists, echoed, scored and cached.

use super::*;

#[test]
fn scoring_takes_no_new_tokens_h17() {
    let service = service();
    let body = json!({"prompt": "a b", "max_tokens": 0, "echo": true, "logprobs": 1});
    let answer = completion(&service, body.clone());
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "a b");
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    let tokens = choice["logprobs"]["tokens"].as_array().expect("tokens");
    assert_eq!(tokens.len() as u64, answer["usage"]["prompt_tokens"].as_u64().expect("count"));
    assert_eq!(choice["logprobs"]["token_logprobs"][0], Value::Null);
    assert!(choice["logprobs"]["token_logprobs"][1].is_number());
    let chunks = stream(&service, Endpoint::Completions, &body);
    assert_eq!(joined(&chunks, 0), "a b");
    assert_eq!(chunks[0]["choices"][0]["logprobs"], choice["logprobs"]);
    refused(
        &service,
        Endpoint::Completions,
        &json!({"prompt": "a", "max_tokens": 0}),
        "max_tokens",
    );
}

#[test]
fn echo_comes_before_the_text_and_offsets_go_on() {
    let service = service();
    let body = json!({
        "prompt": "häuser", "max_tokens": 3, "echo": true, "logprobs": 2, "temperature": 0,
    });
    let answer = completion(&service, body.clone());
    let choice = &answer["choices"][0];
    assert!(text(&answer).starts_with("häuser"));
    let offsets: Vec<u64> = choice["logprobs"]["text_offset"]
        .as_array()
        .expect("offsets")
        .iter()
        .map(|offset| offset.as_u64().expect("a number"))
        .collect();
    assert!(offsets.is_sorted() && offsets[0] == 0, "{offsets:?}");
    assert_eq!(offsets[offsets.len() - 3], 6, "characters, not bytes");
    assert_eq!(joined(&stream(&service, Endpoint::Completions, &body), 0), text(&answer));
    let ids = ask(&service, Endpoint::Tokenize, &json!({"prompt": "häuser"})).expect("tokens");
    let body = json!({"prompt": ids["tokens"], "max_tokens": 3, "echo": true, "temperature": 0});
    assert_eq!(text(&completion(&service, body)), text(&answer));
}

#[test]
fn long_prompts_are_refused_before_anything_runs_h19() {
    let service = service();
    for length in [MAX_MODEL_LEN, MAX_MODEL_LEN + 1, 10 * MAX_MODEL_LEN] {
        for body in [json!({"prompt": vec![7; length]}), json!({"prompt": "!".repeat(length)})] {
            let error = ask(&service, Endpoint::Completions, &body).expect_err("too long");
            assert_eq!((error.status, error.code), (400, Some("context_length_exceeded")));
            assert_eq!(error.param.as_deref(), Some("prompt"));
            assert!(error.message.contains(&length.to_string()), "{error}");
        }
        let messages = json!([{"role": "user", "content": "!".repeat(length)}]);
        let error = ask(&service, Endpoint::ChatCompletions, &json!({"messages": messages}));
        let error = error.expect_err("too long");
        assert_eq!((error.status, error.code), (400, Some("context_length_exceeded")));
        assert_eq!(error.param.as_deref(), Some("messages"));
    }
    let body = json!({"prompt": vec![7; MAX_MODEL_LEN - 1], "max_tokens": 1});
    assert_eq!(completion(&service, body)["usage"]["completion_tokens"], 1);
    let body = json!({
        "prompt": "!".repeat(3 * MAX_MODEL_LEN), "truncate_prompt_tokens": -1, "max_tokens": 8,
    });
    let usage = &completion(&service, body)["usage"];
    assert_eq!(usage["prompt_tokens"], MAX_MODEL_LEN - 8);
}

#[test]
fn empty_prompts_are_refused_h20() {
    let service = service();
    for prompt in [json!(""), json!([""]), json!([]), json!([[]]), json!(["a", ""])] {
        refused(&service, Endpoint::Completions, &json!({"prompt": prompt}), "prompt");
    }
    refused(&service, Endpoint::Completions, &json!({}), "prompt");
    refused(&service, Endpoint::Completions, &json!({"prompt": null}), "prompt");
    refused(&service, Endpoint::ChatCompletions, &json!({"messages": []}), "messages");
    refused(&service, Endpoint::ChatCompletions, &json!({}), "messages");
    completion(&service, json!({"prompt": "a"}));
}

#[test]
fn ids_outside_the_vocabulary_are_refused_by_name_h21_h22_h23_h24() {
    let service = service();
    for prompt in [
        "[320]",
        "[2147483648]",
        "[9223372036854775807]",
        "[5279552648203111001]",
        "[-1]",
        "[1.5]",
        "[true]",
        "[[1],[320]]",
        "[\"a\",[1]]",
        "[[1],\"a\"]",
        "[[[1]]]",
        "{}",
        "7",
        "[null]",
    ] {
        let prompt: Value = serde_json::from_str(prompt).expect("JSON");
        refused(&service, Endpoint::Completions, &json!({"prompt": prompt}), "prompt");
    }
    completion(&service, json!({"prompt": [VOCAB_SIZE - 1]}));

    let bias = |bias: Value| json!({"prompt": "a", "max_tokens": 2, "logit_bias": bias});
    completion(&service, bias(json!({"319": 5})));
    completion(&service, bias(json!({})));
    for wrong in [
        json!({"320": 5}),
        json!({"-1": 1}),
        json!({"AI": -100}),
        json!({"1.0": 1}),
        json!({"+1": 1}),
        json!({"01": 1}),
        json!({"1": "x"}),
        json!({"1": 1e9}),
        json!({"1": 100.5}),
        json!([]),
        json!("a"),
        json!({"1": null}),
    ] {
        refused(&service, Endpoint::Completions, &bias(wrong), "logit_bias");
    }
    let many: serde_json::Map<String, Value> =
        (0..50_000).map(|id| (id.to_string(), 1.into())).collect();
    refused(&service, Endpoint::Completions, &bias(many.into()), "logit_bias");

    for wrong in [json!([20_320]), json!([-1]), json!(["1"]), json!(5), json!([1.5])] {
        let body = json!({"prompt": "a", "stop_token_ids": wrong, "min_tokens": 5});
        refused(&service, Endpoint::Completions, &body, "stop_token_ids");
        let body = json!({"prompt": "a", "allowed_token_ids": wrong});
        refused(&service, Endpoint::Completions, &body, "allowed_token_ids");
    }
    // Nothing would be left to draw.
    let body = json!({"prompt": "a", "allowed_token_ids": [7, 8], "stop_token_ids": [7, 8, 9],
        "min_tokens": 1});
    refused(&service, Endpoint::Completions, &body, "allowed_token_ids");
}

#[test]
fn prompts_of_a_list_are_answered_in_order_h35() {
    let service = service();
    let base = json!({"max_tokens": 5, "temperature": 0});
    let with = |prompt: Value, n: u64| {
        let mut body = base.clone();
        body["prompt"] = prompt;
        body["n"] = n.into();
        body
    };
    let one = |prompt: Value| completion(&service, with(prompt, 1));
    let list = completion(&service, with(json!(["a", "bb", "ccc"]), 2));
    let choices = list["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), 6);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        let prompt = ["a", "bb", "ccc"][index / 2];
        assert_eq!(choice["text"], text(&one(json!(prompt))));
    }
    let tokens: u64 = ["a", "bb", "ccc"]
        .iter()
        .map(|prompt| one(json!(prompt))["usage"]["prompt_tokens"].as_u64().expect("count"))
        .sum();
    assert_eq!(list["usage"]["prompt_tokens"], tokens);
    assert_eq!(list["usage"]["completion_tokens"], 30);
    let chunks = stream(&service, Endpoint::Completions, &with(json!(["a", "bb", "ccc"]), 2));
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(joined(&chunks, index), choice["text"].as_str().expect("text"));
    }
    let ids = completion(&service, with(json!([[7, 8], [9]]), 1));
    assert_eq!(ids["choices"][0]["text"], text(&one(json!([7, 8]))));
    assert_eq!(ids["choices"][1]["text"], text(&one(json!([[9]]))));
}

#[test]
fn tokens_can_be_returned_as_ids() {
    let service = service();
    let body =
        json!({"prompt": [7, 8], "max_tokens": 4, "return_token_ids": true, "temperature": 0});
    let answer = completion(&service, body.clone());
    let choice = &answer["choices"][0];
    assert_eq!(choice["prompt_token_ids"], json!([7, 8]));
    assert_eq!(choice["token_ids"].as_array().expect("ids").len(), 4);
    let chunks = stream(&service, Endpoint::Completions, &body);
    assert_eq!(chunks[0]["choices"][0]["prompt_token_ids"], json!([7, 8]));
    let ids: Vec<&Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["token_ids"].as_array())
        .flatten()
        .collect();
    assert_eq!(json!(ids), choice["token_ids"]);
    let body =
        json!({"prompt": "a", "max_tokens": 1, "logprobs": 1, "return_tokens_as_token_ids": true});
    let answer = completion(&service, body);
    let token = answer["choices"][0]["logprobs"]["tokens"][0].as_str().expect("a token");
    assert!(token.starts_with("token_id:"), "{token}");
}

#[test]
fn cached_prefixes_are_shared_only_under_one_salt() {
    let service = service();
    let cached = |salt: Option<&str>, caller: &[u8]| {
        let mut body = json!({"prompt": vec![9; 100], "max_tokens": 1});
        if let Some(salt) = salt {
            body["cache_salt"] = salt.into();
        }
        let caller = Caller { salt: caller.to_vec(), request_id: None };
        let answer = service
            .complete(Endpoint::Completions, body.to_string().as_bytes(), &caller)
            .expect("accepted");
        let AnswerBody::Plain(mut plain) = answer.body else { panic!("plain") };
        let text = plain.wait(LONG).expect("it succeeds").expect("in time");
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count")
    };
    for (salt, caller) in [
        (None, &b""[..]),
        (None, b"key 1"),
        (None, b"key 2"),
        (Some("key 1"), b""),
        (Some("s"), b"k"),
    ] {
        assert_eq!(cached(salt, caller), 0, "{salt:?} {caller:?} meets nobody's prefix");
        assert!(cached(salt, caller) >= 80, "{salt:?} {caller:?} meets its own");
    }
    assert!(cached(Some("s"), b"another key") >= 80, "a salt of one's own is shared on purpose");
    let body = json!({"prompt": "a", "cache_salt": ""});
    refused(&service, Endpoint::Completions, &body, "cache_salt");
}

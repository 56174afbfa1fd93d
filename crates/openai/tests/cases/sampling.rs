//! Sampling parameters: defaults, ranges, choices and log-probabilities.

use super::*;

#[test]
fn max_tokens_is_defaulted_clamped_and_refused_h16() {
    let service = service();
    let messages = json!([{"role": "user", "content": "hi"}]);
    let counted = |answer: &Value| answer["usage"]["completion_tokens"].as_u64().expect("count");
    let answer = completion(&service, json!({"prompt": "hi"}));
    assert_eq!(counted(&answer), 16);
    assert_eq!(counted(&completion(&service, json!({"prompt": "hi", "max_tokens": null}))), 16);
    let answer = chat(&service, json!({"messages": messages}));
    let room = MAX_MODEL_LEN as u64 - answer["usage"]["prompt_tokens"].as_u64().expect("count");
    assert_eq!(counted(&answer), room);
    let both = json!({"messages": messages, "max_tokens": 5, "max_completion_tokens": 3});
    assert_eq!(counted(&chat(&service, both)), 3);

    for (endpoint, base) in [
        (Endpoint::ChatCompletions, json!({"messages": messages})),
        (Endpoint::Completions, json!({"prompt": "hi"})),
    ] {
        let with = |value: &str| {
            let mut body = base.clone();
            body["max_tokens"] = serde_json::from_str(value).expect("JSON");
            body
        };
        for wrong in ["-1", "1.5", "\"5\"", "4294967296", "9223372036854775808", "[]", "true"] {
            refused(&service, endpoint, &with(wrong), "max_tokens");
        }
        for large in
            [MAX_MODEL_LEN.to_string(), (MAX_MODEL_LEN + 1).to_string(), "2147483648".into()]
        {
            let error = ask(&service, endpoint, &with(&large)).expect_err("too long");
            assert_eq!((error.status, error.code), (400, Some("context_length_exceeded")));
            assert!(error.message.contains(&large), "{error}");
            assert!(error.message.contains(&MAX_MODEL_LEN.to_string()), "{error}");
        }
    }
}

#[test]
fn best_of_is_checked_against_n_and_streams_h31() {
    let service = service();
    let with = |more: Value| {
        let mut body = json!({"prompt": "a", "max_tokens": 3, "temperature": 1, "seed": 3});
        body.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
        body
    };
    for fine in [json!({"best_of": 1, "n": 1}), json!({"best_of": null}), json!({"best_of": 1})] {
        assert_eq!(completion(&service, with(fine))["choices"].as_array().expect("c").len(), 1);
    }
    let error =
        refused(&service, Endpoint::Completions, &with(json!({"best_of": 1, "n": 2})), "best_of");
    assert!(error.message.contains('1') && error.message.contains('2'), "{error}");
    let body = with(json!({"best_of": 2, "stream": true}));
    refused(&service, Endpoint::Completions, &body, "best_of");
    let answer = completion(&service, with(json!({"best_of": 3, "n": 2})));
    let indices: Vec<&Value> =
        answer["choices"].as_array().expect("c").iter().map(|choice| &choice["index"]).collect();
    assert_eq!(indices, [&json!(0), &json!(1)]);
    assert_eq!(answer["usage"]["completion_tokens"], 9, "all are counted");
}

#[test]
fn a_request_wins_over_the_model_and_null_is_absent_h32() {
    let behaviour = Behaviour {
        description: |model| {
            model.default_sampling =
                SamplingDefaults { top_k: Some(1), ..SamplingDefaults::default() };
        },
        ..Behaviour::default()
    };
    let service = Service::new(llm(behaviour), ServiceOptions::default());
    let body = |more: Value| {
        let mut body = json!({"prompt": "a", "max_tokens": 12, "temperature": 1.0, "seed": 7});
        body.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
        body
    };
    let greedy = text(&completion(&service, body(json!({"temperature": 0}))));
    assert_eq!(text(&completion(&service, body(json!({})))), greedy, "the model's top_k");
    assert_eq!(text(&completion(&service, body(json!({"top_k": null})))), greedy);
    assert_ne!(text(&completion(&service, body(json!({"top_k": 0})))), greedy);
    assert_ne!(text(&completion(&service, body(json!({"top_k": -1})))), greedy);
}

#[test]
fn sampling_ranges_s02() {
    let service = service();
    let fine = [
        ("temperature", "0"),
        ("temperature", "2"),
        ("temperature", "null"),
        ("temperature", "5e-324"),
        ("top_p", "0"),
        ("top_p", "1"),
        ("top_k", "-1"),
        ("top_k", "0"),
        ("top_k", "1"),
        ("top_k", "320"),
        ("top_k", "321"),
        ("top_k", "9223372036854775807"),
        ("min_p", "0"),
        ("min_p", "1"),
        ("presence_penalty", "-2"),
        ("frequency_penalty", "2"),
        ("repetition_penalty", "0.5"),
        ("n", "1"),
        ("priority", "-5"),
        ("user", "\"x\""),
    ];
    for (name, value) in fine {
        let body = format!("{{\"prompt\":\"a\",\"max_tokens\":2,\"{name}\":{value}}}");
        let body: Value = serde_json::from_str(&body).expect("JSON");
        completion(&service, body);
    }
    let wrong = [
        ("temperature", "-0.1"),
        ("temperature", "2.1"),
        ("temperature", "1e300"),
        ("temperature", "\"1\""),
        ("top_p", "1.01"),
        ("top_p", "-1"),
        ("top_k", "-2"),
        ("top_k", "1.5"),
        ("min_p", "-0.1"),
        ("min_p", "1.1"),
        ("presence_penalty", "2.1"),
        ("frequency_penalty", "-3"),
        ("repetition_penalty", "0"),
        ("repetition_penalty", "-1"),
        ("n", "0"),
        ("n", "10000"),
        ("n", "-1"),
        ("best_of", "1000"),
        ("min_tokens", "17"),
        ("stream", "1"),
        ("echo", "\"yes\""),
        ("ignore_eos", "0"),
        ("response_format", "\"json\""),
    ];
    for (name, value) in wrong {
        let body = format!("{{\"prompt\":\"a\",\"{name}\":{value}}}");
        let body: Value = serde_json::from_str(&body).expect("JSON");
        refused(&service, Endpoint::Completions, &body, name);
    }
    let infinite = br#"{"prompt":"a","temperature":1e999}"#;
    let error = service.complete(Endpoint::Completions, infinite, &Caller::default());
    assert_eq!(error.expect_err("not a number").status, 400);
}

#[test]
fn seeds_are_64_bits_wide_and_distinct_s03() {
    let service = service();
    let with = |seed: &str| {
        let body =
            format!("{{\"prompt\":\"a\",\"max_tokens\":24,\"temperature\":1,\"seed\":{seed}}}");
        serde_json::from_str::<Value>(&body).expect("JSON")
    };
    let answers: Vec<String> = [
        "0",
        "-1",
        "2147483648",
        "4294967296",
        "9007199254740992",
        "9007199254740993",
        "9223372036854775807",
        "-9223372036854775808",
    ]
    .iter()
    .map(|seed| {
        let answer = text(&completion(&service, with(seed)));
        assert_eq!(answer, text(&completion(&service, with(seed))), "seed {seed} repeats");
        answer
    })
    .collect();
    for (at, answer) in answers.iter().enumerate() {
        assert!(!answers[..at].contains(answer), "seed number {at} is like another");
    }
    for wrong in
        ["9223372036854775808", "18446744073709551616", "-9223372036854775809", "\"1\"", "1.5"]
    {
        refused(&service, Endpoint::Completions, &with(wrong), "seed");
    }
    completion(&service, with("null"));
}

#[test]
fn logprob_counts_s14() {
    let service = service();
    for (value, count) in [("0", 1), ("1", 1), ("5", 5), ("20", 20)] {
        let body = format!("{{\"prompt\":\"a\",\"max_tokens\":2,\"logprobs\":{value}}}");
        let answer = completion(&service, serde_json::from_str(&body).expect("JSON"));
        let top = answer["choices"][0]["logprobs"]["top_logprobs"][0].as_object().expect("top");
        assert_eq!(top.len(), count, "the chosen token is always listed");
        let chosen = &answer["choices"][0]["logprobs"]["token_logprobs"][0];
        assert!(top.values().any(|logprob| logprob == chosen), "{chosen} is not in {top:?}");
    }
    for wrong in ["21", "321", "-1", "true", "1.5", "\"1\""] {
        let body = format!("{{\"prompt\":\"a\",\"logprobs\":{wrong}}}");
        let body = serde_json::from_str(&body).expect("JSON");
        refused(&service, Endpoint::Completions, &body, "logprobs");
    }
    let chat_body = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2});
        body.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
        body
    };
    for (top, count) in [(json!(null), 0), (json!(0), 0), (json!(20), 20)] {
        let answer = chat(&service, chat_body(json!({"logprobs": true, "top_logprobs": top})));
        let entry = &answer["choices"][0]["logprobs"]["content"][0];
        assert_eq!(entry["top_logprobs"].as_array().expect("top").len(), count);
        assert!(entry["bytes"].is_array() && entry["token"].is_string());
    }
    let endpoint = Endpoint::ChatCompletions;
    refused(&service, endpoint, &chat_body(json!({"logprobs": 1})), "logprobs");
    refused(&service, endpoint, &chat_body(json!({"top_logprobs": 1})), "top_logprobs");
    let body = chat_body(json!({"logprobs": true, "top_logprobs": 21}));
    refused(&service, endpoint, &body, "top_logprobs");
    let answer =
        completion(&service, json!({"prompt": "abc", "max_tokens": 1, "prompt_logprobs": 10}));
    let entries = answer["choices"][0]["prompt_logprobs"].as_array().expect("entries");
    assert_eq!(entries[0], Value::Null);
    assert!(entries[1].as_object().is_some_and(|entry| entry.len() >= 10));
}

//! Streams: their chunks, their ends, and what is counted.

use super::*;

#[test]
fn no_empty_text_is_streamed_h04_and_every_token_keeps_its_logprobs_h34() {
    let service = service();
    let body = json!({
        "messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 60,
        "logprobs": true, "top_logprobs": 2, "stop": ["abcdefghij"],
        "stream_options": {"include_usage": true},
    });
    let chunks = stream(&service, Endpoint::ChatCompletions, &body);
    let mut entries = 0;
    for (at, chunk) in chunks.iter().enumerate() {
        let Some(choice) = chunk["choices"].get(0) else { continue };
        if at > 0 {
            assert_ne!(choice["delta"]["content"], "", "{chunk}");
            assert!(choice["delta"].get("role").is_none(), "{chunk}");
        }
        entries += choice["logprobs"]["content"].as_array().map_or(0, Vec::len);
    }
    assert_eq!(entries, 60);
    assert_eq!(chunks.last().expect("usage")["usage"]["completion_tokens"], 60);
}

#[test]
fn chunks_of_several_choices_are_complete_and_in_order_h06_h07_h09_h11() {
    let service = service();
    let body = json!({
        "messages": [{"role": "user", "content": "hi"}], "n": 3, "temperature": 1, "seed": 1,
        "max_tokens": 10,
    });
    let chunks = stream(&service, Endpoint::ChatCompletions, &body);
    for index in 0..3 {
        let own: Vec<&Value> = chunks
            .iter()
            .map(|chunk| &chunk["choices"][0])
            .filter(|c| c["index"] == index)
            .collect();
        assert_eq!(own[0]["delta"], json!({"role": "assistant", "content": ""}));
        let last = own.last().expect("chunks");
        assert_eq!(last["delta"], json!({}));
        assert_eq!(last["finish_reason"], "length");
        for middle in &own[1..own.len() - 1] {
            assert_eq!(middle["finish_reason"], Value::Null);
            assert_eq!(middle["delta"].as_object().expect("delta").len(), 1, "{middle}");
        }
    }
    let body = json!({
        "prompt": "Hello!", "max_tokens": 2, "n": 2, "logprobs": 0,
        "stream_options": {"include_usage": true},
    });
    let chunks = stream(&service, Endpoint::Completions, &body);
    for index in 0..2 {
        let tokens: usize = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"].get(0))
            .filter(|choice| choice["index"] == index && !choice["logprobs"].is_null())
            .map(|choice| {
                let lists = &choice["logprobs"];
                let count = lists["tokens"].as_array().expect("tokens").len();
                for list in ["token_logprobs", "top_logprobs", "text_offset"] {
                    assert_eq!(lists[list].as_array().expect(list).len(), count);
                }
                count
            })
            .sum();
        assert_eq!(tokens, 2);
    }
    assert_eq!(chunks.last().expect("usage")["usage"]["completion_tokens"], 4);
}

#[test]
fn envelopes_are_complete_in_every_chunk_h08_h10() {
    let service = service();
    let messages = json!([{"role": "user", "content": "hi"}]);
    for (endpoint, body, whole, piece) in [
        (
            Endpoint::ChatCompletions,
            json!({"messages": messages, "max_tokens": 5}),
            "chat.completion",
            "chat.completion.chunk",
        ),
        (
            Endpoint::Completions,
            json!({"prompt": "hi", "max_tokens": 5}),
            "text_completion",
            "text_completion",
        ),
    ] {
        let check = |answer: &Value, object: &str| {
            assert_eq!(answer["object"], object);
            assert!(answer["id"].as_str().is_some_and(|id| id.contains("cmpl-")));
            assert!(answer["created"].as_u64().is_some_and(|time| time > 1_700_000_000));
            assert_eq!(answer["model"], "tiny");
            for choice in answer["choices"].as_array().expect("choices") {
                for key in ["index", "finish_reason", "logprobs"] {
                    assert!(choice.get(key).is_some(), "{key} in {choice}");
                }
            }
        };
        let answer = ask(&service, endpoint, &body).expect("an answer");
        check(&answer, whole);
        let mut body = body;
        body["stream_options"] = json!({"include_usage": true});
        let chunks = stream(&service, endpoint, &body);
        for chunk in &chunks {
            check(chunk, piece);
            assert_eq!(chunk["id"], chunks[0]["id"]);
            assert_eq!(chunk["created"], chunks[0]["created"]);
        }
    }
}

#[test]
fn usage_comes_exactly_when_asked_for_h12() {
    let service = service();
    let body = json!({"prompt": "hello", "max_tokens": 4, "ignore_eos": true});
    let chunks = stream(&service, Endpoint::Completions, &body);
    assert!(chunks.iter().all(|c| c.get("usage").is_none() && c["choices"].get(0).is_some()));

    let with = |options: Value| {
        let mut body = body.clone();
        body["stream_options"] = options;
        body
    };
    let chunks = stream(&service, Endpoint::Completions, &with(json!({"include_usage": true})));
    let (last, others) = chunks.split_last().expect("chunks");
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 4);
    assert!(
        others.iter().all(|chunk| chunk["usage"] == Value::Null && chunk.get("usage").is_some())
    );
    let plain = completion(&service, body.clone());
    assert_eq!(plain["usage"]["prompt_tokens"], last["usage"]["prompt_tokens"]);

    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let chunks = stream(&service, Endpoint::Completions, &with(options));
    let counts: Vec<u64> =
        chunks.iter().map(|c| c["usage"]["completion_tokens"].as_u64().expect("usage")).collect();
    assert!(counts.is_sorted() && counts.last() == Some(&4), "{counts:?}");

    refused(
        &service,
        Endpoint::Completions,
        &with(json!({"include_usage": true})),
        "stream_options",
    );
}

#[test]
fn a_failure_in_mid_stream_is_an_error_and_no_end_h14() {
    let service = service();
    let body = json!({"prompt": "ab~", "max_tokens": 5});
    let chunks = stream(&service, Endpoint::Completions, &body);
    let error = &chunks.last().expect("an error")["error"];
    assert!(error["message"].as_str().is_some_and(|text| text.contains("not numbers")), "{error}");
    assert_eq!(error["type"], "internal_server_error");
    assert!(
        chunks.iter().all(|c| c["choices"].get(0).is_none_or(|c| c["finish_reason"].is_null()))
    );
    assert_eq!(ask(&service, Endpoint::Completions, &body).expect_err("a fault").status, 500);
    completion(&service, json!({"prompt": "ab", "max_tokens": 5}));
}

#[test]
fn tokens_stream_one_by_one_where_there_is_no_text() {
    let textless = Behaviour { is_textless: true, ..Behaviour::default() };
    let service = Service::new(llm(textless), ServiceOptions::default());
    let body = json!({"prompt": [7, 8], "max_tokens": 4, "ignore_eos": true, "temperature": 0});
    let answer = completion(&service, body.clone());
    assert_eq!(answer["choices"][0]["text"], "");
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    let chunks = stream(&service, Endpoint::Completions, &body);
    let silent = |chunk: &&Value| chunk["choices"][0]["finish_reason"].is_null();
    assert!(chunks.iter().filter(silent).count() >= 4, "{chunks:?}");
    let mut with_ids = body;
    with_ids["return_token_ids"] = true.into();
    let answer = completion(&service, with_ids.clone());
    let chunks = stream(&service, Endpoint::Completions, &with_ids);
    let ids: Vec<&Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["token_ids"].as_array())
        .flatten()
        .collect();
    assert_eq!(json!(ids), answer["choices"][0]["token_ids"]);
    assert_eq!(ids.len(), 4);
    refused(&service, Endpoint::Completions, &json!({"prompt": "abc"}), "prompt");
}

#[test]
fn a_plain_answer_is_the_sum_of_its_stream() {
    let service = service();
    for seed in 0..20 {
        let n = 1 + seed % 3;
        let body = json!({
            "prompt": format!("prompt number {seed}"), "seed": seed, "n": n, "temperature": 0.9,
            "max_tokens": 5 + 7 * (seed % 5), "logprobs": 2, "echo": seed % 2 == 0,
            "stop": ["e", "tt"],
        });
        let whole = completion(&service, body.clone());
        let chunks = stream(&service, Endpoint::Completions, &body);
        for index in 0..n as usize {
            let choice = &whole["choices"][index];
            assert_eq!(joined(&chunks, index), choice["text"].as_str().expect("text"), "{body}");
            let own = || chunks.iter().map(|c| &c["choices"][0]).filter(|c| c["index"] == index);
            let reason = own().find_map(|c| c["finish_reason"].as_str());
            assert_eq!(reason, choice["finish_reason"].as_str(), "{body}");
            for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                let sum: Vec<&Value> =
                    own().filter_map(|c| c["logprobs"][list].as_array()).flatten().collect();
                assert_eq!(json!(sum), choice["logprobs"][list], "{list} of {body}");
            }
        }
    }
}

#[test]
fn dropping_an_answer_cancels_it() {
    let llm: Llm = llm(Behaviour { pace: Duration::from_millis(1), ..Behaviour::default() });
    let service = Service::new(llm.clone(), ServiceOptions::default());
    for stream in [false, true] {
        let body = json!({"prompt": "a", "max_tokens": 2000, "stream": stream}).to_string();
        let answer = service.complete(Endpoint::Completions, body.as_bytes(), &Caller::default());
        drop(answer.expect("accepted"));
    }
    let end = std::time::Instant::now() + LONG;
    loop {
        let stats = llm.stats();
        if stats.num_running + stats.num_waiting + stats.num_blocks_used == 0 {
            break;
        }
        assert!(std::time::Instant::now() < end, "still there: {stats:?}");
        std::thread::yield_now();
    }
}

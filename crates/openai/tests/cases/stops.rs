//! What ends an answer.

use super::*;

#[test]
fn stop_strings_cut_at_characters_streamed_or_not_h01_h03() {
    let service = service();
    let base = json!({"prompt": "Once upon", "temperature": 0, "max_tokens": 40});
    let whole = completion(&service, base.clone());
    let whole_text = text(&whole);
    let mut tried = 0;
    let characters: Vec<usize> = whole_text.char_indices().map(|(at, _)| at).collect();
    for window in characters.windows(4).step_by(3) {
        let stop = &whole_text[window[0]..window[3]];
        let cut = whole_text.find(stop).expect("it is in there");
        for includes in [false, true] {
            let mut body = base.clone();
            body["stop"] = stop.into();
            body["include_stop_str_in_output"] = includes.into();
            let answer = completion(&service, body.clone());
            let end = if includes { cut + stop.len() } else { cut };
            assert_eq!(text(&answer), whole_text[..end], "stop {stop:?}");
            assert_eq!(answer["choices"][0]["finish_reason"], "stop");
            assert_eq!(answer["choices"][0]["stop_reason"], stop);
            let chunks = stream(&service, Endpoint::Completions, &body);
            assert_eq!(joined(&chunks, 0), whole_text[..end], "streamed, stop {stop:?}");
            tried += 1;
        }
    }
    assert!(tried > 10);
}

#[test]
fn stop_has_the_shapes_of_the_specification_h05() {
    let service = service();
    let with =
        |stop: Value| json!({"prompt": "a", "max_tokens": 4, "temperature": 0, "stop": stop});
    let plain = text(&completion(&service, with(Value::Null)));
    assert_eq!(text(&completion(&service, with(json!([])))), plain);
    for fine in [json!("\u{0}"), json!("🙂"), json!(["q", "w", "e", "r", "t"])] {
        completion(&service, with(fine));
    }
    for wrong in [json!(""), json!(["", "x"]), json!([1]), json!(7), json!({"a": 1})] {
        refused(&service, Endpoint::Completions, &with(wrong), "stop");
    }
    refused(&service, Endpoint::Completions, &with(json!("x".repeat(100_000))), "stop");
    let many: Vec<String> = (0..100_000).map(|i| i.to_string()).collect();
    refused(&service, Endpoint::Completions, &with(json!(many)), "stop");
}

#[test]
fn a_stop_string_of_the_prompt_does_not_count_h37() {
    let service = service();
    for echo in [false, true] {
        let body = json!({
            "prompt": "Observation:", "stop": ["Observation:", "n:"], "echo": echo,
            "max_tokens": 9, "temperature": 0,
        });
        let answer = completion(&service, body);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["completion_tokens"], 9);
    }
}

#[test]
fn stop_tokens_say_what_stopped() {
    let service = service();
    let eos = json!({"prompt": "a", "max_tokens": 9, "logit_bias": {"1": 100}});
    let answer = completion(&service, eos.clone());
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["choices"][0]["stop_reason"], Value::Null, "the model's own end");
    let named = json!({
        "prompt": "a", "max_tokens": 9, "logit_bias": {"50": 100}, "stop_token_ids": [50],
    });
    assert_eq!(completion(&service, named)["choices"][0]["stop_reason"], 50);
    let mut ignoring = eos;
    ignoring["ignore_eos"] = true.into();
    let answer = completion(&service, ignoring);
    assert_eq!(answer["usage"]["completion_tokens"], 9);
    assert_eq!(EOS, 1);
}

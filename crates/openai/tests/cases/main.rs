//! The protocol's contract, case by case, over a model without weights. Behaviour cases are cited
//! by their numbers.

mod chats;
mod prompts;
mod refusals;
mod sampling;
mod stops;
mod streams;
#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use pagedllm::{Llm, SamplingDefaults};
use pagedllm_openai::{
    AnswerBody, ApiError, Caller, DONE, Endpoint, NextPayload, Service, ServiceOptions,
};
use serde_json::{Value, json};
use support::{Behaviour, EOS, MAX_MODEL_LEN, VOCAB_SIZE, llm};

const LONG: Duration = Duration::from_secs(60);

fn service() -> Service {
    Service::new(llm(Behaviour::default()), ServiceOptions::default())
}

fn ask(service: &Service, endpoint: Endpoint, body: &Value) -> Result<Value, ApiError> {
    let answer = service.complete(endpoint, body.to_string().as_bytes(), &Caller::default())?;
    let text = match answer.body {
        AnswerBody::Ready(text) => text,
        AnswerBody::Plain(mut plain) => plain.wait(LONG)?.expect("it ends"),
        AnswerBody::Stream(_) => panic!("not asked for"),
    };
    Ok(serde_json::from_str(&text).expect("JSON"))
}

/// Chunks of a stream; the last payload must be `[DONE]` unless an error came.
fn stream(service: &Service, endpoint: Endpoint, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = true.into();
    let answer = service
        .complete(endpoint, body.to_string().as_bytes(), &Caller::default())
        .unwrap_or_else(|error| panic!("{error} for {body}"));
    let AnswerBody::Stream(mut stream) = answer.body else { panic!("a stream") };
    let mut chunks: Vec<Value> = Vec::new();
    let mut is_done = false;
    loop {
        match stream.next_timeout(LONG) {
            NextPayload::Payload(payload) if payload == DONE => is_done = true,
            NextPayload::Payload(payload) => {
                assert!(!is_done, "nothing follows [DONE]");
                assert!(!payload.contains('\n'));
                chunks.push(serde_json::from_str(&payload).expect("JSON"));
            }
            NextPayload::TimedOut => panic!("timed out"),
            NextPayload::End => break,
        }
    }
    let has_failed = chunks.last().is_some_and(|chunk| chunk.get("error").is_some());
    assert_ne!(is_done, has_failed, "either an error or [DONE]");
    chunks
}

fn completion(service: &Service, body: Value) -> Value {
    ask(service, Endpoint::Completions, &body).unwrap_or_else(|e| panic!("{e} for {body}"))
}

fn chat(service: &Service, body: Value) -> Value {
    ask(service, Endpoint::ChatCompletions, &body).unwrap_or_else(|e| panic!("{e} for {body}"))
}

/// Asserts a 400 that names `param`.
fn refused(service: &Service, endpoint: Endpoint, body: &Value, param: &str) -> ApiError {
    let error = match service.complete(endpoint, body.to_string().as_bytes(), &Caller::default()) {
        Ok(_) => panic!("accepted: {}", &body.to_string()[..200.min(body.to_string().len())]),
        Err(error) => error,
    };
    assert_eq!(error.status, 400, "{error}");
    assert_eq!(error.kind, "invalid_request_error");
    assert_eq!(error.param.as_deref(), Some(param), "{error}");
    assert!(error.message.contains(param.split(['[', '.']).next().expect("a name")), "{error}");
    error
}

fn text(answer: &Value) -> String {
    answer["choices"][0]["text"].as_str().expect("text").to_owned()
}

/// Joined text of a choice in a completion stream.
fn joined(chunks: &[Value], index: usize) -> String {
    chunks
        .iter()
        .flat_map(|chunk| chunk["choices"].as_array().expect("choices"))
        .filter(|choice| choice["index"] == index)
        .filter_map(|choice| choice["text"].as_str().or(choice["delta"]["content"].as_str()))
        .collect()
}

//! Requests: routes, heads, bodies, and who may ask.

use super::*;

#[test]
fn every_route_is_guarded_but_those_for_probes_o11() {
    let world = World::new(Behaviour::default(), |options| {
        options.api_keys = vec!["secret".into(), "other".into()];
    });
    let guarded = [
        ("GET", "/v1/models"),
        ("GET", "/v1/models/tiny"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("GET", "/metrics"),
        ("GET", "/version"),
        ("GET", "//v1/models"),
        ("GET", "/V1/models"),
        ("GET", "/v1/models/"),
        ("HEAD", "/v1/models"),
        ("GET", "/debug"),
        ("POST", "/abort"),
        ("GET", "/"),
        ("GET", "/health/"),
        ("GET", "/health/../v1/models"),
        ("OPTIONS", "/v1/models"),
        ("GET", "/v1/models?api_key=secret"),
        ("DELETE", "/v1/models"),
    ];
    for (method, path) in guarded {
        for headers in [
            "",
            "Authorization: Bearer wrong\r\n",
            "Authorization: Bearer\r\n",
            "Authorization: Bearer secre\r\n",
            "X-Api-Key: \r\n",
        ] {
            let answer = world.request(method, path, headers);
            assert_eq!(answer.status, 401, "{method} {path} {headers}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
            if method != "HEAD" {
                assert_eq!(answer.check_error(401)["code"], "invalid_api_key");
            }
        }
    }
    for path in ["/health", "/ready", "/ping"] {
        assert_eq!(world.get(path, "").status, 200, "{path}");
    }
    for headers in [
        "Authorization: Bearer secret\r\n",
        "authorization: bearer other\r\n",
        "Authorization: Bearer secret  \r\n",
        "X-API-Key: other\r\n",
    ] {
        assert_eq!(world.get("/v1/models", headers).status, 200, "{headers}");
        assert_eq!(world.get("/metrics", headers).status, 200, "{headers}");
    }
    let open = World::new(Behaviour::default(), |options| {
        options.api_keys = vec!["secret".into()];
        options.open_metrics = true;
    });
    assert_eq!(open.get("/metrics", "").status, 200);
    assert_eq!(open.get("/v1/models", "").status, 401);
}

#[test]
fn routes_and_methods_are_what_they_are() {
    let world = World::plain();
    world.get("/v1/no-such-route", "").check_error(404);
    let answer = world.get("/v1/completions", "");
    answer.check_error(405);
    assert_eq!(answer.header("allow"), Some("POST"));
    world.request("DELETE", "/v1/models", "").check_error(405);
    world.request("PUT", "/v1/models", "").check_error(405);
    world.request("BREW", "/health", "").check_error(405);
    let head = world.request("HEAD", "/v1/models", "");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(world.get("/v1/models/tiny", "").json()["id"], "tiny");
    world.get("/v1/models/big", "").check_error(404);
    assert_eq!(world.get("/version", "").json(), json!({"version": env!("CARGO_PKG_VERSION")}));
    let metrics = world.get("/metrics", "").body;
    assert!(metrics.contains("\nvllm:num_requests_waiting{model_name=\"tiny\",engine=\"0\"} 0\n"));
    assert!(metrics.contains(
        "http_requests_total{handler=\"/v1/models\",method=\"HEAD\",status=\"200\"} 1\n"
    ));
    assert!(metrics.contains("handler=\"other\""), "unknown paths are one handler");
    assert_eq!(world.request("POST", "/ping", "Content-Length: 0\r\n").status, 200);
}

#[test]
fn bodies_that_are_no_requests_are_refused_h33_o09() {
    let world = World::plain();
    let nested = format!("{{\"prompt\":\"a\",\"x\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    let bodies: Vec<Vec<u8>> = vec![
        b"".into(),
        b"{:".into(),
        b"null".into(),
        b"[]".into(),
        b"42".into(),
        b"\"text\"".into(),
        b"{}".into(),
        b"\xff\xfe\x00".into(),
        "[".repeat(100_000).into(),
        nested.into(),
        b"{\"prompt\":\"\xc4\xe3\"}".into(),
        b"{\"prompt\":\"\\ud800\"}".into(),
        b"\xef\xbb\xbf{\"prompt\":\"a\"}".into(),
        b"{'prompt': 'x'}".into(),
        b"{\"prompt\":\"a\"} x".into(),
        b"{\"prompt\":\"a\"}{\"prompt\":\"b\"}".into(),
    ];
    for path in ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"] {
        for body in &bodies {
            world.post(path, "", body).check_error(400);
        }
    }
    let nul = world.complete(&json!({"prompt": "a\u{0}b", "max_tokens": 2}));
    assert_eq!(nul.status, 200);
    let twice = world.post("/v1/completions", "", b"{\"prompt\":\"a\",\"prompt\":\"b\"}");
    assert_eq!(twice.status, 200, "the last one counts");
    world.comes_to_rest();
}

#[test]
fn bodies_have_a_type_an_encoding_and_a_size_o16() {
    let world = World::new(Behaviour::default(), |options| options.max_request_body_bytes = 5000);
    let body = br#"{"prompt":"a","max_tokens":1}"#;
    let send = |kind: &str| {
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{kind}\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        Answer::parse(&world.raw(&[head.as_bytes(), body].concat()))
    };
    for fine in [
        "",
        "Content-Type: application/json\r\n",
        "Content-Type: Application/JSON; charset=utf-8\r\n",
        "Content-Type: application/vnd.api+json\r\n",
        "Content-Encoding: identity\r\n",
    ] {
        assert_eq!(send(fine).status, 200, "{fine}");
    }
    for wrong in [
        "Content-Type: text/plain\r\n",
        "Content-Type: multipart/form-data\r\n",
        "Content-Type: \r\n",
        "Content-Encoding: gzip\r\n",
        "Content-Encoding: identity\r\nContent-Encoding: br\r\n",
    ] {
        send(wrong).check_error(415);
    }
    let large = json!({"prompt": "a".repeat(6000)}).to_string();
    let error = world.post("/v1/completions", "", large.as_bytes()).check_error(413);
    assert!(error["message"].as_str().is_some_and(|text| text.contains("5000")));
    for more in ["", "Expect: 100-continue\r\n"] {
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500000000\r\n{more}\r\n"
        );
        Answer::parse(&world.raw(head.as_bytes())).check_error(413);
    }
    let mut chunked =
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..3 {
        chunked.extend_from_slice(format!("7d0\r\n{}\r\n", " ".repeat(2000)).as_bytes());
    }
    Answer::parse(&world.raw(&chunked)).check_error(413);
    world.comes_to_rest();
}

#[test]
fn heads_have_a_size_and_a_time_o05() {
    let world = World::new(Behaviour::default(), |options| {
        options.keep_alive_timeout = Duration::from_millis(300);
        options.body_timeout = Duration::from_millis(300);
    });
    let long = "a".repeat(1 << 20);
    let status = |bytes: &[u8]| {
        let answer = world.raw(bytes);
        if answer.is_empty() { 0 } else { Answer::parse(&answer).status }
    };
    // The server may cut the connection while such a head is still being sent, and then the
    // answer is lost.
    let one = format!("GET / HTTP/1.1\r\nHost: x\r\nX-Long: {long}\r\n\r\n");
    assert!([431, 0].contains(&status(one.as_bytes())));
    let path = format!("GET /{long} HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!([414, 431, 0].contains(&status(path.as_bytes())));
    let many: String = (0..1000).map(|i| format!("X-{i}: 1\r\n")).collect();
    let many = format!("GET / HTTP/1.1\r\nHost: x\r\n{many}\r\n");
    assert!([431, 0].contains(&status(many.as_bytes())));

    // These wait for the end of the connection, so a missing time limit fails by the client's.
    let start = Instant::now();
    assert_eq!(status(b"GET /health HTT"), 0);
    assert_eq!(status(b""), 0);
    let stalled = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{";
    Answer::parse(&world.raw(stalled)).check_error(408);
    assert!(start.elapsed() < LONG);
    world.comes_to_rest();
}

#[test]
fn bytes_that_are_no_http_do_no_harm() {
    let world = World::new(Behaviour::default(), |options| {
        options.keep_alive_timeout = Duration::from_millis(200);
        options.body_timeout = Duration::from_millis(200);
    });
    let post = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n";
    let known = [
        "\u{16}\u{3}\u{1}\u{2}".to_owned(),
        "GET\r\n\r\n".into(),
        "GET / HTTP/9.9\r\n\r\n".into(),
        "\r\n\r\n\r\n".into(),
        format!("{post}Content-Length: -1\r\n\r\n"),
        format!("{post}Content-Length: 1\r\nContent-Length: 2\r\n\r\n{{}}"),
        format!("{post}Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
        format!("{post}Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"),
        format!("{post}Transfer-Encoding: gzip\r\n\r\n"),
        format!("{post}X: a\u{0}b\r\n\r\n"),
        "GET /health HTTP/1.1\r\nHost: x\r\n X: folded\r\n\r\n".into(),
    ];
    for request in &known {
        let answer = world.raw(request.as_bytes());
        assert!(answer.is_empty() || Answer::parse(&answer).status >= 400, "{request:?}");
    }
    // Valid requests, damaged at random.
    let seed = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_261_130_u64);
    eprintln!("SEED={seed}");
    let mut state = seed;
    let mut random = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let valid = self::post(
        "/v1/completions",
        "Connection: close\r\n",
        br#"{"prompt":"abc","max_tokens":3,"stream":true,"n":2,"logprobs":2}"#,
    );
    for _ in 0..150 {
        let mut request = valid.clone();
        for _ in 0..=random(4) {
            let at = random(request.len());
            match random(4) {
                0 => request[at] = random(256) as u8,
                1 => request.truncate(at.max(1)),
                2 => request.insert(at, random(256) as u8),
                _ => {
                    request.remove(at);
                }
            }
            if request.len() < 2 {
                break;
            }
        }
        let answer = world.raw(&request);
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{request:?}");
    }
    world.comes_to_rest();
}

#[test]
fn request_ids_are_echoed_when_they_are_ids_o13() {
    let world = World::plain();
    let body = br#"{"prompt":"a","max_tokens":1}"#;
    let answer = world.post("/v1/completions", "X-Request-Id: my-id.1\r\n", body);
    assert_eq!(answer.header("x-request-id"), Some("my-id.1"));
    assert_eq!(answer.json()["id"], "cmpl-my-id.1");
    for wrong in ["a b", "\u{e9}", &"x".repeat(500), "<script>", "a\tb"] {
        let answer = world.post("/v1/completions", &format!("X-Request-Id: {wrong}\r\n"), body);
        assert_eq!(answer.status, 200);
        let id = answer.header("x-request-id").expect("an id of our own");
        assert!(id != wrong && id.len() == 32, "{id}");
    }
    let model = json!({"prompt": "a", "model": "line\r\nbreak \u{7f} \u{202e}"});
    world.complete(&model).check_error(404);
    let answer = world.post("/v1/completions", "", br#"{"prompt":"a","topk":1,"\r\nx: y":2}"#);
    assert_eq!(answer.header("x-pagedllm-ignored-params"), Some("topk"));
}

#[test]
fn pages_of_other_origins_are_denied_unless_listed() {
    let closed = World::plain();
    let origin = "Origin: https://a.example\r\n";
    assert_eq!(closed.get("/v1/models", origin).header("access-control-allow-origin"), None);
    let listed = World::new(Behaviour::default(), |options| {
        options.allowed_origins = vec!["https://a.example".into()];
        options.api_keys = vec!["k".into()];
    });
    let key = "Authorization: Bearer k\r\n";
    let answer = listed.get("/v1/models", &format!("{origin}{key}"));
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://a.example"));
    let answer = listed.get("/v1/models", &format!("Origin: https://b.example\r\n{key}"));
    assert_eq!(answer.header("access-control-allow-origin"), None);
    let preflight = format!("{origin}Access-Control-Request-Method: POST\r\n");
    let answer = listed.request("OPTIONS", "/v1/completions", &preflight);
    assert_eq!(answer.status, 204, "a preflight has no key");
    assert!(
        answer.header("access-control-allow-methods").is_some_and(|list| list.contains("POST"))
    );
}

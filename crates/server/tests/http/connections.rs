//! Connections: kept, bursting, leaving, silent, and where the server listens.

use super::*;

#[test]
fn streams_are_framed_as_events_h15() {
    let world = World::plain();
    let body = json!({"prompt": "a\nb", "max_tokens": 200, "stream": true});
    let answer = world.complete(&body);
    assert_eq!(answer.status, 200);
    assert!(
        answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"))
    );
    assert_eq!(answer.header("cache-control"), Some("no-cache"));
    let payloads = payloads(&answer.body);
    let (last, others) = payloads.split_last().expect("payloads");
    assert_eq!(*last, "[DONE]");
    for payload in others {
        serde_json::from_str::<Value>(payload).expect("JSON");
    }
    world.comes_to_rest();
}

#[test]
fn a_client_that_goes_away_takes_its_request_along() {
    let behaviour = Behaviour { pace: Duration::from_millis(1), ..Behaviour::default() };
    let world = World::new(behaviour, |_| {});
    for stream in [true, false] {
        let mut clients: Vec<TcpStream> = (0..8)
            .map(|_| {
                let body = json!({"prompt": "a", "max_tokens": 2000, "stream": stream, "n": 2});
                let mut client = world.connect();
                client
                    .write_all(&post("/v1/completions", "", body.to_string().as_bytes()))
                    .expect("sent");
                client
            })
            .collect();
        if stream {
            for client in &mut clients {
                client.read_exact(&mut [0; 300]).expect("the stream runs");
            }
        } else {
            let end = Instant::now() + LONG;
            while world.llm.stats().num_running == 0 {
                assert!(Instant::now() < end);
                std::thread::yield_now();
            }
        }
        drop(clients);
        world.comes_to_rest();
        let stats = world.llm.stats();
        assert!(stats.finished_total.abort > 0, "{stats:?}");
        assert!(stats.generation_tokens_total < 10_000, "{stats:?}");
    }
}

#[test]
fn a_full_queue_says_when_to_come_again() {
    let behaviour = Behaviour {
        pace: Duration::from_millis(1),
        max_num_queued: 2,
        max_num_seqs: 1,
        ..Behaviour::default()
    };
    let world = World::new(behaviour, |_| {});
    let body = json!({"prompt": "a", "max_tokens": 1500, "stream": true}).to_string();
    let mut waiting = Vec::new();
    let refused = loop {
        let mut client = world.connect();
        client.write_all(&post("/v1/completions", "", body.as_bytes())).expect("sent");
        let mut start = [0; 12];
        client.read_exact(&mut start).expect("a status");
        if &start[9..] == b"429" {
            let mut rest = start.to_vec();
            client.shutdown(Shutdown::Write).expect("nothing more is sent");
            client.read_to_end(&mut rest).expect("an answer");
            break Answer::parse(&rest);
        }
        waiting.push(client);
        assert!(waiting.len() < 10);
    };
    assert_eq!(refused.check_error(429)["type"], "rate_limit_error");
    let seconds: u64 = refused.header("retry-after").expect("a time").parse().expect("seconds");
    assert!(seconds >= 1);
    // The counters know of what runs after its first step; before that, all looks at rest.
    let end = Instant::now() + LONG;
    while world.llm.stats().num_running == 0 {
        assert!(Instant::now() < end, "nothing runs");
        std::thread::yield_now();
    }
    drop(waiting);
    world.comes_to_rest();
}

#[test]
fn connections_are_kept_and_bursts_wait_o03_o04() {
    let world = World::new(Behaviour::default(), |options| options.max_connections = 4);
    let mut client = world.connect();
    for _ in 0..3 {
        client.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).expect("an answer");
            bytes.push(byte[0]);
        }
        assert_eq!(Answer::parse(&bytes).status, 200);
    }
    drop(client);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..64)
            .map(|_| {
                scope.spawn(|| world.complete(&json!({"prompt": "a", "max_tokens": 5})).status)
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().expect("a status"), 200);
        }
    });
}

#[test]
fn a_unix_socket_serves_as_well() {
    let path = std::env::temp_dir().join(format!("pagedllm-test-{}.sock", std::process::id()));
    let stale = std::os::unix::net::UnixListener::bind(&path).expect("it binds");
    drop(stale);
    let world = World::new(Behaviour::default(), |options| options.uds = Some(path.clone()));
    let mut client = std::os::unix::net::UnixStream::connect(&path).expect("it accepts");
    client
        .write_all(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .expect("sent");
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).expect("an answer");
    assert_eq!(Answer::parse(&answer).status, 200);
    drop(world);
    assert!(!path.exists(), "nothing is left behind");
}

#[test]
fn a_taken_port_is_an_error() {
    let world = World::plain();
    let options = ServerOptions {
        host: "127.0.0.1".into(),
        port: world.address.port(),
        ..ServerOptions::default()
    };
    let error = Server::start(world.llm.clone(), options).expect_err("taken");
    assert!(error.to_string().contains("can't listen"), "{error}");
}

#[test]
fn silent_streams_get_comments_when_asked_for() {
    let behaviour = Behaviour { pace: Duration::from_millis(300), ..Behaviour::default() };
    let world = World::new(behaviour, |options| {
        options.sse_keep_alive_interval = Duration::from_millis(20);
    });
    let answer = world.complete(&json!({"prompt": "a", "max_tokens": 2, "stream": true}));
    assert!(answer.body.starts_with(": keep-alive\n\n"), "{}", answer.body);
    assert!(answer.body.ends_with("data: [DONE]\n\n"));
}

#[test]
fn large_bodies_take_turns_and_all_are_read() {
    let world = World::new(Behaviour::default(), |options| {
        options.max_request_body_bytes = 300 << 20;
    });
    // Each announces most of what all together may hold, so they are read one after the other.
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let prompt = json!({"prompt": "a", "max_tokens": 1}).to_string();
                    let body = format!("{prompt}{}", " ".repeat(8 << 20));
                    let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
                        Transfer-Encoding: chunked\r\n\r\n";
                    let chunk = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
                    Answer::parse(&world.raw(format!("{head}{chunk}").as_bytes())).status
                })
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().expect("a status"), 200);
        }
    });
}

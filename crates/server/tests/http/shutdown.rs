//! The way to the end.

use super::*;

#[test]
fn running_streams_end_and_new_ones_are_refused_while_draining_o02() {
    let behaviour = Behaviour { pace: Duration::from_millis(5), ..Behaviour::default() };
    let world = World::new(behaviour, |_| {});
    let body = json!({"prompt": "a", "max_tokens": 400, "stream": true}).to_string();
    let mut streams: Vec<TcpStream> = (0..5)
        .map(|_| {
            let mut client = world.connect();
            client.write_all(&post("/v1/completions", "", body.as_bytes())).expect("sent");
            client
        })
        .collect();
    for stream in &mut streams {
        stream.read_exact(&mut [0; 15]).expect("it runs");
    }
    let idle = world.connect();
    std::thread::scope(|scope| {
        let stop = scope.spawn(|| world.handle.stop(LONG));
        let end = Instant::now() + LONG;
        while world.is_ready() {
            assert!(Instant::now() < end);
        }
        assert_eq!(world.get("/health", "").status, 200, "alive until the end");
        let refused = world.complete(&json!({"prompt": "a"}));
        refused.check_error(503);
        assert!(refused.header("retry-after").is_some());
        assert_eq!(refused.header("connection"), Some("close"));
        for mut stream in streams {
            let mut rest = String::new();
            stream.read_to_string(&mut rest).expect("it ends in order");
            assert!(rest.contains("data: [DONE]\n\n"), "{rest}");
        }
        stop.join().expect("it stops");
    });
    drop(idle);
    assert!(
        TcpStream::connect(world.address).is_err()
            || world.raw(b"GET /health HTTP/1.1\r\n\r\n").is_empty()
    );
}

#[test]
fn a_second_stop_ends_everything_with_an_error_o02() {
    let behaviour = Behaviour { pace: Duration::from_millis(5), ..Behaviour::default() };
    let world = World::new(behaviour, |_| {});
    let body = json!({"prompt": "a", "max_tokens": 2000, "n": 4, "stream": true}).to_string();
    let mut client = world.connect();
    client
        .write_all(&post("/v1/completions", "Connection: close\r\n", body.as_bytes()))
        .expect("sent");
    client.read_exact(&mut [0; 15]).expect("it runs");
    let start = Instant::now();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| world.handle.stop(Duration::from_secs(3600)));
        while world.is_ready() {
            assert!(start.elapsed() < LONG);
        }
        world.handle.stop(Duration::ZERO);
        first.join().expect("it stops");
    });
    assert!(start.elapsed() < LONG);
    let mut rest = String::new();
    client.read_to_string(&mut rest).expect("it ends in order");
    assert!(rest.contains("\"error\":{"), "{}", &rest[rest.len().saturating_sub(400)..]);
    assert!(!rest.contains("[DONE]"));
}

#[test]
fn a_dead_engine_fails_its_probes_and_nothing_hangs() {
    let behaviour = Behaviour { fails_at: Some(5), ..Behaviour::default() };
    let world = World::new(behaviour, |_| {});
    let stream = world.complete(&json!({"prompt": "a", "max_tokens": 50, "stream": true}));
    assert!(stream.body.contains("\"error\":{") && !stream.body.contains("secret"), "{stream:?}");
    world.complete(&json!({"prompt": "a"})).check_error(500);
    assert_eq!(world.get("/health", "").status, 503);
    assert_eq!(world.get("/ready", "").status, 503);
    assert_eq!(world.get("/metrics", "").status, 200);
    world.handle.stop(LONG);
}

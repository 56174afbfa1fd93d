//! `bench serve`: load on a server over HTTP, and what its clients see.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Arg, ArgMatches, Command, value_parser};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::client::{Client, Measured};
use super::statistics::{mean, percentile, sorted};
use super::traffic::{Traffic, with_traffic};
use super::{Random, count, count_of, progress, with_common, write_result};

/// Parts of a second that latencies are shown in.
const MILLISECONDS: f64 = 1000.0;

pub(super) fn command() -> Command {
    let command = Command::new("serve").about("Load on a server over HTTP");
    with_common(with_traffic(command))
        .arg(
            Arg::new("base-url")
                .long("base-url")
                .value_name("URL")
                .default_value("http://127.0.0.1:8000")
                .help("where the server is, without /v1"),
        )
        .arg(Arg::new("model").long("model").value_name("NAME").help("default: the first served"))
        .arg(
            Arg::new("api-key")
                .long("api-key")
                .value_name("KEY")
                .env("PAGEDLLM_API_KEY")
                .hide_env_values(true)
                .help("key to show"),
        )
        .arg(count("max-concurrency", "1000000", "most requests in flight"))
        .arg(count("num-warmups", "1", "requests of the same kind before those that count"))
        .arg(
            Arg::new("request-rate")
                .long("request-rate")
                .value_name("F")
                .default_value("inf")
                .help("requests a second, arriving at random (Poisson); inf: all at once")
                .value_parser(value_parser!(f64)),
        )
}

pub(super) fn main(matches: &ArgMatches) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(matches))
}

async fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let url = matches.get_one::<String>("base-url").context("a URL is required")?;
    let client = Client::new(url, matches.get_one("api-key").cloned())?;
    let model = match matches.get_one::<String>("model") {
        Some(model) => model.clone(),
        None => {
            let models = client.get("/v1/models").await?;
            models["data"][0]["id"].as_str().context("the server lists no model")?.to_owned()
        }
    };
    let rate = matches.get_one::<f64>("request-rate").copied().unwrap_or(f64::INFINITY);
    if rate.is_nan() || rate <= 0.0 {
        bail!("--request-rate: {rate} is not above 0");
    }
    let num_prompts = count_of(matches, "num-prompts");
    let mut random = Random(matches.get_one("random-seed").copied().unwrap_or(0));
    let traffic = Traffic::new(matches, &model, &mut random)?;
    let places = count_of(matches, "max-concurrency").min(Semaphore::MAX_PERMITS);
    let mut bodies =
        |count: usize| -> Vec<Value> { (0..count).map(|_| traffic.body(&mut random)).collect() };
    let warm_ups = bodies(count_of(matches, "num-warmups"));
    let bodies = bodies(num_prompts);
    let (_, warm_ups) = send_all(&client, warm_ups, places, f64::INFINITY, &mut random).await;
    for warm_up in warm_ups {
        warm_up.context("the first request failed")?;
    }

    let (start, results) = send_all(&client, bodies, places, rate, &mut random).await;
    let time = start.elapsed();
    progress("");
    let failures = results.iter().filter(|result| result.is_err()).count();
    if let Some(Err(error)) = results.iter().find(|result| result.is_err()) {
        eprintln!("{failures} requests failed, the first with: {error:#}");
    }
    let measured: Vec<Measured> = results.into_iter().flatten().collect();
    if measured.is_empty() {
        bail!("no request succeeded");
    }
    write_result(matches, &report(&measured, failures, time, &model))
}

type Results = Vec<anyhow::Result<Measured>>;

async fn send_all(
    client: &Client,
    bodies: Vec<Value>,
    places: usize,
    rate: f64,
    random: &mut Random,
) -> (Instant, Results) {
    let places = Arc::new(Semaphore::new(places));
    let done = Arc::new(AtomicUsize::new(0));
    let total = bodies.len();
    let mut tasks = JoinSet::new();
    let start = Instant::now();
    let mut due = start;
    for body in bodies {
        if rate.is_finite() {
            due += Duration::from_secs_f64(-random.unit().ln() / rate);
            tokio::time::sleep_until(due.into()).await;
        }
        let (client, places, done) = (client.clone(), Arc::clone(&places), Arc::clone(&done));
        tasks.spawn(async move {
            let _place = places.acquire().await;
            let result = client.complete("/v1/completions", &body).await;
            progress(&format!("{} of {total}", done.fetch_add(1, Ordering::Relaxed) + 1));
            result
        });
    }
    let results = tasks.join_all().await;
    (start, results)
}

/// Prints what `vllm bench serve` prints, and returns it under its names.
fn report(measured: &[Measured], failures: usize, time: Duration, model: &str) -> Value {
    let seconds = time.as_secs_f64();
    let tokens_in: usize = measured.iter().map(|one| one.tokens_in).sum();
    let tokens_out: usize = measured.iter().map(|one| one.tokens_out).sum();
    let in_ms = |time: Duration| time.as_secs_f64() * MILLISECONDS;
    let first: Vec<f64> = measured.iter().filter_map(|one| one.first.map(in_ms)).collect();
    let gaps: Vec<f64> = measured.iter().flat_map(|one| &one.gaps).map(|gap| in_ms(*gap)).collect();
    let per_token: Vec<f64> = measured
        .iter()
        .filter(|one| one.tokens_out > 1)
        .filter_map(|one| {
            let after = in_ms(one.whole.saturating_sub(one.first?));
            Some(after / (one.tokens_out - 1) as f64)
        })
        .collect();
    let whole: Vec<f64> = measured.iter().map(|one| in_ms(one.whole)).collect();
    println!("successful requests        {}", measured.len());
    println!("failed requests            {failures}");
    println!("duration                   {seconds:.2} s");
    println!("tokens in, out             {tokens_in}, {tokens_out}");
    println!("request throughput         {:.2} requests/s", measured.len() as f64 / seconds);
    println!("output throughput          {:.1} tokens/s", tokens_out as f64 / seconds);
    println!(
        "total throughput           {:.1} tokens/s",
        (tokens_in + tokens_out) as f64 / seconds
    );
    let mut result = json!({
        "model": model,
        "completed": measured.len(),
        "failed": failures,
        "duration": seconds,
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": measured.len() as f64 / seconds,
        "output_throughput": tokens_out as f64 / seconds,
        "total_token_throughput": (tokens_in + tokens_out) as f64 / seconds,
    });
    for (name, title, samples) in [
        ("ttft", "time to first token", first),
        ("tpot", "time per output token", per_token),
        ("itl", "inter-token latency", gaps),
        ("e2el", "end-to-end latency", whole),
    ] {
        // Answers that come at once have no first token.
        if samples.is_empty() {
            continue;
        }
        let samples = sorted(samples);
        let (p50, p99) = (percentile(&samples, 50.0), percentile(&samples, 99.0));
        println!("{title:<26} mean {:.2}, median {p50:.2}, p99 {p99:.2} ms", mean(&samples));
        result[format!("mean_{name}_ms")] = mean(&samples).into();
        result[format!("median_{name}_ms")] = p50.into();
        result[format!("p99_{name}_ms")] = p99.into();
    }
    result
}

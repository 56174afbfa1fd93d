//! `/metrics` in Prometheus' text format: the engine's counters under vLLM's names, our own as
//! `pagedllm:*` in seconds and bytes, and those of HTTP.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pagedllm::{EngineStats, GpuStats, Histogram, ModelDescription};
use pagedllm_openai::Service;

/// Seconds of an HTTP exchange up to the head of its answer.
const HTTP_BOUNDS: &[f64] =
    &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];

/// Counters of HTTP, by handler, method and status. Handlers are route names, so their number is
/// bounded.
#[derive(Debug, Default)]
pub(crate) struct HttpStats(Mutex<BTreeMap<HttpKey, Histogram>>);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct HttpKey {
    handler: &'static str,
    method: &'static str,
    status: u16,
}

impl HttpStats {
    pub(crate) fn record(
        &self,
        handler: &'static str,
        method: &'static str,
        status: u16,
        time: Duration,
    ) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts
            .entry(HttpKey { handler, method, status })
            .or_insert_with(|| Histogram::new(HTTP_BOUNDS))
            .record(time.as_secs_f64());
    }
}

/// Writes the text format. Each name has one `HELP` and `TYPE`, then its samples.
struct Page {
    text: String,
    labels: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, more_labels: &str, value: impl std::fmt::Display) {
        let comma = if self.labels.is_empty() || more_labels.is_empty() { "" } else { "," };
        let _ = writeln!(self.text, "{name}{{{}{comma}{more_labels}}} {value}", self.labels);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.head(name, "gauge", help);
        self.sample(name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        self.sample(name, "", value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        self.histogram_samples(name, "", histogram);
    }

    fn histogram_samples(&mut self, name: &str, more_labels: &str, histogram: &Histogram) {
        let comma = if more_labels.is_empty() { "" } else { "," };
        let bucket = format!("{name}_bucket");
        let mut total = 0;
        let bounds = histogram.bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&histogram.counts) {
            total += count;
            self.sample(&bucket, &format!("{more_labels}{comma}le=\"{bound}\""), total);
        }
        self.sample(&format!("{name}_sum"), more_labels, histogram.sum);
        self.sample(&format!("{name}_count"), more_labels, total);
    }
}

/// The page of an engine that is not behind HTTP: everything but the counters of HTTP.
#[must_use]
pub fn engine_metrics(service: &Service) -> String {
    render(service, &HttpStats::default(), false)
}

/// The whole page.
pub(crate) fn render(service: &Service, http: &HttpStats, with_legacy_names: bool) -> String {
    let name = service.model_names().first().map_or("", String::as_str);
    let llm = service.llm();
    let mut page = page(name, llm.description(), &service.stats(), http, with_legacy_names);
    if let Some(gpu) = llm.gpu_stats() {
        device(&mut page, &gpu);
    }
    page.text
}

fn page(
    model_name: &str,
    model: &ModelDescription,
    stats: &EngineStats,
    http: &HttpStats,
    with_legacy_names: bool,
) -> Page {
    let labels = format!("model_name=\"{}\",engine=\"0\"", escape(model_name));
    let mut page = Page { text: String::with_capacity(32 << 10), labels };
    gauges(&mut page, model, stats);
    counters(&mut page, stats);
    latencies(&mut page, stats);
    shapes(&mut page, stats);
    own(&mut page, model, stats);
    if with_legacy_names {
        legacy(&mut page, stats);
    }
    page.labels.clear();
    http_counts(&mut page, http);
    process(&mut page);
    page
}

/// What the GPU says about itself, as far as it says anything.
fn device(page: &mut Page, gpu: &GpuStats) {
    page.labels = format!("gpu=\"{}\",name=\"{}\"", gpu.ordinal, escape(&gpu.name));
    let bytes = |count: Option<u64>| count.map(|count| count as f64);
    for (name, help, value) in [
        (
            "pagedllm:gpu_memory_used_bytes",
            "Memory of the GPU that is in use, by anybody.",
            bytes(gpu.memory_used_bytes),
        ),
        ("pagedllm:gpu_memory_total_bytes", "Memory of the GPU.", bytes(gpu.memory_total_bytes)),
        (
            "pagedllm:gpu_utilization_ratio",
            "Share of the last moments in which the GPU ran a kernel, 0 to 1.",
            gpu.utilization,
        ),
        ("pagedllm:gpu_temperature_celsius", "Temperature of the GPU.", gpu.temperature_celsius),
        ("pagedllm:gpu_power_watts", "Power that the GPU draws.", gpu.power_watts),
    ] {
        if let Some(value) = value {
            page.gauge(name, help, value);
        }
    }
}

fn gauges(page: &mut Page, model: &ModelDescription, stats: &EngineStats) {
    page.gauge("vllm:num_requests_running", "Sequences that run.", stats.num_running);
    page.gauge("vllm:num_requests_waiting", "Sequences that wait.", stats.num_waiting);
    let name = "vllm:num_requests_waiting_by_reason";
    page.head(name, "gauge", "Sequences that wait, by reason.");
    page.sample(name, "reason=\"capacity\"", stats.num_waiting);
    page.sample(name, "reason=\"deferred\"", 0);
    page.gauge(
        "vllm:kv_cache_usage_perc",
        "Share of the KV blocks that sequences hold, 0 to 1.",
        stats.kv_usage(),
    );
    let name = "vllm:cache_config_info";
    page.head(name, "gauge", "Sizes of the KV cache.");
    let sizes =
        format!("block_size=\"{}\",num_gpu_blocks=\"{}\"", model.block_size, model.num_blocks);
    page.sample(name, &sizes, 1);
}

fn counters(page: &mut Page, stats: &EngineStats) {
    page.counter(
        "vllm:prefix_cache_queries_total",
        "Prompt tokens looked up in the prefix cache.",
        stats.prefix_queries_tokens_total,
    );
    page.counter(
        "vllm:prefix_cache_hits_total",
        "Prompt tokens found in the prefix cache.",
        stats.prefix_hits_tokens_total,
    );
    page.counter(
        "vllm:num_preemptions_total",
        "Sequences that lost their blocks.",
        stats.preemptions_total,
    );
    page.counter("vllm:prompt_tokens_total", "Prompt tokens.", stats.prompt_tokens_total);
    page.counter(
        "vllm:prompt_tokens_cached_total",
        "Prompt tokens that were not computed again.",
        stats.prompt_tokens_cached_total,
    );
    page.counter(
        "vllm:generation_tokens_total",
        "Tokens generated.",
        stats.generation_tokens_total,
    );
    let name = "vllm:request_success_total";
    page.head(name, "counter", "Choices that ended, by reason.");
    let counts = &stats.finished_total;
    for (reason, count) in [
        ("stop", counts.stop),
        ("length", counts.length),
        ("abort", counts.abort),
        ("error", counts.error),
    ] {
        page.sample(name, &format!("finished_reason=\"{reason}\""), count);
    }
    let name = "vllm:admission_rejections_total";
    page.head(name, "counter", "Requests that were not queued, by reason.");
    page.sample(name, "reason=\"queue_full\"", stats.rejected_queue_full_total);
    page.sample(name, "reason=\"refused\"", stats.rejected_refused_total);
    page.counter(
        "vllm:corrupted_requests_total",
        "Requests whose logits were not numbers or allowed no token.",
        stats.corrupted_requests_total,
    );
}

fn latencies(page: &mut Page, stats: &EngineStats) {
    let table: [(&str, &str, &Histogram); 8] = [
        (
            "vllm:time_to_first_token_seconds",
            "Submit to first token.",
            &stats.time_to_first_token_seconds,
        ),
        (
            "vllm:inter_token_latency_seconds",
            "Between two tokens of a choice.",
            &stats.inter_token_latency_seconds,
        ),
        (
            "vllm:request_time_per_output_token_seconds",
            "Mean time of a token after the first, a sample a choice.",
            &stats.time_per_output_token_seconds,
        ),
        ("vllm:e2e_request_latency_seconds", "Submit to end.", &stats.e2e_latency_seconds),
        ("vllm:request_queue_time_seconds", "Submit to first step.", &stats.queue_time_seconds),
        (
            "vllm:request_inference_time_seconds",
            "First step to end.",
            &stats.inference_time_seconds,
        ),
        (
            "vllm:request_prefill_time_seconds",
            "First step to first token.",
            &stats.prefill_time_seconds,
        ),
        ("vllm:request_decode_time_seconds", "First token to end.", &stats.decode_time_seconds),
    ];
    for (name, help, histogram) in table {
        page.histogram(name, help, histogram);
    }
}

fn shapes(page: &mut Page, stats: &EngineStats) {
    let table: [(&str, &str, &Histogram); 8] = [
        ("vllm:request_prompt_tokens", "Prompt tokens.", &stats.request_prompt_tokens),
        (
            "vllm:request_generation_tokens",
            "Generated tokens of a choice.",
            &stats.request_generation_tokens,
        ),
        (
            "vllm:request_max_num_generation_tokens",
            "Generated tokens of the longest choice.",
            &stats.request_max_num_generation_tokens,
        ),
        ("vllm:request_params_n", "n of a request.", &stats.request_params_n),
        (
            "vllm:request_params_max_tokens",
            "max_tokens of a request.",
            &stats.request_params_max_tokens,
        ),
        (
            "vllm:request_num_preemptions",
            "Preemptions of a request.",
            &stats.request_num_preemptions,
        ),
        (
            "vllm:request_prefill_kv_computed_tokens",
            "Prompt tokens that had to be computed.",
            &stats.request_prefill_kv_computed_tokens,
        ),
        ("vllm:iteration_tokens_total", "Tokens of a step.", &stats.iteration_tokens),
    ];
    for (name, help, histogram) in table {
        page.histogram(name, help, histogram);
    }
}

fn own(page: &mut Page, model: &ModelDescription, stats: &EngineStats) {
    page.gauge("pagedllm:kv_blocks", "KV blocks of the pool.", stats.num_blocks);
    page.gauge("pagedllm:kv_blocks_used", "KV blocks that sequences hold.", stats.num_blocks_used);
    page.gauge(
        "pagedllm:kv_blocks_cached",
        "Free KV blocks that still hold a prefix.",
        stats.num_blocks_cached,
    );
    page.gauge("pagedllm:kv_block_bytes", "Bytes of a KV block.", model.block_bytes);
    page.gauge(
        "pagedllm:kv_waste_ratio",
        "Share of held slots without a token, over all steps, 0 to 1.",
        stats.kv_waste(),
    );
    page.counter("pagedllm:steps_total", "Steps run.", stats.steps_total);
    page.histogram(
        "pagedllm:host_step_seconds",
        "Time that the engine itself spends on a step.",
        &stats.host_step_seconds,
    );
    page.gauge("pagedllm:weight_bytes", "Bytes of the weights as stored.", model.weight_bytes);
}

/// Names that vLLM has given up and that dashboards still ask for.
fn legacy(page: &mut Page, stats: &EngineStats) {
    page.gauge("vllm:gpu_cache_usage_perc", "Renamed kv_cache_usage_perc.", stats.kv_usage());
    page.counter(
        "vllm:gpu_prefix_cache_queries_total",
        "Renamed prefix_cache_queries_total.",
        stats.prefix_queries_tokens_total,
    );
    page.counter(
        "vllm:gpu_prefix_cache_hits_total",
        "Renamed prefix_cache_hits_total.",
        stats.prefix_hits_tokens_total,
    );
    page.histogram(
        "vllm:time_per_output_token_seconds",
        "Renamed inter_token_latency_seconds.",
        &stats.inter_token_latency_seconds,
    );
    page.gauge("vllm:num_requests_swapped", "Always 0: nothing is swapped.", 0);
    page.gauge("vllm:cpu_cache_usage_perc", "Always 0: nothing is swapped.", 0);
}

fn http_counts(page: &mut Page, http: &HttpStats) {
    let counts = http.0.lock().unwrap_or_else(PoisonError::into_inner);
    page.head("http_requests_total", "counter", "Requests by handler, method and status.");
    for (key, histogram) in &*counts {
        page.sample("http_requests_total", &http_labels(key), histogram.count());
    }
    let name = "http_request_duration_seconds";
    page.head(name, "histogram", "Time up to the head of the answer.");
    for (key, histogram) in &*counts {
        page.histogram_samples(name, &http_labels(key), histogram);
    }
}

fn http_labels(key: &HttpKey) -> String {
    let HttpKey { handler, method, status } = key;
    format!("handler=\"{handler}\",method=\"{method}\",status=\"{status}\"")
}

/// What the system says about this process, where it says anything.
fn process(page: &mut Page) {
    let resident = std::fs::read_to_string("/proc/self/status").ok().and_then(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim();
        line.strip_suffix(" kB")?.trim().parse::<u64>().ok()
    });
    if let Some(kib) = resident {
        page.gauge("process_resident_memory_bytes", "Resident memory.", kib * 1024);
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        page.gauge("process_open_fds", "Open file descriptors.", files.count());
    }
}

/// A label's value as the format wants it.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_are_cumulative_and_end_with_their_count() {
        let mut histogram = Histogram::new(&[0.5, 1.0]);
        for value in [0.1, 0.5, 0.7, 9.0] {
            histogram.record(value);
        }
        let mut page = Page { text: String::new(), labels: "a=\"b\"".into() };
        page.histogram("h", "Help.", &histogram);
        let expected = "# HELP h Help.\n# TYPE h histogram\n\
            h_bucket{a=\"b\",le=\"0.5\"} 2\nh_bucket{a=\"b\",le=\"1\"} 3\n\
            h_bucket{a=\"b\",le=\"+Inf\"} 4\nh_sum{a=\"b\"} 10.3\nh_count{a=\"b\"} 4\n";
        assert_eq!(page.text, expected);
    }

    #[test]
    fn label_values_can_not_break_the_format() {
        assert_eq!(escape("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }

    #[test]
    fn every_name_is_announced_once_and_every_line_is_a_sample() {
        let mut stats = EngineStats::new(10, 16, 128);
        stats.num_running = 3;
        let http = HttpStats::default();
        http.record("health", "GET", 200, Duration::from_millis(1));
        let model = ModelDescription::unnamed(Vec::new());
        let mut page = page("m", &model, &stats, &http, true);
        let name = "G \"1\"".to_owned();
        let gpu = GpuStats { name, memory_used_bytes: Some(7), ..GpuStats::default() };
        device(&mut page, &gpu);
        let page = page.text;
        let used = "pagedllm:gpu_memory_used_bytes{gpu=\"0\",name=\"G \\\"1\\\"\"} 7\n";
        assert!(page.contains(used), "{page}");
        assert!(!page.contains("gpu_power_watts"), "what is not told is not shown");
        let mut announced = std::collections::HashSet::new();
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                assert!(announced.insert(rest.split(' ').next().expect("a name")), "{line}");
            } else if !line.starts_with('#') {
                assert!(
                    !line.contains("{,") && !line.contains(",}") && !line.contains(",,"),
                    "{line}"
                );
                let (name, rest) = line.split_once('{').expect(line);
                let base = ["_bucket", "_sum", "_count"]
                    .iter()
                    .find_map(|end| name.strip_suffix(end))
                    .filter(|base| announced.contains(base))
                    .unwrap_or(name);
                assert!(announced.contains(base), "{line}");
                let (_, value) = rest.rsplit_once("} ").expect(line);
                assert!(value.parse::<f64>().is_ok(), "{line}");
            }
        }
        assert!(page.contains("vllm:num_requests_running{model_name=\"m\",engine=\"0\"} 3\n"));
    }
}

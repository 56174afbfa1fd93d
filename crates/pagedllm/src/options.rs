//! Options of an engine, and the one table from which command line, environment, configuration
//! file and the C library's overlay all read them.

use std::path::PathBuf;

pub use pagedllm_executor::{Device, KvCacheDType, ModelDType};

/// Everything that can be chosen when a model is opened.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// A GGUF file, or a directory with `config.json`.
    pub model: PathBuf,
    /// A `tokenizer.json`, or a directory that holds one; wins over what the model brings.
    pub tokenizer: Option<PathBuf>,
    /// Jinja file; wins over the model's own template.
    pub chat_template: Option<PathBuf>,
    /// Requests give token ids and get token ids; no tokenizer is opened.
    pub skip_tokenizer_init: bool,
    /// Special tokens inside message content are encoded as plain text.
    pub isolate_special_tokens: bool,
    /// Where the weights come from.
    pub load_format: LoadFormat,
    /// Where the model runs.
    pub device: Device,
    /// Precision of activations.
    pub dtype: ModelDType,
    /// Element type of the KV cache.
    pub kv_cache_dtype: KvCacheDType,
    /// Format that the weights must have; `None` takes what the files say.
    pub quantization: Option<String>,
    /// Longest sequence; `None` takes the model's.
    pub max_model_len: Option<usize>,
    /// Most sequences in a step.
    pub max_num_seqs: usize,
    /// Most tokens in a step.
    pub max_num_batched_tokens: usize,
    /// Token slots in a KV block.
    pub block_size: usize,
    /// Share of the device's memory that may be used.
    pub gpu_memory_utilization: f32,
    /// Bytes of the KV cache; `None` sizes it from free memory.
    pub kv_cache_memory_bytes: Option<u64>,
    /// Whether full blocks are found again by requests with the same prefix.
    pub enable_prefix_caching: bool,
    /// Order of waiting requests.
    pub scheduling_policy: SchedulingPolicy,
    /// Most requests that may wait; one more is refused.
    pub max_num_queued_reqs: usize,
    /// Longest pause, in milliseconds, that a prefill may add between two tokens of a running
    /// sequence; 0 sets no bound.
    pub max_decode_stall_ms: u32,
    /// No CUDA graphs.
    pub enforce_eager: bool,
    /// CPU threads that compute; `None` takes the physical cores.
    pub threads: Option<usize>,
    /// Ranks that share the model.
    pub tensor_parallel_size: usize,
    /// Seed of requests that bring none; `None` draws a fresh one for each.
    pub seed: Option<u64>,
}

/// Where the weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadFormat {
    /// The model's files.
    Auto,
    /// Nowhere: they are made up from the configuration alone, the same in every run. To measure
    /// shapes whose files are not at hand.
    Dummy,
}

/// Order of waiting requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulingPolicy {
    /// First come, first served.
    Fcfs,
    /// Lower `priority` first, then first come.
    Priority,
}

impl Options {
    /// The defaults for a model.
    #[must_use]
    pub fn new(model: impl Into<PathBuf>) -> Self {
        Self {
            model: model.into(),
            tokenizer: None,
            chat_template: None,
            skip_tokenizer_init: false,
            isolate_special_tokens: false,
            load_format: LoadFormat::Auto,
            device: Device::Auto,
            dtype: ModelDType::Auto,
            kv_cache_dtype: KvCacheDType::Auto,
            quantization: None,
            max_model_len: None,
            max_num_seqs: 256,
            max_num_batched_tokens: 1024,
            block_size: 16,
            gpu_memory_utilization: 0.92,
            kv_cache_memory_bytes: None,
            enable_prefix_caching: true,
            scheduling_policy: SchedulingPolicy::Fcfs,
            max_num_queued_reqs: 4096,
            max_decode_stall_ms: 100,
            enforce_eager: false,
            threads: None,
            tensor_parallel_size: 1,
            seed: None,
        }
    }
}

/// One option: how it is written and what it does. `T` is what it changes.
pub struct OptionSpec<T> {
    /// Long name, as after `--`.
    pub name: &'static str,
    /// Name of the value in help, or empty for a switch (`--name`, `--no-name`).
    pub value: &'static str,
    /// One line of help, with the default where it needs words.
    pub help: &'static str,
    /// Default as text, for help; empty where there is none.
    pub default: &'static str,
    /// Reads the value (`true` or `false` for a switch) into the target.
    pub apply: fn(&mut T, &str) -> Result<Applied, String>,
}

/// What became of an option that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It has its effect.
    Set,
    /// It is accepted for compatibility and means nothing here; the text says why, once.
    Ignored(String),
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.trim().parse().map_err(|_| format!("'{text}' is not a number in range"))
}

/// A count with an optional suffix: `k`, `m`, `g` are powers of 1,000; `K`, `M`, `G` of 1,024.
///
/// # Errors
/// Where the text is no such number.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (digits, factor) = match text.char_indices().last() {
        Some((at, 'k')) => (&text[..at], 1000),
        Some((at, 'm')) => (&text[..at], 1000 * 1000),
        Some((at, 'g')) => (&text[..at], 1000 * 1000 * 1000),
        Some((at, 'K')) => (&text[..at], 1 << 10),
        Some((at, 'M')) => (&text[..at], 1 << 20),
        Some((at, 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    if let Ok(whole) = digits.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(|| format!("'{text}' is too large"));
    }
    match digits.parse::<f64>() {
        Ok(value) if factor > 1 && value >= 0.0 && value * (factor as f64) < 1e18 => {
            Ok((value * factor as f64) as u64)
        }
        _ => Err(format!("'{text}' is not a count such as 4096, 4k or 4K")),
    }
}

fn count(text: &str) -> Result<usize, String> {
    match parse_count(text)? {
        0 => Err("must be at least 1".into()),
        value => usize::try_from(value).map_err(|_| format!("'{text}' is too large")),
    }
}

/// Reads a switch.
///
/// # Errors
/// Where the text is neither `true` nor `false`.
pub fn parse_switch(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(format!("'{text}' is neither true nor false")),
    }
}

fn one_of<V: Copy>(text: &str, choices: &[(&str, V)]) -> Result<V, String> {
    choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, v)| *v).ok_or_else(
        || {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            format!("'{text}' is not one of {}", names.join(", "))
        },
    )
}

macro_rules! option {
    ($name:literal, $value:literal, $default:literal, $help:literal, $apply:expr) => {
        OptionSpec {
            name: $name,
            value: $value,
            help: $help,
            default: $default,
            apply: |options, text| {
                let apply: fn(&mut Options, &str) -> Result<(), String> = $apply;
                apply(options, text).map(|()| Applied::Set)
            },
        }
    };
}

macro_rules! without_effect {
    ($name:literal, $value:literal, $help:literal, $harmless:expr, $why:literal) => {
        OptionSpec {
            name: $name,
            value: $value,
            help: $help,
            default: "",
            apply: |_, text| {
                let harmless: fn(&str) -> bool = $harmless;
                Ok(if harmless(text) { Applied::Set } else { Applied::Ignored($why.into()) })
            },
        }
    };
}

/// The table of engine options.
pub const OPTIONS: &[OptionSpec<Options>] = &[
    option!("model", "PATH", "", "GGUF file, or directory with config.json", |o, t| {
        o.model = t.into();
        Ok(())
    }),
    option!("tokenizer", "PATH", "", "tokenizer.json, or a directory that holds one", |o, t| {
        o.tokenizer = Some(t.into());
        Ok(())
    }),
    option!("chat-template", "FILE", "", "Jinja file in place of the model's template", |o, t| {
        o.chat_template = Some(t.into());
        Ok(())
    }),
    option!("skip-tokenizer-init", "", "false", "token ids in and out, no text", |o, t| {
        o.skip_tokenizer_init = parse_switch(t)?;
        Ok(())
    }),
    option!(
        "isolate-special-tokens",
        "",
        "false",
        "encode special tokens inside message content as plain text",
        |o, t| {
            o.isolate_special_tokens = parse_switch(t)?;
            Ok(())
        }
    ),
    option!(
        "load-format",
        "auto|dummy",
        "auto",
        "dummy makes up the weights from config.json alone, to measure shapes",
        |o, t| {
            o.load_format = one_of(t, &[("auto", LoadFormat::Auto), ("dummy", LoadFormat::Dummy)])?;
            Ok(())
        }
    ),
    option!("device", "auto|cpu|cuda", "auto", "where the model runs", |o, t| {
        let choices = [("auto", Device::Auto), ("cpu", Device::Cpu), ("cuda", Device::Cuda)];
        o.device = one_of(t, &choices)?;
        Ok(())
    }),
    option!(
        "dtype",
        "auto|float16|bfloat16|float32",
        "auto",
        "precision of activations; float32 dequantizes weights exactly",
        |o, t| {
            let choices = [
                ("auto", ModelDType::Auto),
                ("half", ModelDType::Float16),
                ("float16", ModelDType::Float16),
                ("bfloat16", ModelDType::BFloat16),
                ("float", ModelDType::Float32),
                ("float32", ModelDType::Float32),
            ];
            o.dtype = one_of(t, &choices)?;
            Ok(())
        }
    ),
    option!(
        "kv-cache-dtype",
        "auto|float16|bfloat16|float32|fp8",
        "auto",
        "element type of the KV cache",
        |o, t| {
            let choices = [
                ("auto", KvCacheDType::Auto),
                ("float16", KvCacheDType::Float16),
                ("bfloat16", KvCacheDType::BFloat16),
                ("float32", KvCacheDType::Float32),
                ("fp8", KvCacheDType::Fp8),
                ("fp8_e4m3", KvCacheDType::Fp8),
            ];
            o.kv_cache_dtype = one_of(t, &choices)?;
            Ok(())
        }
    ),
    option!(
        "quantization",
        "awq|gptq|gguf|None",
        "None",
        "format that the weights must have; None takes what the files say",
        |o, t| {
            let choices = [
                ("none", None),
                ("awq", Some("awq")),
                ("gptq", Some("gptq")),
                ("gguf", Some("gguf")),
            ];
            o.quantization = one_of(t, &choices)?.map(str::to_owned);
            Ok(())
        }
    ),
    option!(
        "max-model-len",
        "N",
        "",
        "longest sequence, prompt and output (k, K suffixes); default: the model's",
        |o, t| {
            o.max_model_len = match t.trim() {
                "-1" | "auto" => None,
                text => Some(count(text)?),
            };
            Ok(())
        }
    ),
    option!("max-num-seqs", "N", "256", "most sequences in a step", |o, t| {
        o.max_num_seqs = count(t)?;
        Ok(())
    }),
    option!("max-num-batched-tokens", "N", "1024", "most tokens in a step", |o, t| {
        o.max_num_batched_tokens = count(t)?;
        Ok(())
    }),
    option!("block-size", "8|16|32|64", "16", "token slots in a KV block", |o, t| {
        o.block_size = one_of(t, &[("8", 8), ("16", 16), ("32", 32), ("64", 64)])?;
        Ok(())
    }),
    option!(
        "gpu-memory-utilization",
        "F",
        "0.92",
        "share of the device's memory that may be used, above 0 and up to 1",
        |o, t| {
            let share: f32 = number(t)?;
            if !(share > 0.0 && share <= 1.0) {
                return Err(format!("{share} is not above 0 and at most 1"));
            }
            o.gpu_memory_utilization = share;
            Ok(())
        }
    ),
    option!(
        "kv-cache-memory-bytes",
        "BYTES",
        "",
        "bytes of the KV cache (k, m, g, K, M, G suffixes); default: from free memory",
        |o, t| {
            o.kv_cache_memory_bytes = Some(parse_count(t)?);
            Ok(())
        }
    ),
    option!("enable-prefix-caching", "", "true", "reuse the KV of shared prefixes", |o, t| {
        o.enable_prefix_caching = parse_switch(t)?;
        Ok(())
    }),
    option!(
        "scheduling-policy",
        "fcfs|priority",
        "fcfs",
        "order of waiting requests; priority runs lower values first, fcfs refuses them",
        |o, t| {
            let choices =
                [("fcfs", SchedulingPolicy::Fcfs), ("priority", SchedulingPolicy::Priority)];
            o.scheduling_policy = one_of(t, &choices)?;
            Ok(())
        }
    ),
    option!(
        "max-num-queued-reqs",
        "N",
        "4096",
        "most requests that wait; one more gets 429 and Retry-After",
        |o, t| {
            o.max_num_queued_reqs = count(t)?;
            Ok(())
        }
    ),
    option!(
        "max-decode-stall-ms",
        "MS",
        "100",
        "longest pause that a prefill may add between two tokens of a stream; 0: no bound",
        |o, t| {
            o.max_decode_stall_ms = number(t)?;
            Ok(())
        }
    ),
    option!("enforce-eager", "", "false", "no CUDA graphs", |o, t| {
        o.enforce_eager = parse_switch(t)?;
        Ok(())
    }),
    option!("threads", "N", "", "CPU threads that compute; default: physical cores", |o, t| {
        o.threads = Some(count(t)?);
        Ok(())
    }),
    option!("tensor-parallel-size", "N", "1", "GPUs that share the model", |o, t| {
        o.tensor_parallel_size = count(t)?;
        Ok(())
    }),
    option!("seed", "N", "", "seed of requests that bring none; default: fresh ones", |o, t| {
        o.seed = Some(number(t)?);
        Ok(())
    }),
    without_effect!(
        "enable-chunked-prefill",
        "",
        "accepted: prefill is always chunked",
        |t| parse_switch(t) == Ok(true),
        "prefill is always chunked to max-num-batched-tokens"
    ),
    without_effect!(
        "scheduler-delay-factor",
        "F",
        "accepted: chunked prefill and max-decode-stall-ms took its place",
        |t| t.trim().parse::<f64>() == Ok(0.0),
        "prefill is chunked and bounded by max-decode-stall-ms instead of delayed"
    ),
    without_effect!(
        "use-v2-block-manager",
        "",
        "accepted: there is one block manager",
        |_| false,
        "there is one block manager"
    ),
    without_effect!(
        "swap-space",
        "GIB",
        "accepted: preempted sequences are recomputed",
        |_| false,
        "preempted sequences are recomputed, nothing is swapped"
    ),
    without_effect!(
        "trust-remote-code",
        "",
        "accepted: no code of a model is ever run",
        |_| false,
        "no code of a model is ever run"
    ),
    without_effect!(
        "disable-log-requests",
        "",
        "accepted: requests are not logged",
        |_| true,
        "requests are not logged"
    ),
];

impl Options {
    /// Sets one option by its long name.
    ///
    /// # Errors
    /// The option is unknown, or its value can't be read.
    pub fn set(&mut self, name: &str, value: &str) -> Result<Applied, crate::Error> {
        let wrong = |message| crate::Error::Option { option: name.to_owned(), message };
        let spec = OPTIONS
            .iter()
            .find(|spec| spec.name == name)
            .ok_or_else(|| wrong("there is no such option".to_owned()))?;
        (spec.apply)(self, value).map_err(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_in_the_table_is_the_default_of_options() {
        for spec in OPTIONS.iter().filter(|spec| !spec.default.is_empty()) {
            let mut options = Options::new("m");
            assert_eq!((spec.apply)(&mut options, spec.default), Ok(Applied::Set), "{}", spec.name);
            assert_eq!(options, Options::new("m"), "{}", spec.name);
        }
    }

    #[test]
    fn counts_take_suffixes_and_refuse_nonsense() {
        assert_eq!(parse_count("4096"), Ok(4096));
        assert_eq!(parse_count("1k"), Ok(1000));
        assert_eq!(parse_count("1K"), Ok(1024));
        assert_eq!(parse_count("1.5G"), Ok(3 << 29));
        for wrong in ["", "k", "-1", "1e3", "99999999999999999999", "1.5", "nan"] {
            assert!(parse_count(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn wrong_values_name_the_option() {
        let mut options = Options::new("m");
        for (name, value) in [
            ("dtype", "int3"),
            ("gpu-memory-utilization", "1.5"),
            ("gpu-memory-utilization", "nan"),
            ("max-num-seqs", "0"),
            ("no-such-flag", "1"),
        ] {
            let error = options.set(name, value).expect_err(name).to_string();
            assert!(error.starts_with(name), "{error}");
        }
        assert_eq!(options, Options::new("m"));
    }

    #[test]
    fn retired_flags_warn_unless_they_change_nothing() {
        let mut options = Options::new("m");
        assert_eq!(options.set("scheduler-delay-factor", "0.0").unwrap(), Applied::Set);
        assert!(matches!(
            options.set("scheduler-delay-factor", "0.5").unwrap(),
            Applied::Ignored(_)
        ));
    }
}

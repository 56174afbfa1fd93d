//! Options of the server, in a table like that of the engine's.

use std::path::PathBuf;
use std::time::Duration;

use pagedllm::{Applied, OptionSpec, parse_count, parse_switch};
use pagedllm_openai::ServiceOptions;

/// Everything that can be chosen about serving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Name or address to listen on.
    pub host: String,
    /// Port to listen on; 0 lets the system choose.
    pub port: u16,
    /// Unix socket to listen on, in place of host and port.
    pub uds: Option<PathBuf>,
    /// Keys that open the guarded routes; none leaves everything open.
    pub api_keys: Vec<String>,
    /// Whether `/metrics` needs no key.
    pub open_metrics: bool,
    /// Whether metrics that vLLM has renamed are also shown under their old names.
    pub legacy_metrics: bool,
    /// Origins of web pages that may read answers; `*` is any.
    pub allowed_origins: Vec<String>,
    /// Prefix of all paths, for a proxy that does not remove it.
    pub root_path: String,
    /// Largest body.
    pub max_request_body_bytes: usize,
    /// Most connections at once; more wait to be accepted.
    pub max_connections: usize,
    /// How long a connection may be without a complete request head.
    pub keep_alive_timeout: Duration,
    /// How long a body may pause.
    pub body_timeout: Duration,
    /// Comments that keep silent streams open; zero sends none.
    pub sse_keep_alive_interval: Duration,
    /// How long running requests may take to end after a stop.
    pub shutdown_timeout: Duration,
    /// Threads that serve HTTP.
    pub http_threads: usize,
    /// Whether a line of throughput is logged while requests run.
    pub log_stats: bool,
    /// How the protocol behaves.
    pub service: ServiceOptions,
}

impl Default for ServerOptions {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            host: "0.0.0.0".into(),
            port: 8000,
            uds: None,
            api_keys: Vec::new(),
            open_metrics: false,
            legacy_metrics: false,
            allowed_origins: Vec::new(),
            root_path: String::new(),
            max_request_body_bytes: 32 << 20,
            max_connections: 8192,
            keep_alive_timeout: Duration::from_secs(90),
            body_timeout: Duration::from_secs(30),
            sse_keep_alive_interval: Duration::ZERO,
            shutdown_timeout: Duration::from_secs(30),
            http_threads: (cores / 4).clamp(1, 8),
            log_stats: true,
            service: ServiceOptions::default(),
        }
    }
}

/// Longest time that an option may name: a year.
const MAX_SECONDS: f64 = 366.0 * 86_400.0;

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.trim().parse().map_err(|_| format!("'{text}' is not a number"))?;
    if !(0.0..=MAX_SECONDS).contains(&seconds) {
        return Err(format!("{text} is not between 0 and {MAX_SECONDS} seconds"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn count(text: &str, least: u64) -> Result<usize, String> {
    let value = parse_count(text)?;
    if value < least {
        return Err(format!("must be at least {least}"));
    }
    usize::try_from(value).map_err(|_| format!("'{text}' is too large"))
}

/// Words of a list, as `a,b`, `a b` or a JSON array. An option that is given twice adds to it.
fn add_words(list: &mut Vec<String>, text: &str) {
    let text = text.trim().trim_start_matches('[').trim_end_matches(']');
    let words = text.split([',', ' ']).map(|word| word.trim().trim_matches(['"', '\'']));
    list.extend(words.filter(|word| !word.is_empty()).map(str::to_owned));
}

macro_rules! option {
    ($name:literal, $value:literal, $default:literal, $help:literal, $apply:expr) => {
        OptionSpec {
            name: $name,
            value: $value,
            help: $help,
            default: $default,
            apply: |options, text| {
                let apply: fn(&mut ServerOptions, &str) -> Result<(), String> = $apply;
                apply(options, text).map(|()| Applied::Set)
            },
        }
    };
}

macro_rules! without_effect {
    ($name:literal, $value:literal, $help:literal, $why:expr) => {
        OptionSpec {
            name: $name,
            value: $value,
            help: $help,
            default: "",
            apply: |_, _| {
                let why: Option<&str> = $why;
                Ok(why.map_or(Applied::Set, |why| Applied::Ignored(why.into())))
            },
        }
    };
}

/// The table of server options.
pub const SERVER_OPTIONS: &[OptionSpec<ServerOptions>] = &[
    option!("host", "HOST", "0.0.0.0", "name or address to listen on", |o, t| {
        o.host = t.trim().to_owned();
        Ok(())
    }),
    option!("port", "PORT", "8000", "port to listen on; 0 takes a free one", |o, t| {
        o.port = t.trim().parse().map_err(|_| format!("'{t}' is not a port"))?;
        Ok(())
    }),
    option!("uds", "PATH", "", "unix socket to listen on, in place of host and port", |o, t| {
        o.uds = Some(t.into());
        Ok(())
    }),
    option!(
        "api-key",
        "KEY",
        "",
        "key that requests must show; repeatable, an empty one is ignored",
        |o, t| {
            if !t.is_empty() {
                o.api_keys.push(t.to_owned());
            }
            Ok(())
        }
    ),
    option!(
        "served-model-name",
        "NAME...",
        "",
        "names that requests may use; default: the model's file or directory name",
        |o, t| {
            add_words(&mut o.service.served_model_names, t);
            Ok(())
        }
    ),
    option!("open-metrics", "", "false", "/metrics needs no key", |o, t| {
        o.open_metrics = parse_switch(t)?;
        Ok(())
    }),
    option!(
        "metrics-compat",
        "none|legacy",
        "none",
        "legacy also shows renamed metrics under their old names",
        |o, t| {
            o.legacy_metrics = match t.trim() {
                "legacy" => true,
                "none" => false,
                _ => return Err(format!("'{t}' is not one of none, legacy")),
            };
            Ok(())
        }
    ),
    option!(
        "allowed-origins",
        "LIST",
        "",
        "origins of web pages that may read answers; '*' is any; default: none",
        |o, t| {
            add_words(&mut o.allowed_origins, t);
            Ok(())
        }
    ),
    option!("root-path", "PATH", "", "prefix that a proxy leaves in paths", |o, t| {
        let path = t.trim().trim_end_matches('/');
        if !path.is_empty() && !path.starts_with('/') {
            return Err(format!("'{t}' does not begin with '/'"));
        }
        o.root_path = path.to_owned();
        Ok(())
    }),
    option!(
        "max-request-body-bytes",
        "BYTES",
        "32M",
        "largest body (k, m, K, M suffixes); a larger one gets 413",
        |o, t| {
            o.max_request_body_bytes = count(t, 1)?;
            Ok(())
        }
    ),
    option!("max-connections", "N", "8192", "most connections at once; more wait", |o, t| {
        o.max_connections = count(t, 1)?.min(tokio::sync::Semaphore::MAX_PERMITS);
        Ok(())
    }),
    option!(
        "timeout-keep-alive",
        "SECONDS",
        "90",
        "how long a connection may be idle, or take for a request's head",
        |o, t| {
            o.keep_alive_timeout = seconds(t)?;
            if o.keep_alive_timeout.is_zero() {
                return Err("must be more than 0".into());
            }
            Ok(())
        }
    ),
    option!("timeout-body", "SECONDS", "30", "how long a body may pause", |o, t| {
        o.body_timeout = seconds(t)?;
        Ok(())
    }),
    option!(
        "sse-keep-alive-interval",
        "SECONDS",
        "0",
        "a comment into streams that are silent so long; 0: never",
        |o, t| {
            o.sse_keep_alive_interval = seconds(t)?;
            Ok(())
        }
    ),
    option!(
        "shutdown-timeout",
        "SECONDS",
        "30",
        "how long running requests may take to end after SIGTERM",
        |o, t| {
            o.shutdown_timeout = seconds(t)?;
            Ok(())
        }
    ),
    option!(
        "http-threads",
        "N",
        "",
        "threads that serve HTTP; default: a quarter of the cores",
        |o, t| {
            o.http_threads = count(t, 1)?.min(256);
            Ok(())
        }
    ),
    option!("disable-log-stats", "", "false", "no line of throughput every ten seconds", |o, t| {
        o.log_stats = !parse_switch(t)?;
        Ok(())
    }),
    option!("strict-params", "", "false", "400 for unknown fields of a body", |o, t| {
        o.service.strict_params = parse_switch(t)?;
        Ok(())
    }),
    option!("max-logprobs", "N", "20", "most alternatives a token, up to 20", |o, t| {
        o.service.max_logprobs = match t.trim().parse() {
            Ok(count @ 0..=20) => count,
            _ => return Err(format!("'{t}' is not between 0 and 20")),
        };
        Ok(())
    }),
    option!("response-role", "ROLE", "assistant", "role of chat answers", |o, t| {
        o.service.response_role = t.to_owned();
        Ok(())
    }),
    option!(
        "return-tokens-as-token-ids",
        "",
        "false",
        "log-probabilities name tokens token_id:N",
        |o, t| {
            o.service.return_tokens_as_token_ids = parse_switch(t)?;
            Ok(())
        }
    ),
    without_effect!(
        "enable-request-id-headers",
        "",
        "accepted: x-request-id is always returned",
        None
    ),
    without_effect!(
        "enable-prompt-tokens-details",
        "",
        "accepted: usage always has the cached tokens",
        None
    ),
    without_effect!(
        "disable-uvicorn-access-log",
        "",
        "accepted: requests are logged at log level debug only",
        None
    ),
    without_effect!("disable-frontend-multiprocessing", "", "accepted: there is one process", None),
    without_effect!(
        "generation-config",
        "auto",
        "accepted: generation_config.json is always read; requests win over it",
        None
    ),
    without_effect!(
        "chat-template-content-format",
        "auto",
        "accepted: found from the template",
        None
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_in_the_table_is_the_default_of_options() {
        for spec in SERVER_OPTIONS.iter().filter(|spec| !spec.default.is_empty()) {
            let mut options = ServerOptions::default();
            assert_eq!((spec.apply)(&mut options, spec.default), Ok(Applied::Set), "{}", spec.name);
            assert_eq!(options, ServerOptions::default(), "{}", spec.name);
        }
    }

    #[test]
    fn lists_come_in_three_forms_and_add_up() {
        let mut list = Vec::new();
        for text in ["a", "b,c", "[\"d\", \"e\"]", "f g", ""] {
            add_words(&mut list, text);
        }
        assert_eq!(list, ["a", "b", "c", "d", "e", "f", "g"]);
    }
}

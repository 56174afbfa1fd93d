//! `pagedllm run`: a chat in the terminal, or one answer where the input is a pipe.

use std::io::{BufRead, IsTerminal, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::bail;
use clap::{Arg, ArgMatches, Command, value_parser};
use pagedllm::{ChatPrompt, FinishReason, Llm, NextEvent, OPTIONS, Prompt, SamplingParams};
use pagedllm::{TextEvent, TextRequest};
use serde_json::{Value, json};

use crate::settings::Config;
use crate::{arguments, logging, open, settings};

/// How often a waiting answer looks for Ctrl-C.
const INTERRUPT_CHECK: Duration = Duration::from_millis(50);
/// Largest prompt from a pipe, in bytes.
const MAX_INPUT: u64 = 16 << 20;
/// Exit status of a program that SIGINT ended.
const INTERRUPTED: i32 = 130;

pub(crate) fn command() -> Command {
    let command = Command::new("run").about("Chat with a model in the terminal").after_help(
        "Ctrl-C ends an answer, /clear the conversation, /bye or Ctrl-D the chat. Input from \
             a pipe is one message; a model without a chat template continues it.",
    );
    let command = arguments::with_model(command);
    let number = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("F").help(help).value_parser(value_parser!(f32))
    };
    command
        .arg(Arg::new("PROMPT").num_args(0..).help("one message to answer instead of a chat"))
        .arg(Arg::new("system").long("system").value_name("TEXT").help("a system message"))
        .arg(number("temperature", "0 is greedy [default: the model's]"))
        .arg(number("top-p", "mass of the most likely tokens that is kept [default: the model's]"))
        .arg(
            Arg::new("max-tokens")
                .long("max-tokens")
                .value_name("N")
                .help("most tokens of an answer [default: what the context leaves]")
                .value_parser(value_parser!(u32).range(1..)),
        )
}

pub(crate) fn main(matches: &ArgMatches) -> anyhow::Result<()> {
    let config = Config::open(matches)?;
    logging::start(matches, &config, "warn")?;
    let known: Vec<&str> = OPTIONS.iter().map(|spec| spec.name).chain(["log-level"]).collect();
    config.check_names(&known)?;
    let options = settings::engine(matches, &config)?;
    let mut chat = Chat {
        llm: open::open(&options)?,
        sampling: Sampling {
            temperature: matches.get_one("temperature").copied(),
            top_p: matches.get_one("top-p").copied(),
            max_tokens: matches.get_one("max-tokens").copied(),
        },
        system: matches.get_one::<String>("system").cloned(),
        messages: Vec::new(),
        interrupt: Interrupt::watch()?,
    };
    chat.clear();
    let words: Vec<&str> =
        matches.get_many::<String>("PROMPT").into_iter().flatten().map(String::as_str).collect();
    if !words.is_empty() {
        return chat.once(&words.join(" "));
    }
    if !std::io::stdin().is_terminal() {
        let mut input = String::new();
        std::io::stdin().take(MAX_INPUT).read_to_string(&mut input)?;
        return chat.once(input.trim_end_matches('\n'));
    }
    chat.converse()
}

struct Sampling {
    temperature: Option<f32>,
    top_p: Option<f32>,
    max_tokens: Option<u32>,
}

struct Chat {
    llm: Llm,
    sampling: Sampling,
    system: Option<String>,
    messages: Vec<Value>,
    interrupt: Interrupt,
}

impl Chat {
    fn clear(&mut self) {
        self.messages.clear();
        if let Some(system) = &self.system {
            self.messages.push(json!({"role": "system", "content": system}));
        }
    }

    fn once(&mut self, text: &str) -> anyhow::Result<()> {
        if text.is_empty() {
            bail!("the input is empty");
        }
        self.turn(text)
    }

    fn converse(&mut self) -> anyhow::Result<()> {
        println!("{}: /clear starts again, /bye ends", self.llm.description().model);
        let mut line = String::new();
        loop {
            print!(">>> ");
            std::io::stdout().flush()?;
            line.clear();
            if std::io::stdin().lock().read_line(&mut line)? == 0 {
                println!();
                return Ok(());
            }
            match line.trim() {
                "" => {}
                "/bye" | "/exit" | "/quit" => return Ok(()),
                "/clear" => self.clear(),
                command if command.starts_with('/') => println!("there are /clear and /bye"),
                text => {
                    // A wrong turn, such as a full context, ends the turn and not the chat.
                    let num_messages = self.messages.len();
                    if let Err(error) = self.turn(text) {
                        self.messages.truncate(num_messages);
                        eprintln!("error: {error:#}");
                    }
                }
            }
        }
    }

    fn turn(&mut self, text: &str) -> anyhow::Result<()> {
        let tokens = if self.llm.description().has_chat_template {
            self.messages.push(json!({"role": "user", "content": text}));
            self.llm.encode_chat(&ChatPrompt {
                messages: self.messages.clone(),
                add_generation_prompt: true,
                ..ChatPrompt::default()
            })?
        } else {
            self.llm.encode(text, true)?
        };
        let answer = self.answer(tokens)?;
        self.messages.push(json!({"role": "assistant", "content": answer}));
        Ok(())
    }

    /// Prints an answer as it comes, and returns it.
    fn answer(&self, tokens: Vec<u32>) -> anyhow::Result<String> {
        let model = self.llm.description();
        let room = model.max_model_len.saturating_sub(tokens.len()).max(1);
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let given = &model.default_sampling;
        let base = SamplingParams::default();
        let sampling = SamplingParams {
            temperature: self
                .sampling
                .temperature
                .or(given.temperature)
                .unwrap_or(base.temperature),
            top_k: given.top_k.unwrap_or(base.top_k),
            top_p: self.sampling.top_p.or(given.top_p).unwrap_or(base.top_p),
            min_p: given.min_p.unwrap_or(base.min_p),
            repetition_penalty: given.repetition_penalty.unwrap_or(base.repetition_penalty),
            max_tokens: self.sampling.max_tokens.unwrap_or(room),
            ..base
        };
        let request = TextRequest { sampling, ..TextRequest::new(Prompt::TokenIds(tokens)) };
        let mut stream = self.llm.generate(request)?;
        let _answering = self.interrupt.answering();
        let (mut answer, mut out) = (String::new(), std::io::stdout().lock());
        loop {
            if self.interrupt.was_hit() {
                stream.cancel();
            }
            match stream.next_timeout(INTERRUPT_CHECK) {
                NextEvent::TimedOut | NextEvent::Event(TextEvent::Prompt { .. }) => {}
                NextEvent::Event(TextEvent::Text { text, .. }) => {
                    out.write_all(text.as_bytes())?;
                    out.flush()?;
                    answer.push_str(&text);
                }
                NextEvent::Event(TextEvent::Finished { reason, fault, .. }) => {
                    writeln!(out)?;
                    if reason == FinishReason::Fault {
                        bail!(fault.unwrap_or_else(|| "the engine failed".into()));
                    }
                }
                NextEvent::End => return Ok(answer),
            }
        }
    }
}

/// Ctrl-C: ends an answer where there is one, and else the program.
struct Interrupt {
    state: Arc<InterruptState>,
}

#[derive(Default)]
struct InterruptState {
    is_answering: AtomicBool,
    was_hit: AtomicBool,
}

/// While it lives, Ctrl-C ends the answer only.
struct Answering<'a>(&'a InterruptState);

impl Interrupt {
    fn watch() -> anyhow::Result<Self> {
        let state = Arc::new(InterruptState::default());
        let for_thread = Arc::clone(&state);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("interrupt".into()).spawn(move || {
            runtime.block_on(async {
                while tokio::signal::ctrl_c().await.is_ok() {
                    if !for_thread.is_answering.load(Ordering::SeqCst) {
                        println!();
                        std::process::exit(INTERRUPTED);
                    }
                    for_thread.was_hit.store(true, Ordering::SeqCst);
                }
            });
        })?;
        Ok(Self { state })
    }

    fn answering(&self) -> Answering<'_> {
        self.state.was_hit.store(false, Ordering::SeqCst);
        self.state.is_answering.store(true, Ordering::SeqCst);
        Answering(&self.state)
    }

    fn was_hit(&self) -> bool {
        self.state.was_hit.load(Ordering::SeqCst)
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.is_answering.store(false, Ordering::SeqCst);
    }
}

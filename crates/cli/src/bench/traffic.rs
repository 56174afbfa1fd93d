//! The requests of `bench serve`: the same list for the same options and seed.

use anyhow::{bail, ensure};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::{Value, json};

use super::{Random, count, count_of};

/// Words of prompts. Most tokenizers have each of them as one token.
const WORDS: [&str; 16] = [
    "time", "water", "house", "people", "world", "place", "night", "light", "hand", "year", "work",
    "city", "name", "road", "book", "life",
];
/// Longest prompt or output that may be asked for, in tokens.
const MAX_LEN: usize = 1 << 24;

/// A length that is drawn for each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lengths {
    least: usize,
    most: usize,
}

impl Lengths {
    /// `N`, spread by a share of it in both directions, or `LEAST..MOST`, which stays as it is.
    fn parse(name: &str, text: &str, spread: f64) -> anyhow::Result<Self> {
        let number = |text: &str| match text.trim().parse::<usize>() {
            Ok(number) if (1..=MAX_LEN).contains(&number) => Ok(number),
            _ => bail!("--{name}: '{text}' is not a length from 1 to {MAX_LEN}"),
        };
        let lengths = if let Some((least, most)) = text.split_once("..") {
            Self { least: number(least)?, most: number(most)? }
        } else {
            let middle = number(text)?;
            let part = (middle as f64 * spread) as usize;
            Self { least: (middle - part).max(1), most: middle + part }
        };
        ensure!(lengths.least <= lengths.most, "--{name}: {text} ends before it begins");
        Ok(lengths)
    }

    fn draw(self, random: &mut Random) -> usize {
        self.least + random.below(self.most - self.least + 1)
    }
}

/// What the requests have in common.
pub(super) struct Traffic {
    model: String,
    input: Lengths,
    output: Lengths,
    /// Tokens, or indices of words, that every prompt begins with.
    prefix: Vec<usize>,
    /// Prompts are token ids below this; `None` sends words.
    vocab_size: Option<usize>,
    ignore_eos: bool,
    is_streamed: bool,
}

/// Adds the options.
pub(super) fn with_traffic(command: Command) -> Command {
    let switch = |name: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("BOOL")
            .num_args(0..=1)
            .require_equals(true)
            .default_value(default)
            .default_missing_value("true")
            .hide_possible_values(true)
            .action(ArgAction::Set)
            .value_parser(value_parser!(bool))
            .help(help)
    };
    let length = |name: &'static str, alias: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .visible_alias(alias)
            .value_name("N|A..B")
            .default_value("128")
            .help(help)
    };
    let input = "tokens of a prompt after the prefix, or a range to draw from";
    command
        .arg(count("num-prompts", "100", "requests"))
        .arg(length("random-input-len", "input-len", input))
        .arg(length("random-output-len", "output-len", "tokens to generate, or a range"))
        .arg(
            Arg::new("random-range-ratio")
                .long("random-range-ratio")
                .value_name("F")
                .default_value("0")
                .help("single lengths vary by this share in both directions, 0 to 1")
                .value_parser(value_parser!(f64)),
        )
        .arg(
            Arg::new("random-prefix-len")
                .long("random-prefix-len")
                .value_name("N")
                .default_value("0")
                .help("tokens that all prompts begin with")
                .value_parser(value_parser!(u32)),
        )
        .arg(switch("token-ids", "false", "prompts are token ids, for servers without a tokenizer"))
        .arg(count("vocab-size", "1000", "with --token-ids: ids are below it"))
        .arg(switch("ignore-eos", "true", "answers run to their full length"))
        .arg(switch("stream", "true", "answers come token by token; false: at once"))
}

fn flag(matches: &ArgMatches, name: &str) -> bool {
    matches.get_one::<bool>(name).copied().unwrap_or(false)
}

impl Traffic {
    /// Reads the options. Draws the prefix.
    pub(super) fn new(
        matches: &ArgMatches,
        model: &str,
        random: &mut Random,
    ) -> anyhow::Result<Self> {
        let ratio = matches.get_one::<f64>("random-range-ratio").copied().unwrap_or(0.0);
        ensure!(
            (0.0..=1.0).contains(&ratio),
            "--random-range-ratio: {ratio} is not between 0 and 1"
        );
        let lengths = |name: &'static str| {
            let text = matches.get_one::<String>(name).map_or("", String::as_str);
            Lengths::parse(name, text, ratio)
        };
        let prefix_len = matches.get_one::<u32>("random-prefix-len").map_or(0, |&len| len as usize);
        let vocab_size = flag(matches, "token-ids").then(|| count_of(matches, "vocab-size"));
        let mut traffic = Self {
            model: model.to_owned(),
            input: lengths("random-input-len")?,
            output: lengths("random-output-len")?,
            prefix: Vec::new(),
            vocab_size,
            ignore_eos: flag(matches, "ignore-eos"),
            is_streamed: flag(matches, "stream"),
        };
        traffic.prefix = traffic.draw(prefix_len, random);
        Ok(traffic)
    }

    fn draw(&self, len: usize, random: &mut Random) -> Vec<usize> {
        let choices = self.vocab_size.unwrap_or(WORDS.len());
        (0..len).map(|_| random.below(choices)).collect()
    }

    /// The next request.
    pub(super) fn body(&self, random: &mut Random) -> Value {
        let mut tokens = self.prefix.clone();
        let len = self.input.draw(random);
        tokens.extend(self.draw(len, random));
        let prompt: Value = match self.vocab_size {
            Some(_) => tokens.into(),
            None => tokens.iter().map(|&at| WORDS[at]).collect::<Vec<_>>().join(" ").into(),
        };
        let mut body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": self.output.draw(random),
            "temperature": 0, "ignore_eos": self.ignore_eos,
        });
        if self.is_streamed {
            body["stream"] = true.into();
            body["stream_options"] = json!({"include_usage": true});
        }
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(arguments: &[&str]) -> anyhow::Result<(Traffic, Random)> {
        let command = with_traffic(Command::new("serve"));
        let matches = command.try_get_matches_from([&["serve"], arguments].concat())?;
        let mut random = Random(5);
        Ok((Traffic::new(&matches, "m", &mut random)?, random))
    }

    #[test]
    fn lengths_are_one_number_a_spread_or_a_range() {
        let parse = |text, spread| Lengths::parse("l", text, spread).ok();
        assert_eq!(parse("100", 0.0), Some(Lengths { least: 100, most: 100 }));
        assert_eq!(parse("100", 0.25), Some(Lengths { least: 75, most: 125 }));
        assert_eq!(parse("100", 1.0), Some(Lengths { least: 1, most: 200 }));
        assert_eq!(parse("16..300", 0.5), Some(Lengths { least: 16, most: 300 }));
        for wrong in ["", "0", "-1", "5..4", "0..4", "4..", "x", "999999999999"] {
            assert_eq!(parse(wrong, 0.0), None, "{wrong}");
        }
        let mut random = Random(3);
        let drawn: Vec<usize> =
            (0..4000).map(|_| Lengths { least: 16, most: 19 }.draw(&mut random)).collect();
        assert!((16..=19).all(|len| drawn.contains(&len)));
        assert!(drawn.iter().all(|len| (16..=19).contains(len)));
    }

    #[test]
    fn prompts_share_their_prefix_and_nothing_else() {
        let arguments = ["--token-ids", "--random-prefix-len", "64", "--random-input-len", "8..9"];
        let (traffic, mut random) = traffic(&arguments).expect("they are valid");
        let prompts: Vec<Vec<u64>> = (0..20)
            .map(|_| {
                serde_json::from_value(traffic.body(&mut random)["prompt"].take()).expect("ids")
            })
            .collect();
        assert!(prompts.iter().all(|ids| ids[..64] == prompts[0][..64]));
        assert!(prompts[1..].iter().all(|ids| ids[64..] != prompts[0][64..]));
        assert!(prompts.iter().all(|ids| [72, 73].contains(&ids.len())));
        assert!(prompts.iter().flatten().all(|&id| id < 1000));
    }

    #[test]
    fn switches_change_the_body() {
        let (plain, mut random) = traffic(&[]).expect("defaults are valid");
        let body = plain.body(&mut random);
        assert!(body["prompt"].is_string() && body["stream"] == true && body["ignore_eos"] == true);
        let (other, mut random) =
            traffic(&["--stream=false", "--ignore-eos=false"]).expect("they are valid");
        let body = other.body(&mut random);
        assert!(body["stream"].is_null() && body["stream_options"].is_null());
        assert_eq!(body["ignore_eos"], false);
        assert!(traffic(&["--random-range-ratio", "1.5"]).is_err());
        assert!(traffic(&["--random-input-len", "9..2"]).is_err());
    }
}

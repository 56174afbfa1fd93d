//! How each named pre-tokenizer of a byte-level vocabulary cuts text before merging.
//!
//! The names are those of `tokenizer.ggml.pre`; the patterns are those in the `tokenizer.json` of
//! the models that the names stand for.

use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

/// Contractions, words, numbers of up to three digits.
const LLAMA3: &[&str] = &[concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)];
/// The same with each digit on its own.
const QWEN2: &[&str] = &[concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)];
/// The same with combining marks as part of words.
const QWEN35: &[&str] = &[concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)];
/// Words cut where lower case turns upper.
const TEKKEN: &[&str] = &[concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)];
/// The same with contractions, and numbers of up to three digits.
const GPT4O: &[&str] = &[concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)];
const DEEPSEEK3: &[&str] = &[
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
];
const DEEPSEEK_CODER: &[&str] =
    &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"];

/// What comes before merging, for one family of vocabularies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cutting {
    steps: Steps,
    /// Whether text is brought into Unicode's composed form first.
    pub(crate) composes: bool,
    /// Whether a piece that is in the vocabulary is taken whole, whatever the merges say.
    pub(crate) ignores_merges: bool,
}

#[derive(Clone, Copy, Debug)]
enum Steps {
    /// GPT-2's pattern.
    Gpt2,
    /// Each digit on its own, then GPT-2's pattern.
    DigitsThenGpt2,
    /// These patterns, one after the other.
    Patterns(&'static [&'static str]),
}

impl Cutting {
    const fn new(steps: Steps) -> Self {
        Self { steps, composes: false, ignores_merges: false }
    }
    const fn composing(self) -> Self {
        Self { composes: true, ..self }
    }
    const fn ignoring_merges(self) -> Self {
        Self { ignores_merges: true, ..self }
    }

    /// The cutting that files without a name get.
    pub(crate) const FALLBACK: Self = Self::new(Steps::Gpt2);

    /// The cutting called `name`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let cutting = match name {
            "default" | "gpt-2" | "gpt2" | "phi-2" | "jais" | "trillion" | "granite-docling"
            | "gigachat" | "exaone4" | "mellum" | "a.x-4.0" => Self::FALLBACK,
            "mpt" | "olmo" | "modern-bert" => Self::FALLBACK.composing(),
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone"
            | "minerva-7b" | "mellum2" => Self::new(Steps::DigitsThenGpt2),
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "falcon-h1" | "pixtral"
            | "midm-2.0" | "lfm2" => Self::new(Steps::Patterns(LLAMA3)).ignoring_merges(),
            "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => Self::new(Steps::Patterns(LLAMA3)),
            "qwen2" => Self::new(Steps::Patterns(QWEN2)).composing(),
            "deepseek-r1-qwen" | "stablelm2" | "hunyuan" | "megrez" | "kormo" | "grok-2"
            | "solar-open" => Self::new(Steps::Patterns(QWEN2)),
            "qwen35" => Self::new(Steps::Patterns(QWEN35)).composing(),
            "tekken" => Self::new(Steps::Patterns(TEKKEN)).ignoring_merges(),
            "gpt-4o" | "llama4" => Self::new(Steps::Patterns(GPT4O)).ignoring_merges(),
            "kanana2" | "minimax-m2" => Self::new(Steps::Patterns(GPT4O)),
            "deepseek-v3" | "hunyuan-dense" | "joyai-llm" => Self::new(Steps::Patterns(DEEPSEEK3)),
            "deepseek-coder" => Self::new(Steps::Patterns(DEEPSEEK_CODER)),
            "deepseek-llm" => Self::new(Steps::Patterns(DEEPSEEK_LLM)),
            _ => return None,
        };
        Some(cutting)
    }

    /// The pre-tokenizer, ending with the byte alphabet.
    pub(crate) fn build(&self) -> tokenizers::Result<PreTokenizerWrapper> {
        let to_bytes = |cuts| PreTokenizerWrapper::from(ByteLevel::new(false, true, cuts));
        let steps = match self.steps {
            Steps::Gpt2 => return Ok(to_bytes(true)),
            Steps::DigitsThenGpt2 => vec![Digits::new(true).into(), to_bytes(true)],
            Steps::Patterns(patterns) => {
                let mut steps = Vec::with_capacity(patterns.len() + 1);
                for pattern in patterns {
                    let pattern = SplitPattern::Regex((*pattern).to_owned());
                    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?;
                    steps.push(split.into());
                }
                steps.push(to_bytes(false));
                steps
            }
        };
        Ok(Sequence::new(steps).into())
    }
}

const DEEPSEEK_LLM: &[&str] = &[
    r"[\r\n]",
    concat!(
        r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕ",
        r"ἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳ",
        r"Ꙁ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
    ),
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    "[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
];

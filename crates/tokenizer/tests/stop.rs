//! Stop strings, however the text is cut into pieces.

mod support;

use pagedllm_tokenizer::{StopMatcher, TokenizerError};
use support::Random;

/// Where the text ends and which stop string matched, by trying every end in turn.
fn naive(text: &str, stops: &[String], includes: bool) -> (String, Option<usize>) {
    for end in 1..=text.len() {
        let read = &text.as_bytes()[..end];
        let longest = stops
            .iter()
            .enumerate()
            .filter(|(_, stop)| read.ends_with(stop.as_bytes()))
            .max_by_key(|(index, stop)| (stop.len(), std::cmp::Reverse(*index)));
        if let Some((index, stop)) = longest {
            let end = if includes { end } else { end - stop.len() };
            return (text[..end].to_owned(), Some(index));
        }
    }
    (text.to_owned(), None)
}

fn run(pieces: &[&str], stops: &[String], includes: bool) -> (Vec<String>, Option<usize>) {
    let mut matcher = StopMatcher::new(stops, includes).unwrap();
    let mut released = Vec::new();
    for piece in pieces {
        let step = matcher.push(piece);
        released.push(step.release);
        if step.matched.is_some() {
            assert_eq!(matcher.push("more"), pagedllm_tokenizer::StopStep::default());
            assert_eq!(matcher.finish(), "");
            return (released, step.matched);
        }
    }
    released.push(matcher.finish());
    (released, None)
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn check(pieces: &[&str], stops: &[&str], expected: &[&str], matched: Option<usize>) {
    assert_eq!(run(pieces, &strings(stops), false), (strings(expected), matched));
}

// H01, H03, H04.
#[test]
fn text_that_may_become_a_match_is_held_back() {
    check(&["ab", "cd", "ef"], &["bc"], &["a", ""], Some(0));
    check(&["ab", "xc"], &["bc"], &["a", "bxc", ""], None);
    check(&["hello"], &["el"], &["h"], Some(0));
    check(&["ab"], &["bc"], &["a", "b"], None);
    check(&["abab", "abc"], &["ababc"], &["", "ab"], Some(0));
    check(&["a\u{1F642}b"], &["\u{1F642}"], &["a"], Some(0));
    check(&["x\0y"], &["\0"], &["x"], Some(0));
    check(&["anything"], &[], &["anything", ""], None);
    let included = run(&["ab", "cd"], &strings(&["bc"]), true);
    assert_eq!(included, (strings(&["a", "bc"]), Some(0)));
}

#[test]
fn the_first_complete_match_wins() {
    check(&["abcd"], &["abcd", "bc"], &["a"], Some(1));
    check(&["abc"], &["c", "abc", "bc"], &[""], Some(1));
    check(&["aa"], &["a", "a"], &[""], Some(0));
}

// H05.
#[test]
fn degenerate_stops_are_errors() {
    let error = |stops: &[String]| StopMatcher::new(stops, false).unwrap_err();
    assert!(matches!(error(&strings(&["x", ""])), TokenizerError::EmptyStop { index: 1 }));
    let long = "x".repeat(100_000);
    assert!(matches!(error(&[long]), TokenizerError::StopTooLong { bytes: 100_000, .. }));
    assert!(matches!(error(&vec!["x".to_owned(); 65]), TokenizerError::TooManyStops { .. }));
}

#[test]
fn random_texts_agree_with_the_naive_search() {
    let mut random = Random::new();
    let letters = ["a", "b", "\u{E9}", "\u{1F642}"];
    for _ in 0..20_000 {
        let word = |random: &mut Random, limit: usize| -> String {
            let length = random.below(limit);
            (0..length).map(|_| letters[random.below(letters.len())]).collect()
        };
        let stops: Vec<String> = (0..random.below(4))
            .map(|_| format!("{}{}", word(&mut random, 4), letters[random.below(2)]))
            .collect();
        let pieces: Vec<String> = (0..8).map(|_| word(&mut random, 5)).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let includes = random.below(2) == 0;
        let (released, matched) = run(&pieces, &stops, includes);
        let expected = naive(&pieces.concat(), &stops, includes);
        assert_eq!((released.concat(), matched), expected, "{pieces:?} {stops:?}");
        let mut read = String::new();
        for (count, piece) in pieces.iter().enumerate().take(released.len()) {
            read.push_str(piece);
            let shown = released[..=count].concat().len();
            let held = read.len().saturating_sub(shown);
            let may_match = stops.iter().any(|stop| {
                stop.len() > held && read.as_bytes().ends_with(&stop.as_bytes()[..held])
            });
            assert!(held == 0 || may_match || matched.is_some(), "{pieces:?} {stops:?}");
        }
    }
}

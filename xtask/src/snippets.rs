//! Code in documents that is a file of the repository. A document says
//! `<!-- file: bindings/go/example/chat/main.go -->` on a line, and the block of code below it is
//! that file.

use std::fmt::Write;

use anyhow::{Context, Result};

use crate::shell::{command, output, root};

const MARK: &str = "<!-- file: ";

/// Writes the files into the documents that name them: `cargo xtask snippets`.
pub fn run() -> Result<()> {
    for path in output(command("git ls-files").arg("*.md"))?.lines() {
        let text = std::fs::read_to_string(path)?;
        let filled = filled(&text, read)?;
        if filled != text {
            std::fs::write(path, filled)?;
            println!("{path}");
        }
    }
    Ok(())
}

/// What is wrong with the blocks of a document, if anything is.
pub fn fault(text: &str) -> Option<String> {
    match filled(text, read) {
        Ok(filled) if filled == text => None,
        Ok(_) => Some("a block of code is not the file it names; run cargo xtask snippets".into()),
        Err(error) => Some(format!("{error:#}")),
    }
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(root().join(path)).with_context(|| format!("reading {path}"))
}

/// The document with its blocks filled from files.
fn filled(text: &str, read: impl Fn(&str) -> Result<String>) -> Result<String> {
    let mut filled = String::new();
    let mut lines = text.split_inclusive('\n');
    while let Some(line) = lines.next() {
        filled.push_str(line);
        let Some(path) = line.strip_prefix(MARK).and_then(|rest| rest.strip_suffix(" -->\n"))
        else {
            continue;
        };
        let fence = lines.next().unwrap_or_default();
        anyhow::ensure!(fence.starts_with("```"), "no block of code follows {}", line.trim_end());
        let end = lines.by_ref().find(|line| line.starts_with("```"));
        let end = end.with_context(|| format!("the block of {path} does not end"))?;
        write!(filled, "{fence}{}{end}", read(path)?)?;
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_filled_and_the_rest_stays() {
        let read = |path: &str| Ok(format!("content of {path}\n"));
        let text = "a\n<!-- file: x.c -->\n```c\nold\nolder\n```\nb\n```\nkept\n```\n";
        let expected = "a\n<!-- file: x.c -->\n```c\ncontent of x.c\n```\nb\n```\nkept\n```\n";
        assert_eq!(filled(text, read).expect("well formed"), expected);
        assert_eq!(filled(expected, read).expect("well formed"), expected);
    }

    #[test]
    fn marks_without_a_block_are_faults() {
        let read = |_: &str| Ok(String::new());
        for text in
            ["<!-- file: x -->\n", "<!-- file: x -->\ntext\n", "<!-- file: x -->\n```c\na\n"]
        {
            assert!(filled(text, read).is_err(), "{text}");
        }
        assert!(fault("<!-- file: no/such/file -->\n```\n```\n").is_some());
    }
}

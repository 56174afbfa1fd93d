//! Programs that a task wants, from Debian's packages where that can be done.

use anyhow::Result;

use crate::shell::{command, is_installed, output, run as run_command};

/// Installs, for each (program, package), what is missing. Only root on a Debian can; elsewhere
/// the task says what it skips.
pub fn install(wanted: &[(&str, &str)]) -> Result<()> {
    let is_missing = |program: &str| !is_installed(program);
    let missing: Vec<&str> =
        wanted.iter().filter(|(program, _)| is_missing(program)).map(|(_, name)| *name).collect();
    if missing.is_empty() || !is_installed("apt-get") || output(&mut command("id -u"))? != "0\n" {
        return Ok(());
    }
    run_command(&mut command("apt-get update -q"))?;
    run_command(command("apt-get install -q -y --no-install-recommends").args(missing))
}

//! The embedded kernels, by name.
//!
//! Everything is loaded when the device is opened, so a kernel that is missing for the device
//! shows at start and not at the first request.

use std::collections::HashMap;

use pagedllm_backend::DeviceError;

use crate::device::Device;
use crate::launch::{Function, Module};

/// Fat binaries made by `build.rs`, by source file.
const MODULES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// Architectures that were compiled, as `80,89,90a`; the last one also went in as PTX.
const ARCHS: &str = env!("PAGEDLLM_BUILT_ARCHS");

/// Which of the embedded code a device of this capability runs, in words.
pub(crate) fn code_for(capability: u32) -> String {
    code_among(ARCHS, capability)
}

/// Compiled code runs on its own major architecture from its own minor one on; that of an `a`
/// architecture on that one alone. Anything else is compiled from the PTX when it is loaded.
fn code_among(archs: &str, capability: u32) -> String {
    let fits = |arch: &&str| {
        let plain = arch.trim_end_matches(char::is_alphabetic);
        let Ok(number) = plain.parse::<u32>() else { return false };
        let is_same_major = number / 10 == capability / 10 && number <= capability;
        is_same_major && (plain.len() == arch.len() || number == capability)
    };
    match archs.split(',').filter(fits).max() {
        Some(arch) => format!("sm_{arch}"),
        None => "from PTX".into(),
    }
}

/// All kernels of the device.
#[derive(Debug)]
pub(crate) struct Kernels {
    functions: HashMap<String, Function>,
    /// Owners of the code.
    _modules: Vec<Module>,
}

impl Kernels {
    /// Loads every embedded kernel.
    pub fn load(device: &std::sync::Arc<Device>) -> Result<Self, DeviceError> {
        let mut functions = HashMap::new();
        let mut modules = Vec::new();
        for (name, image) in MODULES {
            let module = Module::load(device, name, image)?;
            functions.extend(module.functions()?);
            modules.push(module);
        }
        Ok(Self { functions, _modules: modules })
    }

    /// The kernel `name`.
    pub fn get(&self, name: &str) -> Result<Function, DeviceError> {
        self.functions
            .get(name)
            .copied()
            .ok_or_else(|| DeviceError::Unsupported(format!("there is no kernel {name}")))
    }
}

#[cfg(test)]
mod tests {
    use super::code_among;

    #[test]
    fn a_device_runs_the_newest_code_that_it_can() {
        for (capability, code) in
            [(80, "sm_80"), (86, "sm_80"), (89, "sm_89"), (90, "sm_90a"), (100, "from PTX")]
        {
            assert_eq!(code_among("80,89,90a", capability), code, "{capability}");
        }
        assert_eq!(code_among("90a", 80), "from PTX");
        assert_eq!(code_among("80", 90), "from PTX");
    }
}

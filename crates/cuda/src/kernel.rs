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

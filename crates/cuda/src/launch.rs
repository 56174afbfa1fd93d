//! Loading and launching kernels. The only place that launches; arguments are typed words.
#![allow(unsafe_code)]
// A launch is a call of the driver with a list of pointers to arguments. `Arg` makes each argument
// a word of its own type's size; the verbs pass addresses of buffers that live past the launch
// (weights, workspace, step inputs), which the stream's order keeps valid.

pub(crate) mod blas;
pub(crate) mod tensor_map;

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use cudarc::driver::sys;
use pagedllm_backend::DeviceError;

use crate::device::{Device, check};

/// Dynamic shared memory that needs no permission.
const DEFAULT_SHARED_BYTES: usize = 48 * 1024;

/// One loaded fat binary.
#[derive(Debug)]
pub(crate) struct Module {
    device: Arc<Device>,
    module: sys::CUmodule,
}

// SAFETY: modules may be used from any thread.
unsafe impl Send for Module {}

/// A kernel. Valid while its `Module` lives, which `Kernels` sees to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function(sys::CUfunction);

// SAFETY: functions may be launched from any thread.
unsafe impl Send for Function {}

impl Module {
    /// Loads the code of `image` for the device.
    pub fn load(device: &Arc<Device>, name: &str, image: &[u8]) -> Result<Self, DeviceError> {
        device.bind()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: `image` is a complete fat binary, which the driver reads and copies.
        let status =
            unsafe { sys::cuModuleLoadData(&raw mut module, image.as_ptr().cast::<c_void>()) };
        check(status, &format!("loading the kernels of {name}"))?;
        Ok(Self { device: device.clone(), module })
    }

    /// Its kernels, by name.
    pub fn functions(&self) -> Result<Vec<(String, Function)>, DeviceError> {
        let mut count = 0;
        // SAFETY: the places are valid and the array has room for `count` entries.
        unsafe {
            check(sys::cuModuleGetFunctionCount(&raw mut count, self.module), "counting kernels")?;
            let mut functions = vec![std::ptr::null_mut(); count as usize];
            let status =
                sys::cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, self.module);
            check(status, "listing kernels")?;
            let mut named = Vec::with_capacity(functions.len());
            for function in functions {
                check(sys::cuFuncLoad(function), "loading a kernel")?;
                // A multiprocessor must come to rest to divide its memory anew between cache and
                // shared memory, so all kernels ask for the same.
                let which =
                    sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
                check(sys::cuFuncSetAttribute(function, which, 100), "dividing shared memory")?;
                let mut name = std::ptr::null();
                check(sys::cuFuncGetName(&raw mut name, function), "naming a kernel")?;
                named.push((
                    CStr::from_ptr(name).to_string_lossy().into_owned(),
                    Function(function),
                ));
            }
            Ok(named)
        }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.device.synchronize().is_ok() {
            // SAFETY: nothing runs any more, and functions die with `Kernels`.
            unsafe { sys::cuModuleUnload(self.module) };
        }
    }
}

impl Function {
    /// Allows `bytes` of dynamic shared memory.
    pub fn allow_shared(self, bytes: usize) -> Result<(), DeviceError> {
        if bytes <= DEFAULT_SHARED_BYTES {
            return Ok(());
        }
        let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is loaded.
        let status = unsafe { sys::cuFuncSetAttribute(self.0, which, bytes as i32) };
        check(status, "allowing shared memory")
    }
}

/// One argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg<'a> {
    /// An address, or another 64-bit word.
    U64(u64),
    /// A 32-bit word.
    U32(u32),
    /// A float.
    F32(f32),
    /// A struct, passed by value.
    Struct(&'a [u8]),
}

/// Most arguments of a kernel.
const MAX_ARGS: usize = 20;

/// Shape of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Blocks in x, y, z.
    pub grid: [usize; 3],
    /// Threads of a block.
    pub threads: usize,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
    /// Neighbouring blocks that reach each other's shared memory; 1 where none do.
    pub cluster: usize,
}

impl Shape {
    /// A launch without dynamic shared memory and without clusters.
    pub fn new(grid: [usize; 3], threads: usize) -> Self {
        Self { grid, threads, shared: 0, cluster: 1 }
    }
}

/// Launches a kernel on the device's stream. Kernels wait for their predecessors themselves
/// (`wait_for_inputs`), so where the device can, the next one's start overlaps this one's end.
pub(crate) fn launch(
    device: &Device,
    function: Function,
    shape: Shape,
    args: &[Arg<'_>],
) -> Result<(), DeviceError> {
    assert!(args.len() <= MAX_ARGS, "a kernel of {} arguments", args.len());
    if shape.grid.contains(&0) {
        return Ok(());
    }
    let mut words = [0u64; MAX_ARGS];
    let mut pointers = [std::ptr::null_mut::<c_void>(); MAX_ARGS];
    for ((arg, word), pointer) in args.iter().zip(&mut words).zip(&mut pointers) {
        *word = match *arg {
            Arg::U64(value) => value,
            Arg::U32(value) => u64::from(value),
            Arg::F32(value) => u64::from(value.to_bits()),
            Arg::Struct(bytes) => {
                *pointer = bytes.as_ptr().cast_mut().cast::<c_void>();
                continue;
            }
        };
        *pointer = std::ptr::from_mut(word).cast::<c_void>();
    }
    let cluster =
        sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: shape.cluster as u32, y: 1, z: 1 };
    let mut attributes = [
        sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        },
        sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { clusterDim: cluster },
        },
    ];
    // The first where the device can, the second where it is asked for as well.
    let num_attributes = match device.capability {
        ..90 => 0,
        _ if shape.cluster == 1 => 1,
        _ => 2,
    };
    let config = sys::CUlaunchConfig {
        gridDimX: shape.grid[0] as u32,
        gridDimY: shape.grid[1] as u32,
        gridDimZ: shape.grid[2] as u32,
        blockDimX: shape.threads as u32,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shape.shared as u32,
        hStream: device.stream(),
        attrs: attributes.as_mut_ptr(),
        numAttrs: num_attributes,
    };
    // SAFETY: the config and the arguments live for the call, which copies them.
    let status = unsafe {
        sys::cuLaunchKernelEx(
            &raw const config,
            function.0,
            pointers.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    };
    check(status, "launching a kernel")
}

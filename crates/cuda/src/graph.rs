//! Recording what the stream is given, and replaying it.
#![allow(unsafe_code)]
// Capture is a mode of the stream: between begin and end, launches are recorded and not run. The
// guard ends the mode on every path; a graph owns its executable and frees it once.

use std::sync::Arc;

use cudarc::driver::sys;
use pagedllm_backend::DeviceError;

use crate::device::{Device, check};

/// The stream is being recorded. Dropping the guard throws the recording away.
#[derive(Debug)]
pub(crate) struct Capture {
    device: Arc<Device>,
    is_done: bool,
}

/// A recorded forward pass.
#[derive(Debug)]
pub(crate) struct Graph {
    device: Arc<Device>,
    executable: sys::CUgraphExec,
}

// SAFETY: a graph may be launched from any thread, one at a time.
unsafe impl Send for Graph {}

impl Capture {
    /// Starts recording.
    pub fn begin(device: &Arc<Device>) -> Result<Self, DeviceError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream exists and is not being recorded.
        let status = unsafe { sys::cuStreamBeginCapture_v2(device.stream(), mode) };
        check(status, "starting to record")?;
        Ok(Self { device: device.clone(), is_done: false })
    }

    /// Ends recording and makes the graph runnable.
    pub fn end(mut self) -> Result<Graph, DeviceError> {
        self.is_done = true;
        let mut graph = std::ptr::null_mut();
        let mut executable = std::ptr::null_mut();
        // SAFETY: the places are valid; the graph is destroyed once its executable is made.
        unsafe {
            let status = sys::cuStreamEndCapture(self.device.stream(), &raw mut graph);
            check(status, "recording the step")?;
            let status = sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0);
            sys::cuGraphDestroy(graph);
            check(status, "preparing the recorded step")?;
        }
        Ok(Graph { device: self.device.clone(), executable })
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if !self.is_done {
            let mut graph = std::ptr::null_mut();
            // SAFETY: ends the recording that `begin` started.
            unsafe {
                sys::cuStreamEndCapture(self.device.stream(), &raw mut graph);
                if !graph.is_null() {
                    sys::cuGraphDestroy(graph);
                }
            }
        }
    }
}

impl Graph {
    /// Runs what was recorded, in stream order.
    pub fn replay(&self) -> Result<(), DeviceError> {
        // SAFETY: everything that the recording names lives as long as the backend.
        let status = unsafe { sys::cuGraphLaunch(self.executable, self.device.stream()) };
        check(status, "replaying the recorded step")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.device.synchronize().is_ok() {
            // SAFETY: destroyed once, and it is not running.
            unsafe { sys::cuGraphExecDestroy(self.executable) };
        }
    }
}

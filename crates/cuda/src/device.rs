//! The device, its stream, its memory and its events: thin owners of what the driver hands out.
#![allow(unsafe_code)]
// Every function here is a call of the driver. The pointers that it takes come from the driver
// itself and are owned by the structs below, which free them once and after their last use on the
// stream; sizes are those that were allocated.

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use cudarc::driver::sys;
use pagedllm_backend::DeviceError;

/// Turns a status of the driver into an error.
pub(crate) fn check(status: sys::CUresult, what: &str) -> Result<(), DeviceError> {
    if status == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = std::ptr::null();
    // SAFETY: `text` is a valid place; the driver points it at a string that lives for ever.
    let known = unsafe { sys::cuGetErrorString(status, &raw mut text) };
    let text = if known == sys::CUresult::CUDA_SUCCESS && !text.is_null() {
        // SAFETY: as above, a C string of the driver.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    } else {
        format!("{status:?}")
    };
    Err(DeviceError::Fault(format!("{what}: {text}")))
}

/// Whether the driver is there and sees a device.
///
/// # Errors
/// Why not.
pub fn check_available() -> Result<(), DeviceError> {
    match count()? {
        0 => Err(DeviceError::Unsupported("the CUDA driver sees no GPU".into())),
        _ => Ok(()),
    }
}

fn count() -> Result<usize, DeviceError> {
    // SAFETY: only looks for the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(DeviceError::Unsupported("no CUDA driver (libcuda) on this machine".into()));
    }
    // SAFETY: the first call of the driver, with the only flag that exists.
    let status = unsafe { sys::cuInit(0) };
    if status == sys::CUresult::CUDA_ERROR_NO_DEVICE {
        return Ok(0);
    }
    check(status, "starting the driver")?;
    let mut count = 0;
    // SAFETY: `count` is a valid place.
    check(unsafe { sys::cuDeviceGetCount(&raw mut count) }, "counting devices")?;
    Ok(count.unsigned_abs() as usize)
}

/// One device: its primary context, one stream, and the facts that choose kernels.
#[derive(Debug)]
pub(crate) struct Device {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    /// Compute capability, as 90 for 9.0.
    pub capability: u32,
    /// Multiprocessors.
    pub num_sms: usize,
    /// Most shared memory of a block, which is nearly all that a multiprocessor has.
    pub shared_bytes: usize,
    /// What its maker calls it.
    pub name: String,
    /// Its place on the bus, as `00000000:19:00.0`, by which other libraries know it.
    pub bus_id: String,
}

// SAFETY: contexts and streams may be used from any thread; the struct is not changed after it
// was made.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens device `ordinal`.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, DeviceError> {
        let count = count()?;
        if ordinal >= count {
            return Err(DeviceError::Unsupported(format!(
                "device {ordinal}: the driver sees {count} devices"
            )));
        }
        let mut device = 0;
        let mut context = std::ptr::null_mut();
        let mut stream = std::ptr::null_mut();
        let ordinal = i32::try_from(ordinal).expect("below the count, which is an i32");
        // SAFETY: the places are valid; the context is retained once and released in `drop`.
        unsafe {
            check(sys::cuDeviceGet(&raw mut device, ordinal), "finding the device")?;
            check(sys::cuDevicePrimaryCtxRetain(&raw mut context, device), "opening the device")?;
            check(sys::cuCtxSetCurrent(context), "using the device")?;
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            check(sys::cuStreamCreate(&raw mut stream, flags), "making a stream")?;
        }
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: `value` is a valid place and the device exists.
            let status = unsafe { sys::cuDeviceGetAttribute(&raw mut value, which, device) };
            check(status, "reading the device's attributes").map(|()| value.unsigned_abs())
        };
        use sys::CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN as SHARED,
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as SMS,
        };
        let capability = attribute(MAJOR)? * 10 + attribute(MINOR)?;
        let num_sms = attribute(SMS)? as usize;
        let shared_bytes = attribute(SHARED)? as usize;
        if capability < 80 {
            return Err(DeviceError::Unsupported(format!(
                "compute capability {}.{}; 8.0 or newer is needed",
                capability / 10,
                capability % 10
            )));
        }
        let mut name = [0u8; 128];
        let mut bus_id = [0u8; 32];
        // SAFETY: both places have the lengths that are named; the driver ends the texts with 0.
        unsafe {
            let status = sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device);
            check(status, "reading the device's name")?;
            let len = bus_id.len() as i32;
            let status = sys::cuDeviceGetPCIBusId(bus_id.as_mut_ptr().cast(), len, device);
            check(status, "reading the device's place")?;
        }
        let text = |bytes: &[u8]| {
            CStr::from_bytes_until_nul(bytes)
                .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
        };
        let (name, bus_id) = (text(&name), text(&bus_id));
        Ok(Arc::new(Self {
            device,
            context,
            stream,
            capability,
            num_sms,
            shared_bytes,
            name,
            bus_id,
        }))
    }

    /// The stream, for calls that take one.
    pub fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// Makes the device current on the calling thread.
    pub fn bind(&self) -> Result<(), DeviceError> {
        // SAFETY: the context lives as long as `self`.
        check(unsafe { sys::cuCtxSetCurrent(self.context) }, "using the device")
    }

    /// Free and total bytes of device memory.
    pub fn memory(&self) -> Result<(u64, u64), DeviceError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the places are valid.
        let status = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        check(status, "reading free memory")?;
        Ok((free as u64, total as u64))
    }

    /// Waits until the stream is empty.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        self.bind()?;
        // SAFETY: the stream lives as long as `self`.
        check(unsafe { sys::cuStreamSynchronize(self.stream) }, "waiting for the device")
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: nothing else holds the stream: buffers and events keep the device alive.
        unsafe {
            sys::cuCtxSetCurrent(self.context);
            sys::cuStreamDestroy_v2(self.stream);
            sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

/// Device memory.
#[derive(Debug)]
pub(crate) struct DeviceBuffer {
    device: Arc<Device>,
    address: u64,
    bytes: usize,
}

impl DeviceBuffer {
    /// Allocates `bytes` (at least one) for `what`.
    pub fn new(device: &Arc<Device>, bytes: usize, what: &str) -> Result<Self, DeviceError> {
        device.bind()?;
        let mut address = 0;
        // SAFETY: `address` is a valid place.
        let status = unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes.max(1)) };
        if status == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(DeviceError::OutOfMemory {
                what: what.into(),
                needed_bytes: bytes as u64,
                free_bytes: device.memory()?.0,
            });
        }
        check(status, "allocating device memory")?;
        Ok(Self { device: device.clone(), address, bytes })
    }
    /// Allocates and fills with zeros.
    pub fn zeroed(device: &Arc<Device>, bytes: usize, what: &str) -> Result<Self, DeviceError> {
        let buffer = Self::new(device, bytes, what)?;
        fill_words(device, buffer.address, 0, bytes / 4)?;
        Ok(buffer)
    }
    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }
    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.device.synchronize().is_ok() {
            // SAFETY: the stream is empty, so nothing uses the memory any more.
            unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Sets `words` 32-bit words in stream order.
pub(crate) fn fill_words(
    device: &Device,
    address: u64,
    value: u32,
    words: usize,
) -> Result<(), DeviceError> {
    if words == 0 {
        return Ok(());
    }
    // SAFETY: callers pass ranges of buffers that they own.
    let status = unsafe { sys::cuMemsetD32Async(address, value, words, device.stream) };
    check(status, "filling memory")
}

/// Copies `bytes` bytes from one place of device memory to another, in stream order.
pub(crate) fn copy_bytes(
    device: &Device,
    from: u64,
    to: u64,
    bytes: usize,
) -> Result<(), DeviceError> {
    // SAFETY: callers pass ranges of buffers that they own.
    let status = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, device.stream) };
    check(status, "copying on the device")
}

/// Page-locked host memory, which the device reads and writes in stream order.
#[derive(Debug)]
pub(crate) struct HostBuffer {
    device: Arc<Device>,
    pointer: *mut u32,
    words: usize,
}

// SAFETY: the memory belongs to this struct alone.
unsafe impl Send for HostBuffer {}

impl HostBuffer {
    /// Allocates `words` 32-bit words, zeros.
    pub fn new(device: &Arc<Device>, words: usize) -> Result<Self, DeviceError> {
        device.bind()?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: `pointer` is a valid place.
        let status = unsafe { sys::cuMemHostAlloc(&raw mut pointer, words.max(1) * 4, 0) };
        check(status, "allocating page-locked memory")?;
        // SAFETY: that many bytes were allocated just now.
        unsafe { std::ptr::write_bytes(pointer.cast::<u8>(), 0, words.max(1) * 4) };
        Ok(Self { device: device.clone(), pointer: pointer.cast(), words })
    }
    /// The words. The caller has waited for the device to be done with them.
    pub fn words(&self) -> &[u32] {
        // SAFETY: `words` initialized words, owned by `self`.
        unsafe { std::slice::from_raw_parts(self.pointer, self.words) }
    }
    /// As [`words`](Self::words), to write.
    pub fn words_mut(&mut self) -> &mut [u32] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.words) }
    }
    /// Starts copying the first `words` words to the device.
    pub fn upload(&self, to: u64, words: usize) -> Result<(), DeviceError> {
        assert!(words <= self.words);
        // SAFETY: both ranges are owned; the caller reuses the host words only after waiting.
        let status = unsafe {
            sys::cuMemcpyHtoDAsync_v2(
                to,
                self.pointer.cast::<c_void>(),
                words * 4,
                self.device.stream,
            )
        };
        check(status, "copying to the device")
    }
    /// Starts copying `words` words from the device to `offset`.
    pub fn download(&mut self, from: u64, offset: usize, words: usize) -> Result<(), DeviceError> {
        assert!(offset + words <= self.words);
        // SAFETY: as in `upload`; the range was checked.
        let status = unsafe {
            let to = self.pointer.add(offset).cast::<c_void>();
            sys::cuMemcpyDtoHAsync_v2(to, from, words * 4, self.device.stream)
        };
        check(status, "copying from the device")
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if self.device.synchronize().is_ok() {
            // SAFETY: the stream is empty, so the device is done with the memory.
            unsafe { sys::cuMemFreeHost(self.pointer.cast::<c_void>()) };
        }
    }
}

/// Two page-locked buffers in turn on their way to the device.
#[derive(Debug)]
pub(crate) struct Staging {
    slots: [(HostBuffer, Event); 2],
    turn: usize,
}

impl Staging {
    /// Allocates `words` words twice.
    pub fn new(device: &Arc<Device>, words: usize) -> Result<Self, DeviceError> {
        let slot = || -> Result<(HostBuffer, Event), DeviceError> {
            let event = Event::new(device, false)?;
            event.record()?;
            Ok((HostBuffer::new(device, words)?, event))
        };
        Ok(Self { slots: [slot()?, slot()?], turn: 0 })
    }
    /// Words of each buffer.
    pub fn capacity(&self) -> usize {
        self.slots[0].0.words
    }
    /// The next buffer to fill, once the device has read what it held.
    pub fn words(&mut self) -> Result<&mut [u32], DeviceError> {
        let (buffer, event) = &mut self.slots[self.turn];
        event.wait()?;
        Ok(buffer.words_mut())
    }
    /// Starts copying the first `words` words of it to the device.
    pub fn send(&mut self, to: u64, words: usize) -> Result<(), DeviceError> {
        let (buffer, event) = &self.slots[self.turn];
        self.turn = 1 - self.turn;
        buffer.upload(to, words)?;
        event.record()
    }
}

/// A place in the stream that can be waited for.
#[derive(Debug)]
pub(crate) struct Event {
    device: Arc<Device>,
    event: sys::CUevent,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// A new event, not recorded. `timed` events can be subtracted.
    pub fn new(device: &Arc<Device>, timed: bool) -> Result<Self, DeviceError> {
        device.bind()?;
        let mut event = std::ptr::null_mut();
        let flags = if timed { 0 } else { sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 };
        // SAFETY: `event` is a valid place.
        check(unsafe { sys::cuEventCreate(&raw mut event, flags) }, "making an event")?;
        Ok(Self { device: device.clone(), event })
    }
    /// Records the end of everything issued so far.
    pub fn record(&self) -> Result<(), DeviceError> {
        // SAFETY: event and stream are of the same context.
        check(unsafe { sys::cuEventRecord(self.event, self.device.stream) }, "recording an event")
    }
    /// Blocks until the recorded place is reached.
    pub fn wait(&self) -> Result<(), DeviceError> {
        self.device.bind()?;
        // SAFETY: the event exists.
        check(unsafe { sys::cuEventSynchronize(self.event) }, "running the step")
    }
    /// Milliseconds from `start` to here; both are timed and reached.
    pub fn since(&self, start: &Self) -> Result<f32, DeviceError> {
        let mut ms = 0.0;
        // SAFETY: both events exist.
        let status = unsafe { sys::cuEventElapsedTime_v2(&raw mut ms, start.event, self.event) };
        check(status, "reading the time")?;
        Ok(ms)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: destroyed once; the driver defers it past the event's last use.
            unsafe { sys::cuEventDestroy_v2(self.event) };
        }
    }
}

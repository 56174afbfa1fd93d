//! What a GPU says about itself.

/// One look at a GPU. What it does not tell is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuStats {
    /// Number of the device, as the driver counts the visible ones.
    pub ordinal: usize,
    /// What its maker calls it.
    pub name: String,
    /// Bytes of its memory in use, by anybody.
    pub memory_used_bytes: Option<u64>,
    /// Bytes of its memory.
    pub memory_total_bytes: Option<u64>,
    /// Share of the last moments in which a kernel ran, 0 to 1.
    pub utilization: Option<f64>,
    /// Temperature of the chip in degrees Celsius.
    pub temperature_celsius: Option<f64>,
    /// Power that the board draws, in watts.
    pub power_watts: Option<f64>,
}

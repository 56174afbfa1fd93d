//! NVIDIA's management library, opened at run time: where it is missing there are no readings.

use std::ffi::OsStr;

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;

use crate::monitor::GpuStats;

/// The library as the driver installs it; the name without a number is in development packages.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// The library counts milliwatts.
const MILLIWATTS: f64 = 1000.0;
/// The library counts per cent.
const PER_CENT: f64 = 100.0;

/// Looks at one GPU.
#[derive(Debug)]
pub struct Monitor {
    nvml: Nvml,
    bus_id: String,
    ordinal: usize,
    name: String,
}

impl Monitor {
    /// Opens the library for the device at `bus_id`.
    pub(crate) fn open(ordinal: usize, bus_id: &str) -> Result<Self, String> {
        let nvml = Nvml::builder()
            .lib_path(OsStr::new(LIBRARY))
            .init()
            .map_err(|error| format!("{LIBRARY}: {error}"))?;
        let named = nvml.device_by_pci_bus_id(bus_id).and_then(|device| device.name());
        let name = named.map_err(|error| format!("{LIBRARY}, device {bus_id}: {error}"))?;
        Ok(Self { nvml, bus_id: bus_id.to_owned(), ordinal, name })
    }

    /// One look. What the device does not tell is absent.
    #[must_use]
    pub fn read(&self) -> GpuStats {
        let stats =
            GpuStats { ordinal: self.ordinal, name: self.name.clone(), ..GpuStats::default() };
        let Ok(device) = self.nvml.device_by_pci_bus_id(self.bus_id.as_str()) else {
            return stats;
        };
        let memory = device.memory_info().ok();
        GpuStats {
            memory_used_bytes: memory.as_ref().map(|memory| memory.used),
            memory_total_bytes: memory.as_ref().map(|memory| memory.total),
            utilization: device
                .utilization_rates()
                .ok()
                .map(|rates| f64::from(rates.gpu) / PER_CENT),
            temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok().map(f64::from),
            power_watts: device.power_usage().ok().map(|power| f64::from(power) / MILLIWATTS),
            ..stats
        }
    }
}

//! Matrix products through cuBLASLt, with the algorithm of each shape chosen once.
#![allow(unsafe_code)]
// cuBLASLt is a C library of opaque descriptors. Each is made and destroyed here, in one struct;
// addresses are those of weights and workspace tensors whose shapes the caller states.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use cudarc::cublaslt::{result, sys};
use pagedllm_backend::DeviceError;
use pagedllm_core::DType;

use crate::device::{Device, DeviceBuffer};

/// Scratch memory of the library, as NVIDIA advises for Hopper.
const WORKSPACE_BYTES: usize = 32 << 20;

/// Shapes whose algorithms are kept.
const MAX_PLANS: usize = 2048;

/// A product `y[rows, outputs] = x[rows, inputs] . w[outputs, inputs]^T + bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Product {
    /// Rows of `x` and `y`.
    pub rows: usize,
    /// Columns of `y`, rows of `w`.
    pub outputs: usize,
    /// Columns of `x` and of `w`.
    pub inputs: usize,
    /// Element type of `x` and `w`.
    pub dtype: DType,
    /// Element type of `y`.
    pub out_dtype: DType,
    /// Whether there is a bias, of type `out_dtype`.
    pub has_bias: bool,
}

/// The library, its scratch memory, and what was chosen.
#[derive(Debug)]
pub(crate) struct Blas {
    device: Arc<Device>,
    handle: sys::cublasLtHandle_t,
    workspace: DeviceBuffer,
    plans: HashMap<Product, Plan>,
}

// SAFETY: handles may be used from any thread, one at a time, which `&mut` sees to.
unsafe impl Send for Blas {}

/// Descriptors of one shape and the algorithm for it.
#[derive(Debug)]
struct Plan {
    description: sys::cublasLtMatmulDesc_t,
    weights: sys::cublasLtMatrixLayout_t,
    inputs: sys::cublasLtMatrixLayout_t,
    outputs: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: each was made once in `Plan::new`.
        unsafe {
            let _ = result::destroy_matmul_desc(self.description);
            for layout in [self.weights, self.inputs, self.outputs] {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
    }
}

fn data_type(dtype: DType) -> Result<sys::cudaDataType, DeviceError> {
    match dtype {
        DType::F32 => Ok(sys::cudaDataType::CUDA_R_32F),
        DType::F16 => Ok(sys::cudaDataType::CUDA_R_16F),
        DType::BF16 => Ok(sys::cudaDataType::CUDA_R_16BF),
        DType::Fp8E4M3 => Err(DeviceError::Unsupported("products of fp8_e4m3".into())),
    }
}

fn fault(error: result::CublasError, what: &str) -> DeviceError {
    DeviceError::Fault(format!("cuBLASLt, {what}: {error}"))
}

impl Blas {
    /// Opens the library.
    pub fn new(device: &Arc<Device>) -> Result<Self, DeviceError> {
        device.bind()?;
        // SAFETY: only looks for the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(DeviceError::Unsupported(
                "cuBLASLt (libcublasLt) was not found; it is part of the CUDA toolkit".into(),
            ));
        }
        let handle = result::create_handle().map_err(|e| fault(e, "opening"))?;
        let workspace = DeviceBuffer::new(device, WORKSPACE_BYTES, "cuBLASLt")?;
        Ok(Self { device: device.clone(), handle, workspace, plans: HashMap::new() })
    }

    /// Starts a product. `bias` is 0 where there is none.
    pub fn multiply(
        &mut self,
        product: Product,
        x: u64,
        w: u64,
        bias: u64,
        y: u64,
    ) -> Result<(), DeviceError> {
        if !self.plans.contains_key(&product) {
            // Prompts come in every length; what is thrown away here is chosen again.
            if self.plans.len() >= MAX_PLANS {
                self.plans.clear();
            }
            let plan = Plan::new(self.handle, product)?;
            self.plans.insert(product, plan);
        }
        let plan = &self.plans[&product];
        let (alpha, beta) = (1.0f32, 0.0f32);
        // SAFETY: the descriptors belong to `plan`; the addresses are device memory of the stated
        // shapes; the scratch memory is used in stream order by one product at a time.
        unsafe {
            if product.has_bias {
                let attribute =
                    sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
                let value = (&raw const bias).cast::<c_void>();
                result::set_matmul_desc_attribute(plan.description, attribute, value, 8)
                    .map_err(|e| fault(e, "setting the bias"))?;
            }
            result::matmul(
                self.handle,
                plan.description,
                (&raw const alpha).cast::<c_void>(),
                (&raw const beta).cast::<c_void>(),
                w as *const c_void,
                plan.weights,
                x as *const c_void,
                plan.inputs,
                y as *const c_void,
                plan.outputs,
                y as *mut c_void,
                plan.outputs,
                &raw const plan.algorithm,
                self.workspace.address() as *mut c_void,
                WORKSPACE_BYTES,
                self.device.stream().cast(),
            )
            .map_err(|e| fault(e, &format!("{product:?}")))
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        self.plans.clear();
        if self.device.synchronize().is_ok() {
            // SAFETY: destroyed once, and nothing of it runs any more.
            let _ = unsafe { result::destroy_handle(self.handle) };
        }
    }
}

impl Plan {
    /// Chooses the algorithm. cuBLASLt is column-major, so the row-major product is computed as
    /// `y^T = w . x^T`, with `w` marked as transposed.
    fn new(handle: sys::cublasLtHandle_t, product: Product) -> Result<Self, DeviceError> {
        let Product { rows, outputs, inputs, .. } = product;
        let dtype = data_type(product.dtype)?;
        let out_dtype = data_type(product.out_dtype)?;
        let made = |e| fault(e, "describing a product");
        // SAFETY: each descriptor is used only while it exists; attribute sizes are those of the
        // values.
        unsafe {
            let description = result::create_matmul_desc(
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cudaDataType::CUDA_R_32F,
            )
            .map_err(made)?;
            let set = |attribute, value: u32| {
                let value = (&raw const value).cast::<c_void>();
                result::set_matmul_desc_attribute(description, attribute, value, 4).map_err(made)
            };
            use sys::cublasLtMatmulDescAttributes_t as Attribute;
            set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, 1)?;
            if product.has_bias {
                let bias = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
                set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, bias as u32)?;
            }
            let layout = |dtype, rows: usize, cols: usize| {
                result::create_matrix_layout(dtype, rows as u64, cols as u64, rows as i64)
                    .map_err(made)
            };
            let weights = layout(dtype, inputs, outputs)?;
            let x = layout(dtype, inputs, rows)?;
            let y = layout(out_dtype, outputs, rows)?;
            let preference = result::create_matmul_pref().map_err(made)?;
            let bytes = WORKSPACE_BYTES;
            let workspace =
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            let value = (&raw const bytes).cast::<c_void>();
            result::set_matmul_pref_attribute(preference, workspace, value, 8).map_err(made)?;
            let chosen = result::get_matmul_algo_heuristic(
                handle,
                description,
                weights,
                x,
                y,
                y,
                preference,
            );
            let _ = result::destroy_matmul_pref(preference);
            let algorithm = chosen
                .map_err(|e| DeviceError::Unsupported(format!("cuBLASLt, {product:?}: {e}")))?
                .algo;
            Ok(Self { description, weights, inputs: x, outputs: y, algorithm })
        }
    }
}

use std::fs;
use std::path::Path as FilePath;

use crate::gpu::Device;
use crate::reference::relative_l2;
use crate::spec::{Dims, Dtype, HeadDim};

use super::ranks::{Mode, Ranks};
use super::tensors::{Inputs, encode};
use super::{LabError, Layout, Mask};

/// Error of one result of the kernels against the f64 reference.
#[derive(Debug, Clone, PartialEq)]
pub struct ErrorRow {
    /// Problem, as in `bf16-d128-causal`.
    pub problem: String,
    /// `o`, `dq`, `dk` or `dv`.
    pub tensor: &'static str,
    /// Relative L2 error.
    pub error: f64,
}

/// Tokens of the compared problems.
const LEN: usize = 2048;

/// Writes four problems with their f64 results below `folder`, and compares the kernels with them.
///
/// A problem is a folder of raw little-endian files: `q`, `k`, `v`, `do` in the dtype's bits, `o`, `dq`, `dk`, `dv` in
/// f64, all `[1][2048][2][head_dim]`.
pub fn accuracy(device: &Device, folder: &FilePath) -> Result<Vec<ErrorRow>, LabError> {
    let mut rows = Vec::new();
    for head_dim in HeadDim::ALL {
        for mask in [Mask::Full, Mask::Causal] {
            let dims = Dims { dtype: Dtype::Bf16, head_dim, heads: 2, kv_heads: 2, batch: 1 };
            let problem = format!("bf16-d{}-{mask}", head_dim.elements());
            rows.extend(compare(device, dims, mask, &folder.join(&problem), &problem)?);
        }
    }
    Ok(rows)
}

fn compare(
    device: &Device,
    dims: Dims,
    mask: Mask,
    folder: &FilePath,
    problem: &str,
) -> Result<Vec<ErrorRow>, LabError> {
    let inputs = Inputs::random(dims, LEN, mask, 11);
    let output = inputs.problem().forward()?;
    let gradients = inputs.problem().backward(&inputs.d_o)?;
    let ranks = Ranks::new(device, &inputs, Layout::Contiguous, 1)?;
    let actual = ranks.forward(Mode::Fused)?;
    let grown = ranks.backward(false)?;
    let bits = |x: &[f32]| x.iter().flat_map(|&x| encode(dims.dtype, x).to_le_bytes()).collect::<Vec<u8>>();
    for (name, tensor) in [("q", &inputs.q), ("k", &inputs.k), ("v", &inputs.v), ("do", &inputs.d_o)] {
        write(folder, name, &bits(tensor))?;
    }
    let pairs = [
        ("o", &actual.o, &output.o),
        ("dq", &grown.dq, &gradients.dq),
        ("dk", &grown.dk, &gradients.dk),
        ("dv", &grown.dv, &gradients.dv),
    ];
    for (name, _, expected) in pairs {
        write(folder, name, &expected.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())?;
    }
    Ok(pairs
        .into_iter()
        .map(|(tensor, actual, expected)| {
            // What a training step sees: gradients in the input dtype.
            let rounded: Vec<f64> =
                actual.iter().map(|&x| f64::from(super::tensors::round(dims.dtype, x as f32))).collect();
            ErrorRow { problem: problem.to_owned(), tensor, error: relative_l2(&rounded, expected) }
        })
        .collect())
}

fn write(folder: &FilePath, name: &str, bytes: &[u8]) -> Result<(), LabError> {
    let path = folder.join(name);
    let failed = |source| LabError::Write { path: path.clone(), source };
    fs::create_dir_all(folder).map_err(failed)?;
    fs::write(&path, bytes).map_err(failed)
}
